"""Test ``logbus up``, ``down``, ``status`` and LocalCluster: no process may be left running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hidden_packages import without
from support.patience import PATIENCE_S, until

from broker_lite.cli import supervisor
from broker_lite.cli.main import EXIT_INTERRUPTED
from broker_lite.client import discovery
from broker_lite.client.administration.admin import Admin
from broker_lite.errors import (
    BrokerNotAvailableError,
    DirectoryLockedError,
    InvalidConfigError,
    LogbusError,
    PortInUseError,
)
from broker_lite.local.cluster import LocalCluster, first_free_ports, require_free_port
from broker_lite.local.process import start_mark
from broker_lite.server.log_limits import FILE_BYTES_MAX

Logbus = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def logbus(tmp_path: Path) -> Iterator[Logbus]:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "data"), "TMPDIR": str(tmp_path)}

    def run(*arguments: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment | variables,
            cwd=tmp_path,
            timeout=100,
        )
        assert done.returncode == code, done.stderr
        return done

    yield run
    records = (tmp_path / "data/logbus/clusters").glob("*.json")
    for directory in [json.loads(path.read_text())["directory"] for path in records]:
        subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", "down", "--dir", directory],
            capture_output=True,
            env=environment,
            check=False,
            timeout=100,
        )


def are_gone(facts: dict[str, Any]) -> bool:
    return all(start_mark(int(pid)) != mark for pid, mark in facts["processes"].items())


def up(logbus: Logbus, *arguments: str) -> dict[str, Any]:
    """Start a cluster with ``logbus up``; return what is recorded in the cluster's folder, such as
    ports and pids."""
    return recorded(Path(json.loads(logbus("up", *arguments).stdout)["directory"]))


def recorded(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "cluster.json").read_text())
    return found


def test_commands_up_status_and_down_manage_a_cluster(logbus: Logbus, tmp_path: Path) -> None:
    facts = up(logbus, "-d", "-n", "2", "--port", "0")
    assert facts == json.loads((tmp_path / "data/logbus/cluster/cluster.json").read_text())
    assert len(facts["brokers"]) == 2
    assert set(facts["brokers"][0]) == {"id", "port", "pid", "metrics_port"}
    assert facts["zookeeper"].endswith("/logbus")
    status = json.loads(logbus("status").stdout)
    assert status["running"] == 2
    assert all(broker["running"] for broker in status["brokers"])
    assert all(isinstance(broker["memory_bytes"], int) for broker in status["brokers"])
    # Other commands find the cluster without an option.
    logbus("topic", "create", "t", "-p", "2")
    again = logbus("up", "-d", "-n", "2", "--port", "0")
    assert f"the cluster runs already, at {facts['bootstrap_servers']}" in again.stderr
    told = json.loads(again.stdout)
    assert told.items() <= facts.items() and "processes" not in told
    assert up(logbus, "-d") == facts
    unlike = logbus("up", "-d", "-n", "3", "-c", "retention.ms=1", code=1).stderr
    assert "DIRECTORY_LOCKED" in unlike and "--brokers 3 (it has 2), --config ret" in unlike
    assert "DIRECTORY_LOCKED" in logbus("up", code=1).stderr
    status = json.loads(logbus("status").stdout)
    assert (status["partitions"], status["leaderless"]) == (2, 0)
    assert sum(broker["leaders"] for broker in status["brokers"]) == 2
    assert [broker["replicas"] for broker in status["brokers"]] == [2, 2]
    logbus("down")
    assert are_gone(facts)
    assert "logbus up" in logbus("status", code=3).stderr
    assert "logbus up" in logbus("down", code=3).stderr
    # Adding a broker keeps the data. ``up`` reports topics with fewer replicas than the default.
    grown = logbus("up", "-d", "-n", "3", "--port", "0")
    assert json.loads(logbus("topic", "list").stdout)["topic"] == "t"
    cure = "topic reassign t --replication-factor 3"
    assert "1 topic has fewer replicas than the 3 that a new one gets: t. To move" in grown.stderr
    assert f"logbus {cure}\n" in grown.stderr
    moved = [json.loads(line) for line in logbus(*cure.split(), "--yes").stdout.splitlines()]
    assert [len(row["to"]) for row in moved] == [3, 3]


def test_every_process_ends_after_command_up_is_killed(logbus: Logbus, tmp_path: Path) -> None:
    facts = up(logbus, "-d", "-n", "2", "--port", "0")
    logbus("topic", "create", "orders")
    os.kill(facts["pid"], signal.SIGKILL)
    until(lambda: are_gone(facts))
    status = logbus("status", code=3)
    assert json.loads(status.stdout)["running"] == 0
    assert "not running" in logbus("down").stderr
    # The record of the killed cluster must not prevent a new start, which keeps the data.
    assert Path(facts["directory"], "broker-0", "data").is_dir()
    again = logbus("up", "-d", "--port", "0")
    # Without -n, all brokers of the folder start. The printed example uses the existing topic.
    assert len(json.loads(again.stdout)["brokers"]) == 2
    assert "has data of 2 brokers: all of them start" in again.stderr
    assert "Next:  ls -l | logbus produce orders\n" in again.stderr


def test_command_up_restarts_a_killed_process(logbus: Logbus, tmp_path: Path) -> None:
    facts = up(logbus, "-d", "-n", "2", "--port", "0", "--console")
    directory = Path(facts["directory"])
    later = up(logbus, "-d", "--ephemeral", "--port", "0")
    known = {facts["pid"], facts["zookeeper_pid"], *(row["pid"] for row in facts["brokers"])}
    (console,) = {int(pid) for pid in facts["processes"]} - known
    killed = [facts["brokers"][1]["pid"], facts["zookeeper_pid"], console]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: str(pid) not in recorded(directory)["processes"])
    new = recorded(directory)
    assert new["bootstrap_servers"] == facts["bootstrap_servers"]
    assert new["brokers"][0] == facts["brokers"][0]
    assert json.loads(logbus("status", "--dir", str(directory)).stdout)["running"] == 2
    said = (directory / "up.log").read_text()
    assert "broker 1 has ended (killed by SIGKILL); see" in said
    assert f"broker 1 serves again on 127.0.0.1:{facts['brokers'][1]['port']}" in said
    assert "ZooKeeper serves again on" in said
    until(lambda: "the console serves again on" in (directory / "up.log").read_text())
    assert new["console"] == facts["console"]
    with urllib.request.urlopen(facts["console"]) as page:
        assert page.status == 200
    # Commands without --dir use the cluster that was started last.
    assert json.loads(logbus("status").stdout)["directory"] == later["directory"]
    logbus("topic", "create", "t", "-p", "2", "-b", facts["bootstrap_servers"])
    logbus("down", "--dir", str(directory))
    assert are_gone(facts) and are_gone(new)
    assert json.loads(logbus("status").stdout)["directory"] == later["directory"]


def test_broker_that_fails_to_start_is_reported_and_retried(
    make_cluster: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_SECONDS", (0.0, 0.6))
    running = make_cluster(1)
    (broker,) = running.brokers
    said: list[str] = []
    keeping = supervisor.ProcessSupervisor(running, said.append)
    assert not keeping.check() and said == []
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    with taken(broker.port):
        until(lambda: keeping.check() or sum("did not start" in line for line in said) > 1)
    until(keeping.check)
    assert (
        said[0] == f"broker 0 has ended (killed by SIGKILL); see {broker.log}; it is started again"
    )
    failed = [line for line in said if "did not start" in line]
    assert f"port={broker.port} on host=127.0.0.1 is in use" in failed[0]
    assert all(line.endswith("it is started again in 1 s") for line in failed)
    assert said[-1] == f"broker 0 serves again on {broker.endpoint}"
    assert broker.is_running


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """Wait until the port is free; then listen on it until the ``with`` block ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            listener = socket.create_server(("127.0.0.1", port))
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with listener:
        yield


def test_temporary_folder_is_removed_after_command_up_was_killed(
    logbus: Logbus, tmp_path: Path
) -> None:
    facts = up(logbus, "-d", "--ephemeral", "--port", "0")
    folder = Path(facts["directory"])
    assert folder.parent == tmp_path and folder.is_dir()
    os.kill(facts["pid"], signal.SIGKILL)
    until(lambda: are_gone(facts))
    until(lambda: not folder.exists())


def test_command_up_listens_on_its_port_not_on_the_advertised_port(logbus: Logbus) -> None:
    (port,) = first_free_ports("127.0.0.1", 21000, 1)
    done = logbus(
        "up", "-d", "--ephemeral", "--port", str(port), "-c", f"advertised.port={port + 1}"
    )
    assert "is taken" not in done.stderr
    told = json.loads(done.stdout)
    assert [broker["port"] for broker in told["brokers"]] == [port]
    socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize("is_fixed", [False, True], ids=["any port", "fixed port"])
def test_command_up_prints_a_metrics_address_for_each_of_three_brokers(
    logbus: Logbus, is_fixed: bool
) -> None:
    first = first_free_ports("::1", 21200, 1)[0] if is_fixed else 0
    settings = ("-c", "metrics.host=::1", "-c", f"metrics.port={first}")
    done = logbus("up", "-d", "--ephemeral", "--brokers", "3", "--port", "0", *settings)
    ports = [broker["metrics_port"] for broker in json.loads(done.stdout)["brokers"]]
    assert len(set(ports)) == 3 and min(ports) >= first
    (line,) = (row for row in done.stderr.splitlines() if row.startswith("metrics:"))
    urls = line.split()[1:]
    assert urls == [f"http://[::1]:{port}/metrics" for port in ports]
    for number, url in enumerate(urls):
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert f'broker_id="{number}"' in answer.read().decode()


def test_commands_distinguish_clusters_by_their_directory(logbus: Logbus, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    first = up(logbus, "-d", "--port", "0", "--dir", one)
    second = up(logbus, "-d", "--port", "0", "--dir", two)
    # Without --dir, ``status`` shows the newest cluster and mentions the other cluster.
    status = logbus("status")
    assert json.loads(status.stdout)["directory"] == two
    assert "also running: --dir one\n" in status.stderr
    for directory, facts in ((one, first), (two, second)):
        named = logbus("status", "--dir", directory)
        assert json.loads(named.stdout)["bootstrap_servers"] == facts["bootstrap_servers"]
        assert "also" not in named.stderr
    refused = logbus("down", code=2).stderr
    assert "--dir one, --dir two" in refused
    assert "these run: --dir one, --dir two" in logbus("status", "--dir", "no", code=3).stderr
    # After the newest cluster is stopped, commands use the earlier cluster.
    ended = json.loads(logbus("down", "--dir", two, "-o", "json").stdout)
    assert ended == [{"directory": two, "stopped": True}]
    stopped = logbus("status", "--dir", two, code=3).stderr
    assert "is stopped, its data stay; start it with: logbus up --dir two\n" in stopped
    assert are_gone(second)
    assert json.loads(logbus("status").stdout)["directory"] == one
    logbus("topic", "create", "t")
    logbus("down")
    assert are_gone(first)
    logbus("status", code=3)


def test_command_status_exits_with_3_if_the_brokers_do_not_answer(logbus: Logbus) -> None:
    """Regression: the exit code was 0 while every broker was hung."""
    (broker,) = json.loads(logbus("up", "-d", "--port", "0").stdout)["brokers"]
    os.kill(broker["pid"], signal.SIGSTOP)
    try:
        status = logbus("status", code=3)
    finally:
        os.kill(broker["pid"], signal.SIGCONT)
    assert "the brokers do not answer" in status.stderr
    assert json.loads(status.stdout)["running"] == 1


def test_command_status_skips_a_newer_cluster_that_was_killed(
    logbus: Logbus, tmp_path: Path
) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    first = up(logbus, "-d", "--port", "0", "--dir", one)
    second = up(logbus, "-d", "--port", "0", "--dir", two)
    os.kill(second["pid"], signal.SIGKILL)
    until(lambda: are_gone(second))
    assert json.loads(logbus("status").stdout)["directory"] == one
    logbus("down")
    assert are_gone(first)


def test_command_up_starts_although_it_cannot_store_the_address_for_later_commands(
    logbus: Logbus, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    done = logbus("up", "-d", "--ephemeral", "--port", "0")
    facts = recorded(Path(json.loads(done.stdout)["directory"]))
    assert f"export LOGBUS_BOOTSTRAP_SERVERS={facts['bootstrap_servers']}" in done.stderr
    assert done.stderr.rstrip().endswith(f"logbus down --dir {Path(facts['directory']).name}")
    logbus("down", "--dir", facts["directory"])
    assert are_gone(facts)


def test_command_down_does_not_kill_another_process_that_has_reused_a_recorded_pid(
    logbus: Logbus, tmp_path: Path
) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        record = tmp_path / "data/logbus/last-cluster.json"
        record.parent.mkdir(parents=True)
        record.write_text(
            json.dumps(
                {
                    "bootstrap_servers": "127.0.0.1:1",
                    "zookeeper": "127.0.0.1:1/logbus",
                    "brokers": [{"id": 0, "port": 1, "pid": stranger.pid}],
                    "directory": str(tmp_path),
                    "pid": stranger.pid,
                    "processes": {str(stranger.pid): "another start"},
                }
            )
        )
        assert "not running" in logbus("down").stderr
        assert stranger.poll() is None
        assert not record.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_command_up_in_the_foreground_ends_on_a_signal_and_deletes_its_data(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    up = subprocess.Popen(
        [sys.executable, "-P", "-m", "broker_lite", "up", "--ephemeral", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert up.stdout is not None and up.stderr is not None
    facts = recorded(Path(json.loads(up.stdout.readline())["directory"]))
    assert Path(facts["directory"]).is_dir()
    up.send_signal(signal.SIGINT)
    said = up.communicate(timeout=60)[1]
    assert (up.returncode, said.splitlines()[-1]) == (EXIT_INTERRUPTED, "Stopping."), said
    assert are_gone(facts)
    assert not Path(facts["directory"]).exists()
    assert not (tmp_path / "logbus" / discovery.LAST_CLUSTER).exists()


def test_command_up_refuses_a_requested_port_that_is_in_use(logbus: Logbus, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for how in ((), ("-d",)):
            said = logbus("up", *how, "--port", port, code=1).stderr
            assert f"PORT_IN_USE] port {port} on 127.0.0.1 is taken" in said
            assert "give another --port" in said
    facts = up(logbus, "-d", "--port", "0")
    own = str(facts["brokers"][0]["port"])
    said = logbus("up", "-d", "--port", own, "--dir", str(tmp_path / "other"), code=1).stderr
    assert "logbus status --dir data/logbus/cluster" in said


def test_command_up_refuses_an_address_of_another_machine_with_the_reason(logbus: Logbus) -> None:
    """Regression: without --port, the search for free ports failed, and the error said only that
    none is free."""
    for more in ((), ("--port", "9")):
        said = logbus("up", "--insecure", "--host", "203.0.113.1", *more, code=1).stderr
        assert "cannot listen on host 203.0.113.1 port 9" in said
        assert "the address is not of this machine" in said


def test_command_up_prints_an_ipv6_address_in_brackets(logbus: Logbus) -> None:
    facts = up(logbus, "-d", "--host", "::1", "--port", "0")
    port = facts["brokers"][0]["port"]
    assert facts["bootstrap_servers"] == f"[::1]:{port}"
    logbus("topic", "create", "t")


def test_brokers_whose_ports_are_in_use_get_the_next_free_ports_and_report_them(
    logbus: Logbus,
) -> None:
    with before_a_taken_port() as port:
        done = logbus("up", "-d", "-n", "2", "--port", str(port))
    ports = [broker["port"] for broker in json.loads(done.stdout)["brokers"]]
    assert ports[0] == port
    assert port + 1 < ports[1] <= port + 50
    assert f"port {port + 1} is taken: broker 1 has port {ports[1]}" in done.stderr


@contextlib.contextmanager
def before_a_taken_port() -> Iterator[int]:
    """Yield a free port whose next port number is in use."""
    with contextlib.ExitStack() as stack:
        while True:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = taken.getsockname()[1] - 1
            with contextlib.suppress(PortInUseError):
                require_free_port("127.0.0.1", port)
                break
        yield port


def test_brokers_use_the_first_free_ports(make_cluster: Callable[..., LocalCluster]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = [broker.port for broker in make_cluster(2, port=port).brokers]
    assert port < ports[0] < ports[1] <= port + 50


def test_cluster_can_use_an_existing_zookeeper(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    first = make_cluster(1, own_zookeeper=True)
    assert first.zookeeper_server is not None
    other_chroot = f"{first.zookeeper_server.address}/other/place"
    with LocalCluster(1, directory=tmp_path / "second", zookeeper=other_chroot) as second:
        assert second.zookeeper_server is None
        assert second.zookeeper == other_chroot
        with Admin(second.bootstrap_servers) as admin, Admin(first.bootstrap_servers) as other:
            assert admin.cluster().cluster_id != other.cluster().cluster_id


def test_broker_refuses_a_data_folder_of_another_cluster(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    first = make_cluster(1, own_zookeeper=True)
    first.brokers[0].stop()
    assert first.zookeeper_server is not None
    foreign = f"{first.zookeeper_server.address}/foreign"
    with pytest.raises(LogbusError, match="INCONSISTENT_CLUSTER_ID"):
        (tmp_path / "copy").mkdir()
        os.rename(first.directory / "broker-0", tmp_path / "copy" / "broker-0")
        LocalCluster(1, directory=tmp_path / "copy", zookeeper=foreign).start()


def test_restarted_broker_keeps_its_port(make_cluster: Callable[..., LocalCluster]) -> None:
    running = make_cluster(2)
    ports = [broker.port for broker in running.brokers]
    for ending in ("stop", "kill"):
        getattr(running.brokers[1], ending)()
        assert running.brokers[1].pid is None
        running.brokers[1].start()
        assert [broker.port for broker in running.brokers] == ports
    with Admin(running.bootstrap_servers) as admin:
        until(lambda: len(admin.cluster().brokers) == 2)


def test_log_file_of_a_broker_process_is_rotated_at_its_size_limit(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    [broker] = make_cluster(1).brokers
    broker.stop()
    os.truncate(broker.log, FILE_BYTES_MAX)
    broker.start()
    broker.stop()
    assert Path(f"{broker.log}.1").stat().st_size > FILE_BYTES_MAX
    assert 0 < broker.log.stat().st_size < FILE_BYTES_MAX


def test_invalid_setting_is_reported_by_the_broker(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"max.connection.*did you mean"):
        LocalCluster(1, directory=tmp_path / "c", config={"max.connection": "1"})
    with pytest.raises(InvalidConfigError, match=r"topic create NAME -c retention.ms=3"):
        LocalCluster(1, directory=tmp_path / "c", config={"retention.mss": "3"})
    assert not (tmp_path / "c").exists()
    with pytest.raises(InvalidConfigError, match=re.escape("log.dir is set by LocalCluster")):
        LocalCluster(1, config={"log.dir": "/elsewhere"})
    with pytest.raises(InvalidConfigError, match="give 1 to"):
        LocalCluster(0)


@pytest.mark.parametrize("place", ["/proc/logbus", "{file}/below", "{file}"])
def test_error_of_command_up_names_an_unusable_data_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = place.format(file=tmp_path / "file")
    with pytest.raises(InvalidConfigError, match=f"cannot store data in {directory}: .*--dir"):
        LocalCluster(1, directory=directory).start()


def test_error_of_command_up_names_an_unusable_broker_folder(tmp_path: Path) -> None:
    (tmp_path / "broker-0").write_text("a file where the broker's folder should be")
    with pytest.raises(InvalidConfigError, match=r"cannot store data in .*broker-0"):
        LocalCluster(1, directory=tmp_path).start()


def test_command_up_reports_a_problem_with_its_data_folder(logbus: Logbus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for how in ((), ("-d",)):
        said = logbus("up", *how, "--dir", str(tmp_path / "file/below"), code=1).stderr
        assert said.startswith("Error: [LOGBUS_INVALID_CONFIG] cannot store data in"), said
        assert "Traceback" not in said


def test_error_names_the_requested_port_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        named = LocalCluster(1, directory=tmp_path, port=port, exact_port=True)
        with pytest.raises(PortInUseError, match=str(port)):
            named.start()
        # Simulate another process that takes the port after the check.
        checks = [lambda *_: None, require_free_port]
        cluster = "broker_lite.local.cluster"
        monkeypatch.setattr(f"{cluster}.require_free_port", lambda *to: checks.pop(0)(*to))
        monkeypatch.setattr(f"{cluster}.first_free_ports", lambda *_, **__: [port])
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is taken"):
            LocalCluster(1, directory=tmp_path, port=port, exact_port=True).start()
        assert not checks


def test_port_taken_after_the_check_for_free_ports_is_replaced_by_another_port(
    make_cluster: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        late = [[one.getsockname()[1]] * 2, [two.getsockname()[1]] * 2]

        def find(host: str, first: int, count: int, *, but: Collection[int] = ()) -> list[int]:
            return late.pop(0) if late else first_free_ports(host, first, count, but=but)

        monkeypatch.setattr("broker_lite.local.cluster.first_free_ports", find)
        running = make_cluster(2, port=21000, config={"metrics.port": "21100"})
        assert not late
        ports = [broker.port for broker in running.brokers]
        assert ports[0] > one.getsockname()[1] and ports[1] not in (ports[0], one.getsockname()[1])
    assert len({broker.metrics_port for broker in running.brokers}) == 2
    assert json.loads((running.directory / "cluster.json").read_text())["brokers"] == [
        {"id": broker.id, "port": port, "pid": broker.pid, "metrics_port": broker.metrics_port}
        for broker, port in zip(running.brokers, ports, strict=True)
    ]


def test_directory_cannot_be_used_by_two_clusters(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    running = make_cluster(1)
    with pytest.raises(DirectoryLockedError, match="logbus down"):
        LocalCluster(1, directory=running.directory).start()


def test_broker_that_never_becomes_ready_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_lite.local.broker.START_TIMEOUT_SECONDS", 0.0)
    running = LocalCluster(1, directory=tmp_path)
    with pytest.raises(BrokerNotAvailableError, match="not ready within"):
        running.start()
    assert running.brokers[0].pid is None


def test_search_for_free_ports_fails_above_port_65535() -> None:
    assert first_free_ports("127.0.0.1", 0, 3) == [0, 0, 0]
    with pytest.raises(InvalidConfigError, match="another --port"):
        first_free_ports("127.0.0.1", 65535, 2)


def test_broker_without_uvloop_logs_once_which_extra_to_install(
    logbus: Logbus, tmp_path: Path
) -> None:
    arguments = ["up", "-d", "-n", "1", "--port", "0"]
    with_uvloop = logbus(*arguments)
    assert "uvloop is " not in with_uvloop.stderr
    log = Path(json.loads(with_uvloop.stdout)["directory"]) / "broker-0" / "broker.log"
    assert "uvloop is " not in log.read_text()
    logbus("down")
    found = logbus(*arguments, **without(tmp_path / "hidden", "uvloop"))
    for said in (found.stderr, log.read_text()):
        assert said.count("uvloop is ") == 1
        assert said.count("pip install 'pyspark-logbus[broker]'") == 1


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("kafka", "broker", ()),
        ("prometheus_client", "broker", ("-c", "metrics.port=0")),
        ("h11", "broker", ("-c", "metrics.port=0")),
        ("cryptography", "broker", ("--secure",)),
        ("starlette", "console", ("--console",)),
    ],
)
def test_command_up_without_an_extra_names_its_pip_command_in_one_line(
    logbus: Logbus, tmp_path: Path, package: str, extra: str, words: tuple[str, ...]
) -> None:
    hidden = without(tmp_path / "hidden", package)
    done = logbus("up", "-d", "-n", "1", "--port", "0", *words, code=1, **hidden)
    (line,) = (row for row in done.stderr.splitlines() if "LOGBUS_MISSING_DEPENDENCY" in row)
    assert package in line and line.endswith(f"pip install 'pyspark-logbus[{extra}]'")
    assert "Traceback" not in done.stderr
    assert "logbus up" in logbus("status", code=3).stderr
