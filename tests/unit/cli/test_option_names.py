"""Tests that command-line errors name the command's options instead of Python's parameters."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from broker_lite.cli.consume import consume
from broker_lite.cli.main import run
from broker_lite.cli.mirror import mirror
from broker_lite.cli.option_names import spellings_of, spelt
from broker_lite.cli.produce import produce
from broker_lite.cli.topic import create
from broker_lite.client.discovery import resolve
from broker_lite.client.membership.machine import explained
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    LogbusError,
    NoClusterError,
)

MEMBER = MemberConfig(group_instance_id="reader 7", session_timeout_ms=5000)


def refusal(error: type[LogbusError]) -> str:
    return explained(error(), "g", MEMBER).message


def test_group_error_that_has_a_message_of_its_own_is_returned_unchanged() -> None:
    error = InvalidRequestError("JoinGroupRequest cannot be sent")
    assert explained(error, "g", MEMBER) is error


@pytest.mark.parametrize(
    ("command", "message", "told"),
    [
        (
            consume,
            refusal(FencedInstanceIdError),
            "another consumer joined group 'g' as --instance 'reader 7' and has its partitions; "
            "give each consumer its own",
        ),
        (
            consume,
            refusal(InvalidSessionTimeoutError),
            "-X session.timeout.ms=5000 is not between the brokers' "
            "group.min.session.timeout.ms and group.max.session.timeout.ms",
        ),
        (
            mirror,
            refusal(InvalidSessionTimeoutError),
            "--session-timeout-ms 5000 is not between the brokers' "
            "group.min.session.timeout.ms and group.max.session.timeout.ms",
        ),
        (
            consume,
            refusal(InconsistentGroupProtocolError),
            "group 'g' has members that support none of -X partition.assignment.strategy="
            "range,cooperative-sticky, or it is a native group; give a strategy that they "
            "support, or another group",
        ),
        (
            consume,
            refusal(InvalidRequestError),
            "the coordinator of group 'g' refused the subscription, which has more than 256 KiB of "
            "topic names, counted once for each of -X partition.assignment.strategy="
            "range,cooperative-sticky; subscribe to fewer topics, or give one strategy",
        ),
        (
            consume,
            "topic 't' partition 0 offset 5: crc is wrong; to skip it, set on_corrupt='skip'",
            "topic 't' partition 0 offset 5: crc is wrong; to skip it, set --skip-corrupt",
        ),
        (
            produce,
            "linger.ms=-5: give at least 0",
            "--linger-ms -5: give at least 0",
        ),
        (
            produce,
            "idempotence=True needs acks='all', not acks='1'",
            "-X enable.idempotence=True needs --acks all, not --acks 1",
        ),
        (
            produce,
            "t-0: not acknowledged within delivery.timeout.ms=120000 (failures: 3). "
            "Start the broker, or raise delivery.timeout.ms to wait longer",
            "t-0: not acknowledged within -X delivery.timeout.ms=120000 (failures: 3). "
            "Start the broker, or raise -X delivery.timeout.ms to wait longer",
        ),
        (
            create,
            "compression.type='gzip': give one of none, lz4, zstd",
            "compression.type='gzip': give one of none, lz4, zstd",
        ),
        (
            produce,
            "the acks=all, compression and zookeeper of x.linger.ms, linger.ms.y and my-linger.ms",
            "the --acks all, compression and zookeeper of x.linger.ms, linger.ms.y and "
            "my-linger.ms",
        ),
    ],
)
def test_errors_name_client_settings_by_the_command_line_option(
    command: click.Command, message: str, told: str
) -> None:
    assert spelt(message, spellings_of(command)) == told


def test_error_for_no_cluster_or_two_clusters_names_the_command_line_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for command in (consume, create):
        spellings = spellings_of(command)
        with pytest.raises(NoClusterError) as none:
            resolve()
        assert "give --bootstrap-servers host:port, set" in spelt(none.value.message, spellings)
        with pytest.raises(InvalidConfigError) as both:
            resolve("a:1", "b:2")
        said = spelt(both.value.message, spellings)
        assert said.startswith("--bootstrap-servers a:1 and --zookeeper b:2 both name a cluster")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "list", "-b", "a:b"], "--bootstrap-servers a:b: give host:port"),
        (["mirror", "--from", "a:b", "--to", "c"], "--from a:b: give host:port"),
        (["mirror", "--from", "a", "--to", "c:d"], "--to c:d: give host:port"),
        (["mirror", "--from", "a", "-b", "c:d"], "--bootstrap-servers c:d: give host:port"),
        (["produce", "t", "-b", "a", "--linger-ms", "-5"], "--linger-ms -5: give at least 0"),
        (["produce", "t", "-b", "a", "-X", "linger=1"], "did you mean '--linger-ms'"),
        (["produce", "t", "-b", "a", "-X", "batch.size=x"], "-X batch.size=x: give a whole number"),
        (["consume", "t", "-b", "a", "-X", "session.timeout.ms=1"], "-X session.timeout.ms is for"),
        (["groups", "list", "-b", "a", "-r", "["], "--regex: '[' is not a regular expression"),
    ],
)
def test_command_line_errors_name_the_options_of_their_own_command(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) in (1, 2)
    assert said in capsys.readouterr().err


def test_error_names_the_environment_variable_that_gave_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", "a:b")
    assert run(["topic", "list"]) == 1
    assert "LOGBUS_BOOTSTRAP_SERVERS='a:b': give host:port" in capsys.readouterr().err
