"""Tests of ``loss_of``, which tells whether a change of a topic's setting may delete records."""

from __future__ import annotations

import pytest

from broker_lite.config import loss_of


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("retention.ms", "604800000", "3600000"),
        ("retention.ms", "-1", "604800000"),
        ("retention.ms", "-1", None),
        ("retention.ms", None, "1"),
        ("retention.bytes", "-1", "1000"),
        ("retention.bytes", "not a number", "1000"),
        ("unclean.leader.election.enable", "false", "True"),
        ("unclean.leader.election.enable", None, "true"),
    ],
)
def test_topic_setting_change_that_may_delete_records_is_reported(
    key: str, before: str | None, after: str
) -> None:
    assert loss_of(key, before, after)


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("retention.ms", "3600000", "604800000"),
        ("retention.ms", "3600000", None),
        ("retention.ms", "604800000", None),
        ("retention.ms", "604800000", "-1"),
        ("retention.bytes", "1000", None),
        ("retention.bytes", "1000", "1000"),
        ("unclean.leader.election.enable", "true", "false"),
        ("unclean.leader.election.enable", "true", None),
        ("segment.ms", "604800000", "1000"),
    ],
)
def test_topic_setting_change_that_keeps_all_records_is_not_reported(
    key: str, before: str, after: str | None
) -> None:
    assert loss_of(key, before, after) == ""
