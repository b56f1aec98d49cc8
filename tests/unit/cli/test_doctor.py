"""Tests of ``logbus doctor``: each check's result and the remedy that it names for a fault."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from broker_lite.cli import cluster_checks, doctor, machine_checks
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import run
from broker_lite.client import discovery
from broker_lite.client.administration.admin import Admin, BrokerReport
from broker_lite.client.administration.transactions import (
    Holder,
    OpenInLog,
    TransactionDescription,
)
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.errors import ClusterAuthorizationError, NoBrokersError
from broker_lite.local.cluster import write_json
from broker_lite.local.process import start_mark
from broker_lite.model import Endpoint, TopicPartition

ROOT = Path(__file__).parents[3]


def test_doctor_reports_a_result_for_every_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    code = run(["doctor", "-o", "json"])
    findings = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(findings) == len(doctor.CHECKS) + len(doctor.CLUSTER_CHECKS)
    assert all(row["state"] == "ok" or row["cure"] for row in findings.values())
    assert code == (4 if "warning" in {row["state"] for row in findings.values()} else 0)
    for check in ("java", "zookeeper jars", "pyspark", "pyarrow", "kafka-python", "crc32c"):
        assert findings[check]["state"] == "ok", findings[check]
    assert findings["PYSPARK_PYTHON"]["state"] == "ok"


def test_doctor_reports_missing_java_with_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    finding = machine_checks.java()
    assert finding.state == "critical"
    assert "install Java 17" in finding.cure


def test_doctor_names_the_extra_that_installs_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = machine_checks.event_loop()
    assert finding.state == "info"
    assert finding.cure == "pip install 'pyspark-logbus[broker]'"


@pytest.mark.parametrize(
    ("version", "modules", "state", "found"),
    [
        ("11.0.2", "", "critical", "Java 11"),
        ("17.0.1", "java.base", "critical", "without jdk.incubator.vector"),
        ("21", "jdk.incubator.vector@21", "ok", "Java 21"),
    ],
)
def test_doctor_judges_java_by_version_and_modules(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    modules: str,
    state: str,
    found: str,
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\n'
        f"[ \"$1\" = --list-modules ] && echo '{modules}'\nexit 0\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = machine_checks.java()
    assert (finding.state, found in finding.found) == (state, True), finding


def test_doctor_warns_when_spark_runs_another_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho /elsewhere\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    finding = machine_checks.spark_python()
    assert finding.state == "critical"
    assert finding.cure == f"export PYSPARK_PYTHON={sys.executable}"


def test_doctor_suggests_the_launcher_logbus_python_for_spark_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    assert "logbus-python" not in machine_checks.spark_python().found
    launcher = tmp_path / "logbus-python"
    shutil.copy(ROOT / "pyspark_logbus" / "logbus-python", launcher)
    assert "logbus-python" in machine_checks.spark_python().found
    monkeypatch.setenv("PYSPARK_PYTHON", str(launcher))
    finding = machine_checks.spark_python()
    assert (finding.state, finding.found) == ("ok", str(launcher))


@pytest.mark.parametrize(
    ("said", "state", "cure"),
    [
        ("seen", "ok", ""),
        ("hidden", "warning", "editable_mode=compat"),
        ("absent", "warning", "pip"),
    ],
)
def test_doctor_checks_that_spark_finds_the_data_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, state: str, cure: str
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho {said}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    finding = machine_checks.lookup()
    assert (finding.state, cure in finding.cure) == (state, True)


def test_doctor_reports_an_editable_install_as_hidden_from_spark(tmp_path: Path) -> None:
    """Spark finds data sources by searching folders, but an import hook finds an editable
    install."""
    code = (
        "import importlib.machinery, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pyspark_logbus':\n"
        "            return importlib.machinery.ModuleSpec(name, None, is_package=True)\n"
        "sys.meta_path.append(Hook())\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p and p]\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code + machine_checks._LOOKUP],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "hidden"


@pytest.mark.parametrize("here", ["same", "changed", "none", "left out", "not installed"])
def test_doctor_detects_a_source_tree_that_shadows_the_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: str
) -> None:
    """Regression: a script started in a checkout loaded one copy of the package in Spark's driver
    and the installed copy in its workers."""
    folder, installed = tmp_path / "checkout", tmp_path / "site-packages"
    for root in (folder, installed):
        for package in ("pyspark_logbus", "broker_lite"):
            (root / package / "deep").mkdir(parents=True)
            (root / package / "__init__.py").touch()
            (root / package / "deep" / "part.py").write_text("x = 1\n")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(folder if here == "not installed" else installed))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path if here == "none" else folder)
    if here != "same":
        (folder / "broker_lite" / "deep" / "part.py").write_text("x = 2\n")
    if here == "left out":
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    finding = machine_checks.source_tree()
    assert finding.state == ("warning" if here == "changed" else "ok"), finding
    if here == "changed":
        assert finding.found.startswith(f"broker_lite in this folder and in {installed} differ")
        assert "PYTHONSAFEPATH" in finding.cure


def test_doctor_checks_the_spark_settings_that_speed_up_micro_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    finding = machine_checks.spark_settings()
    assert (finding.state, "[" in finding.found) == ("info", False)
    lines = [f"{key} true\n" for key in machine_checks._SPARK_SETTINGS]
    (tmp_path / "spark-defaults.conf").write_text("".join(lines))
    assert machine_checks.spark_settings().state == "ok"


def test_doctor_help_lists_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--help"]) == 0
    assert "4  a warning" in capsys.readouterr().out


def test_doctors_advice_for_an_unreachable_cluster_names_the_source_of_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(cluster_checks, "CLUSTER_TIMEOUT_MS", 200)
    monkeypatch.delenv("LOGBUS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("LOGBUS_ZOOKEEPER", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    here = {"bootstrap_servers": nobody, "directory": str(tmp_path / "c")}
    write_json(discovery.last_cluster_path(), here)
    assert cluster_checks.reachable(ChosenCluster()) == (
        "cluster",
        "critical",
        ANY,
        f"logbus up --dir {tmp_path}/c",
    )
    holder = {"pid": os.getpid(), "processes": {str(os.getpid()): start_mark(os.getpid())}}
    write_json(discovery.last_cluster_path(), here | holder)
    assert cluster_checks.reachable(ChosenCluster()).cure.startswith(
        f"logbus down --dir {tmp_path}/c, then logbus up"
    )
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", nobody)
    assert "unset LOGBUS_BOOTSTRAP_SERVERS" in cluster_checks.reachable(ChosenCluster()).cure
    monkeypatch.delenv("LOGBUS_BOOTSTRAP_SERVERS")
    (tmp_path / "client.conf").write_text(f"bootstrap.servers={nobody}\n")
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(tmp_path / "client.conf"))
    assert "unset LOGBUS_CLIENT_CONFIG" in cluster_checks.reachable(ChosenCluster()).cure
    assert cluster_checks.reachable(ChosenCluster(nobody)) == ("cluster", "critical", ANY, ANY)
    assert (
        cluster_checks.reachable(ChosenCluster(nobody)).cure == "start those brokers, or correct -b"
    )


def test_doctor_reports_cluster_checks_as_not_checked_if_no_cluster_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LOGBUS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("LOGBUS_ZOOKEEPER", raising=False)
    for check in doctor.CLUSTER_CHECKS:
        finding = check(ChosenCluster())
        assert finding.state == "info" and finding.found.startswith("not checked")


@pytest.mark.parametrize(
    ("age_s", "has_owner", "state", "step"),
    [
        (61, True, "warning", "stop or restart its producer or Spark query"),
        (61, False, "warning", "abort t 3 --start-offset 7 --yes, which writes the abort marker"),
        (59, True, "ok", "logbus transactions describe query-1"),
    ],
)
def test_doctor_names_the_transaction_that_holds_back_the_last_stable_offset(
    age_s: int, has_owner: bool, state: str, step: str
) -> None:
    row = OpenInLog(TopicPartition("t", 3), 5, 0, 0, 7, 1_000)
    found = TransactionDescription("query-1", "Ongoing", 5, 0, 300_000, 1_000, (row.tp,))
    held = [Holder(row, found if has_owner else None, 1_000), Holder(row, None, 2_000)]
    finding = cluster_checks.holder_finding(held, 1_000 + age_s * 1000)
    assert finding.state == state and step in finding.cure
    assert finding.found.startswith("2 partitions have an open transaction; the oldest, of ")
    assert ("query-1" if has_owner else "producer 5") in finding.found
    assert finding.found.endswith(f"hides records of t-3 from offset 7 since {age_s} s")
    assert cluster_checks.holder_finding([], 0).state == "ok"


@pytest.mark.parametrize(
    ("name", "brokers", "replicas", "cure"),
    [
        (
            "__transaction_state",
            2,
            1,
            "logbus topic reassign __transaction_state --replication-factor 2",
        ),
        (
            "__transaction_state",
            5,
            1,
            "logbus topic reassign __transaction_state --replication-factor 3",
        ),
        ("__transaction_state", 2, 2, None),
        ("__transaction_state", 1, 1, None),
        ("events", 2, 1, None),
    ],
)
def test_doctor_warns_of_transaction_state_with_one_replica_in_a_cluster_of_several_brokers(
    name: str, brokers: int, replicas: int, cure: str | None
) -> None:
    partition = PartitionMetadata(0, 0, 0, tuple(range(replicas)))
    view = ClusterView(
        brokers={number: Endpoint("b", number + 1) for number in range(brokers)},
        topics={name: TopicMetadata(name, partitions=(partition,))},
    )
    finding = cluster_checks.lone_state_finding(view)
    assert (finding and (finding.state, finding.cure)) == (cure and ("warning", cure))


def test_doctor_says_that_a_hanging_transaction_is_to_be_committed() -> None:
    row = OpenInLog(TopicPartition("t", 3), 5, 0, 0, 7, 1_000)
    owner = TransactionDescription("query-1", "CompleteCommit", 5, 1, 300_000, -1, ())
    finding = cluster_checks.holder_finding([Holder(row, owner, 1_000)], 62_000)
    assert "--start-offset 7 --yes, which writes the commit marker" in finding.cure


def test_doctor_runs_its_cluster_checks_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: each check waited for the hung broker after the check before it."""
    all_wait = threading.Barrier(len(doctor.CLUSTER_CHECKS), timeout=20)

    def check(_: ChosenCluster) -> machine_checks.Finding:
        all_wait.wait()
        return machine_checks.Finding("cluster", "ok", "")

    monkeypatch.setattr(doctor, "CHECKS", ())
    monkeypatch.setattr(doctor, "CLUSTER_CHECKS", (check,) * len(doctor.CLUSTER_CHECKS))
    assert run(["doctor", "-o", "json"]) == 0


def test_doctor_names_a_broker_that_accepts_connections_but_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the check "cluster" found no fault."""
    monkeypatch.setattr(cluster_checks, "CLUSTER_TIMEOUT_MS", 100)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        endpoint = Endpoint(*hung.getsockname())
        view = ClusterView("c", 1, {1: endpoint}, {})
        monkeypatch.setattr(Admin, "cluster", lambda _: view)
        finding = cluster_checks.reachable(ChosenCluster(str(endpoint)))
    assert finding.state == "warning"
    assert finding.found.endswith(f"connected, but without an answer: {endpoint}")


def test_doctor_prints_advice_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column of advice would make the table wider than the terminal."""
    found = [
        machine_checks.Finding("java", "critical", "not found", "install it"),
        machine_checks.file_limit(),
    ]
    monkeypatch.setattr(doctor, "CHECKS", [lambda at=at: at for at in found])
    monkeypatch.setattr(doctor, "CLUSTER_CHECKS", ())
    assert run(["doctor", "-o", "table"]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "FOUND"]
    assert "java: install it" in lines[4:]


def test_doctor_checks_the_disk_of_the_data_folder_of_a_running_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    write_json(discovery.last_cluster_path(), {"directory": str(tmp_path / "elsewhere/c")})
    assert machine_checks.disk().found.endswith(f"free in {tmp_path}")
    (tmp_path / "elsewhere/c").mkdir(parents=True)
    assert machine_checks.disk().found.endswith(f"free in {tmp_path}/elsewhere/c")


def test_doctor_counts_login_accounts_of_other_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(0, "/bin/sh"), (1000, "/bin/zsh"), (1001, "/usr/sbin/nologin"), (1002, "/bin/false"),
            (os.getuid(), "/bin/sh"), (65_534, "/bin/sh")]  # fmt: skip
    found = [SimpleNamespace(pw_uid=uid, pw_shell=shell) for uid, shell in rows]
    monkeypatch.setattr(pwd, "getpwall", lambda: found)
    assert cluster_checks.other_accounts() == (0 if os.getuid() == 1000 else 1)


def test_doctor_names_the_broker_whose_certificate_ends_soon() -> None:
    now_s, day_s = 1_700_000_000.0, 86_400
    near, far = Endpoint("a", 9092), Endpoint("b", 9092)
    good = cluster_checks.certificate_finding({near: now_s + 31 * day_s}, 1, now_s)
    assert (good.state, good.found) == ("ok", "the first ends on 2023-12-15")
    ends = {far: now_s + 60 * day_s, near: now_s + 29 * day_s}
    bad = cluster_checks.certificate_finding(ends, 2, now_s)
    assert (bad.state, bad.found) == ("warning", "the certificate of a:9092 ends on 2023-12-13")
    assert "ssl.keystore.location" in bad.cure
    assert "1 of 2 brokers" in cluster_checks.certificate_finding({near: now_s}, 2, now_s).found


def test_doctor_names_the_permission_that_a_denied_check_needs() -> None:
    """Regression: if an ACL denied a check's request, the doctor reported "no cluster answers"."""
    finding = cluster_checks._unchecked("disks", ClusterAuthorizationError(), "describe")
    assert finding.found == "not checked: the user needs describe"
    assert finding.cure == "allow it with: logbus acl add USER describe --cluster"
    cure = "see the finding 'cluster'"
    assert cluster_checks._unchecked("disks", NoBrokersError(), "describe").cure == cure


def test_doctor_reports_programs_that_the_system_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Regression: doctor failed, without a finding, at a java or Python of another architecture."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_bytes(b"not for this machine")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", str(program))
    assert machine_checks.java()[1:3] == ("critical", f"{program} does not run")
    assert machine_checks.spark_python().state == "critical"
    assert machine_checks.lookup().state == "warning"


def test_doctor_runs_in_a_deleted_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: doctor ended with an error that named neither file nor folder."""
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert machine_checks.source_tree().state == "ok"


def test_doctor_reports_that_the_brokers_do_not_reach_zookeeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: while ZooKeeper was hung, every check of the cluster said that all was well."""
    admin = SimpleNamespace(broker_reports=lambda: [BrokerReport(0, (), metadata_age_s=30.0)])
    monkeypatch.setattr(cluster_checks, "_admin", lambda _: nullcontext(admin))
    finding = cluster_checks.znodes(ChosenCluster())
    assert finding.state == "critical" and "not reached by broker 0 for 30 s" in finding.found
