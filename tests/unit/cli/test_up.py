"""Tests of ``logbus up`` with a simulated cluster: its background process, and signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from broker_lite.cli import up
from broker_lite.cli.main import EXIT_INTERRUPTED, run

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before):
        signal.signal(number, handler)


class Starting:
    """Simulates a cluster that sends this process a signal during its start and its stop."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.is_stopped = False

    def __enter__(self) -> None:
        try:
            os.kill(os.getpid(), self._number)
            raise AssertionError("the start continued after the signal")
        finally:
            os.kill(os.getpid(), self._number)
            self.is_stopped = True

    def __exit__(self, *_: Any) -> None:
        raise AssertionError("a cluster that has not started was left")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, EXIT_INTERRUPTED)]
)
def test_signal_during_command_up_ends_the_start_and_stops_the_cluster(
    number: int, code: int
) -> None:
    cluster = Starting(number)
    ended = up._run_until_stopped(cluster, None, None, console=False)  # type: ignore[arg-type]
    assert ended == code
    assert cluster.is_stopped


def test_command_up_with_combined_options_dn_detaches_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: with ``up -dn 3`` the background process detached again, and so did the next."""
    started: list[int] = []

    def cluster(brokers: int, **_: Any) -> None:
        started.append(brokers)

    monkeypatch.setattr("broker_lite.local.cluster.LocalCluster", cluster)
    monkeypatch.setattr(up, "_run_until_stopped", lambda *_, **__: 0)
    monkeypatch.setattr(up, "_detach", lambda _: pytest.fail("the process detached again"))
    assert run(["up", "-dn", "3", "--ephemeral", "--ready-fd", "9"]) == 0
    assert started == [3]


def test_command_up_under_nohup_keeps_sighup_ignored() -> None:
    """Regression: the end of the terminal stopped a cluster that was started with nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    up._run_until_stopped(Starting(signal.SIGTERM), None, None, console=False)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "::"), True),
        (("--host", "0.0.0.0", "-c", "advertised.host=bus1"), False),
        ((), False),
    ],
)
def test_command_up_warns_of_an_advertised_address_that_other_machines_cannot_use(
    words: tuple[str, ...],
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression: only the broker's log had this warning, while clients of other machines
    failed."""
    monkeypatch.setattr(up, "_detach", lambda _: 0)
    assert run(["up", "-d", "--ephemeral", "--insecure", *words]) == 0
    assert ("add: -c advertised.host=NAME" in capsys.readouterr().err) == is_warned


def test_command_up_recognises_its_running_cluster_on_an_ipv6_address() -> None:
    """Regression: the command took ::1 and [::1] for different addresses: "cannot change to
    --host ::1 (it has [::1])"."""
    context = click.Context(up.up)
    up.up.parse_args(context, ["-d", "--host", "::1"])
    facts = {
        "bootstrap_servers": "[::1]:9092",
        "brokers": [{"port": 9092}],
        "zookeeper": "127.0.0.1:2181/logbus",
        "directory": "/d",
    }
    up._require_same(context, facts)


def test_command_up_with_an_unwritable_home_folder_offers_the_option_ephemeral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(up.up, ["-d"])
    assert done.exit_code == 1
    assert "cannot be created" in done.output and "--ephemeral" in done.output
