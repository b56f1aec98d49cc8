"""Check that ``History``, the record of sent and read records, detects and names each kind of
anomaly.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from faults.history import History, Sent

Rows = list[tuple[int, bytes]]


def history(values: Sequence[bytes]) -> tuple[History, list[Sent]]:
    """Return a history of one writer whose values in partition 0 were all acknowledged."""
    made = History()
    sent = [made.send("w", 0, value) for value in values]
    for offset, row in enumerate(sent):
        made.acked(row, offset)
    return made, sent


def kinds(made: History, rows: Rows) -> set[str]:
    return {line.partition(":")[0] for line in made.anomalies({0: rows})}


GOOD: Rows = [(0, b"a"), (1, b"b"), (2, b"c")]


def test_history_check_finds_no_anomaly_if_the_logs_hold_every_acknowledged_record() -> None:
    made, _ = history([b"a", b"b", b"c"])
    made.saw("r", 0, 0, 0, b"a")
    assert kinds(made, GOOD) == set()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (GOOD[:2], {"lost"}),
        ([*GOOD, (3, b"a")], {"doubled"}),
        ([(0, b"a"), (1, b"c"), (2, b"b")], {"moved"}),
        ([*GOOD, (3, b"x")], {"unexpected"}),
        ([*GOOD[:2], (3, b"c")], {"gap", "moved"}),
    ],
)
def test_history_check_detects_lost_duplicated_and_reordered_records_in_a_log(
    rows: Rows, found: set[str]
) -> None:
    made, _ = history([b"a", b"b", b"c"])
    assert kinds(made, rows) == found


def test_history_check_detects_records_that_were_acknowledged_out_of_order() -> None:
    made = History()
    first, second = made.send("w", 0, b"a"), made.send("w", 0, b"b")
    made.acked(first, 1)
    made.acked(second, 0)
    assert kinds(made, [(0, b"b"), (1, b"a")]) == {"reordered"}


def test_history_check_detects_a_new_record_acknowledged_at_an_old_offset() -> None:
    made, _ = history([b"a", b"b"])
    late = made.send("v", 0, b"c")
    made.acked(late, 1)
    assert "stale" in kinds(made, [(0, b"a"), (1, b"b"), (2, b"c")])


def test_history_check_detects_a_record_that_was_read_and_then_lost() -> None:
    made, _ = history([b"a"])
    made.send("w", 0, b"b")
    made.saw("r", 0, 0, 0, b"a")
    made.saw("r", 0, 1, 1, b"b")
    assert kinds(made, [(0, b"a")]) == {"uncommitted"}


def test_history_check_detects_readers_that_disagree_or_skip_records() -> None:
    made, _ = history([b"a", b"b", b"c"])
    made.saw("r", 0, 0, 0, b"a")
    made.saw("q", 0, 0, 0, b"b")
    made.saw("r", 0, 2, 1, b"c")
    made.saw("r", 0, 2, 3, b"c")
    assert {"inconsistent", "skipped", "read again"} <= kinds(made, GOOD)
