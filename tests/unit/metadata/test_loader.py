"""Notices: which topics to read again, and when only reading everything helps."""

from __future__ import annotations

from broker_lite.metadata.loader import Notices, merge_notices
from broker_lite.metadata.znodes import Change


def test_notices_after_the_last_one_seen_are_merged() -> None:
    notices = Notices(
        5,
        (
            Change(2, {"old": None}),
            Change(3, {"t": (0,), "u": (1,)}),
            Change(4, {"t": (2,), "u": None}),
            Change(5, {"u": (3,)}),
        ),
    )
    assert merge_notices(notices, 2) == ({"t": frozenset((0, 2)), "u": None}, False)
    assert merge_notices(notices, 4) == ({"u": frozenset((3,))}, False)
    assert merge_notices(notices, 5) == ({}, False)


def test_a_missing_notice_means_reading_everything() -> None:
    notices = Notices(5, (Change(4, {"t": None}), Change(5, {"t": None})))
    assert merge_notices(notices, 2) is None
    assert merge_notices(Notices(5, (Change(3, {}), Change(5, {}))), 2) is None


def test_a_notice_without_topics_is_about_the_cluster() -> None:
    assert merge_notices(Notices(1, (Change(1, {}),)), 0) == ({}, True)
