"""Tests of the exit code and messages of ``logbus lag`` for exceeded limits and unknown lags."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from click.testing import CliRunner

from broker_lite.cli import lag as lag_command
from broker_lite.cli.lag import _by_topic, over, unknown, verdict
from broker_lite.errors import RequestTimedOutError


def row(partition: int, lag: int | None, lag_s: float | None, topic: str = "t") -> dict[str, Any]:
    return {
        "group": "g", "topic": topic, "partition": partition, "lag": lag, "lag_s": lag_s
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "wanted", "limits", "code"),
    [
        ([row(0, 5, 1.0)], (), {}, 0),
        ([row(0, 5, 1.0)], (), {"lag": (5, 9)}, 0),
        ([row(0, 5, 1.0)], (), {"lag": (4, 9)}, 4),
        ([row(0, 5, 1.0), row(1, 5, 0)], ("g",), {"lag": (4, 9)}, 5),
        ([row(0, 5, 1.0), row(0, 9, 0, "u")], ("g",), {"lag": (None, 8)}, 5),
        # The lag of a partition without a leader is unknown, which exceeds every given limit.
        ([row(0, None, None), row(1, 10**6, 60.0)], (), {"lag": (5, 9)}, 5),
        ([row(0, None, None)], (), {"lag": (5, None)}, 4),
        ([row(0, None, None)], (), {}, 0),
        # A record without a timestamp makes only the lag in seconds unknown.
        ([row(0, 1, None), row(1, 1, 10**6)], (), {"lag_s": (None, 60.0)}, 5),
        ([row(0, 1, None)], (), {"lag": (1, 1)}, 0),
        ([row(0, 1, None)], (), {"lag": (0, 1), "lag_s": (60.0, None)}, 4),
        # The group ``stuck`` is requested, but it has neither commits nor members.
        ([row(0, 0, 0)], ("g", "stuck"), {"lag": (None, 9)}, 5),
        ([], ("stuck",), {"lag_s": (9.0, None)}, 4),
        ([], ("stuck",), {}, 0),
        ([], (), {"lag": (0, 0)}, 0),
    ],
)
def test_exit_code_of_command_lag_treats_an_unknown_lag_as_above_every_limit(
    rows: list[dict[str, Any]], wanted: tuple[str, ...], limits: dict[str, Any], code: int
) -> None:
    both = {"lag": (None, None), "lag_s": (None, None)} | limits
    assert verdict(_by_topic(rows), wanted, both) == code


def test_command_lag_names_each_group_and_topic_over_a_limit() -> None:
    """Exit code 5 alone does not tell which group and topic exceeded the limit."""
    totals = [row(0, 5, 1.5), row(0, 0, 0, "u"), row(0, 9, 75.2, "v"), row(0, None, None, "w")]
    assert list(over(totals, {"lag": (5, 100), "lag_s": (1.0, 60.0)})) == [
        "group 'g' in 't': a lag of 1.5 s is over --warn-s 1",
        "group 'g' in 'v': a lag of 9 records is over --warn 5",
        "group 'g' in 'v': a lag of 75.2 s is over --crit-s 60",
    ]


def test_command_lag_names_partitions_and_groups_with_an_unknown_lag() -> None:
    rows = [row(0, None, None), row(1, 3, None), row(2, 3, 1.0)]
    records = list(unknown(rows, ("g", "stuck"), {"lag": (1, None), "lag_s": (None, None)}))
    assert records == [
        "group 'g': the lag in t-0 is not known: it has no leader, or the topic was deleted",
        "group 'stuck': its lag is unknown: it has no commits and no reading members",
    ]
    seconds = list(unknown(rows, (), {"lag": (None, None), "lag_s": (None, 1.0)}))
    assert seconds[1] == (
        "group 'g': the lag in t-1 is not known in seconds: its first unread record "
        "has no timestamp"
    )
    # Without a limit, only partitions without a leader are reported.
    assert list(unknown(rows, ("stuck",), {"lag": (None, None), "lag_s": (None, None)})) == [
        records[0]
    ]


def test_command_lag_with_watch_reports_a_repeated_error_once_and_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker restart or a deleted topic must not end ``logbus lag --watch``."""
    looks = itertools.count()

    def look(*_: Any) -> list[dict[str, Any]]:
        match next(looks):
            case 1 | 2:
                raise RequestTimedOutError("broker 2 said nothing")
            case 4:
                raise KeyboardInterrupt
        return [row(0, 7, 1.0)]

    monkeypatch.setattr(lag_command, "_rows", look)
    monkeypatch.setattr(lag_command, "open_admin", lambda *_: contextlib.nullcontext())
    result = CliRunner().invoke(lag_command.lag, ["--watch", "--interval", "0", "-o", "json"])
    assert result.output.count("broker 2 said nothing; looking again") == 1
    assert result.output.count('"lag": 7') == 2
