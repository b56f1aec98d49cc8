"""Tests of how a query detects that records were lost."""

from __future__ import annotations

import pytest
from support.source_offsets import ends, live, offset

from broker_lite.model import TopicPartition
from pyspark_logbus import losses
from pyspark_logbus.admission import Admission, RangeLimits
from pyspark_logbus.query_options import Topics


def find_losses(start, now, topics=None, seen=()):
    return losses.find_losses(start, now, topics or Topics(names=tuple(start.topics)), dict(seen))


def test_unknown_end_offset_of_a_partition_counts_neither_as_loss_nor_as_new_data():
    start = offset({"t": [5, 6]})
    now = live({"t": [-1, 9, -1]})
    assert find_losses(start, now) == []
    assert not now.is_complete()
    assert ends(Admission(RangeLimits()).next_end(0, start, now.offset())) == [5, 9]


def test_lost_range_of_a_deleted_topic_ends_at_its_last_known_end_offset():
    found = find_losses(offset({"t": [5]}), live({}), seen={"id-t": {0: 8}})
    assert [(loss.first, loss.end, loss.rows) for loss in found] == [(5, 8, 3)]
    assert "t-0 [5, 8)" in str(found[0])


def test_error_for_data_loss_names_the_lost_offset_ranges():
    start = offset({"gone": [3], "new": [4], "less": [5, 6], "fine": [7], "short": [8]})
    now = live({"new": [9], "less": [5], "fine": [7], "short": [2]}, ids={"new": "other"})
    found = {(loss.kind, loss.topic, loss.partition): loss for loss in find_losses(start, now)}
    assert set(found) == {
        ("gone", "gone", 0),
        ("recreated", "new", 0),
        ("gone", "less", 1),
        ("regressed", "short", 0),
    }
    regressed = found["regressed", "short", 0]
    assert (regressed.first, regressed.end, regressed.rows) == (2, 8, 6)
    message = str(losses.data_loss(found.values()))
    assert message.startswith("[LOGBUS_DATA_LOSS]")
    for said in ("offset was changed from 8 to 2", "id-new, now other", "failOnDataLoss=false"):
        assert said in message


@pytest.mark.parametrize(
    ("topics", "dropped"),
    [
        (Topics(names=("kept",)), [("left", 0), ("left", 1)]),
        (Topics(pattern="kep."), [("left", 0), ("left", 1)]),
        (
            Topics(partitions=(TopicPartition("kept", 0), TopicPartition("left", 1))),
            [("left", 0)],
        ),
    ],
)
def test_unsubscribed_partition_is_not_reported_as_deleted(topics, dropped):
    found = find_losses(offset({"kept": [3], "left": [5, 6]}), live({"kept": [3]}), topics)
    found = [loss for loss in found if loss.kind != "gone"]
    assert [(loss.kind, loss.topic, loss.partition) for loss in found] == [
        ("unsubscribed", *partition) for partition in dropped
    ]
    said = str(losses.data_loss(found))
    assert f"no longer subscribes to it, but to {topics.describe()}" in said
    assert "Subscribe to them again, or set failOnDataLoss=false to drop them" in said
    assert "gone" not in said
    assert "deleted" not in said


def test_recreated_topic_is_detected_even_if_the_new_log_is_longer():
    start = offset({"t": [5]})
    now = live({"t": [500]}, ids={"t": "other"})
    assert [loss.kind for loss in find_losses(start, now)] == ["recreated"]
