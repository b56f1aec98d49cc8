"""Test how a query commits its progress as offsets of its consumer group. A *lease* in the group
names the query that may commit, and an expiry time.
"""

from __future__ import annotations

import pytest
from support.patience import until
from support.spark_planning import ends, fails, fill, rows, step

from broker_lite.client.administration.query_lease import lease_of
from broker_lite.errors import DataLossError, GroupLeaseHeldError
from broker_lite.model import CommittedOffset, TopicPartition
from pyspark_logbus import group_progress, offset_reader


def test_progress_of_a_batch_is_committed_when_the_next_batch_is_planned(planner, bus, make_topic):
    topic = make_topic(4, 2)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    plan.latest_offset(end, unlimited=False)
    group = offset_reader.default_group(plan.options, start["cluster"])
    assert group.startswith("spark-")
    offsets = until(
        lambda: bus.admin.committed(group),
        lambda rows: [rows[w].offset for w in sorted(rows)] == [4, 2],
    )
    assert all(lease_of(row.metadata)[0] for row in offsets.values())
    assert until(plan.report, lambda report: report["groupState"] == "published")["group"] == group
    plan.stop()
    rows_left = bus.admin.committed(group)
    assert all(not lease_of(row.metadata)[0] for row in rows_left.values())


def test_restarted_query_commits_despite_the_unexpired_group_lease_of_its_previous_run(
    planner, bus, make_topic
):
    """Spark ends a run by killing its planner, which then cannot release the lease."""
    topic = make_topic(4)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    first = planner(**given)
    at = step(first, first.initial_offset())
    first.latest_offset(at, unlimited=False)
    group = until(first.report, lambda report: report["groupState"] == "published")["group"]
    fill(bus, topic, 3)
    following = planner(**given)  # The first planner still holds its lease.
    following.prepare_for_available_now()
    end = following.latest_offset(at, unlimited=False)
    assert end["query"] == at["query"]
    assert following.latest_offset(end, unlimited=False) == end
    until(following.report, lambda report: report["groupState"] == "published")
    assert bus.admin.committed(group)[TopicPartition(topic, 0)].offset == 7


def test_last_offsets_of_a_trigger_once_query_are_committed_by_its_next_start(
    planner, bus, make_topic
):
    """A planning call commits the end offsets of the previous batch. A Trigger.Once run makes only
    one such call, before its only batch, so the next run commits this batch's end offsets."""
    topic = make_topic(4)
    given = {"subscribe": topic, "startingOffsets": "earliest", "groupIdPrefix": "team"}
    first = planner(**given)
    end = step(first, first.initial_offset(), unlimited=True)
    first.stop()
    tp, group = TopicPartition(topic, 0), first.report()["group"]
    assert group.startswith("team-")
    assert bus.admin.committed(group)[tp].offset == 0
    again = planner(**given)
    assert again.latest_offset(end, unlimited=True) == end
    again.stop()
    assert bus.admin.committed(group)[tp].offset == 4


def test_second_query_with_the_same_default_group_commits_nothing(
    planner, bus, make_topic, monkeypatch
):
    monkeypatch.setattr(group_progress, "LEASE_MS", 1_000)
    monkeypatch.setattr(group_progress, "RENEW_MS", 100)
    topic = make_topic(4)
    one, two = planner(subscribe=topic), planner(subscribe=topic)
    step(one, one.initial_offset())
    until(one.report, lambda report: report["groupState"] == "published")
    step(two, two.initial_offset())
    state = until(two.report, lambda report: "held by" in report["groupState"])
    assert state["group"] == one.report()["group"]


def test_second_query_with_the_same_named_group_fails_before_its_first_batch(
    planner, bus, make_topic, monkeypatch
):
    monkeypatch.setattr(group_progress, "LEASE_MS", 2_000)
    monkeypatch.setattr(group_progress, "RENEW_MS", 100)
    monkeypatch.setattr(group_progress, "RETRY_MS", 20)
    topic = make_topic(4)
    given = {"subscribe": topic, "startingOffsets": "earliest", "group.id": f"g-{topic}"}
    one, two, repeats = planner(**given), planner(**given), planner(**given)
    begin = one.initial_offset()
    end = step(one, begin)
    # The group's offsets must carry the lease before the first batch is planned.
    commit = bus.admin.committed(f"g-{topic}")[TopicPartition(topic, 0)]
    assert lease_of(commit.metadata)[0] == begin["query"]
    at = two.initial_offset()
    with pytest.raises(GroupLeaseHeldError, match=r"give this query another group\.id"):
        while two.latest_offset(at, unlimited=False) == at:
            pass
    # A second query must not repeat a batch of its checkpoint either.
    with pytest.raises(GroupLeaseHeldError, match=r"give this query another group\.id"):
        repeats.ranges(begin, end | {"query": "another"})
    assert bus.admin.committed(f"g-{topic}")[TopicPartition(topic, 0)].offset == 0


def test_query_can_start_from_group_offsets(planner, bus, make_topic):
    topic = make_topic(5, 5, 5)
    group = f"start-{topic}"
    bus.admin.commit_offsets(
        group, {TopicPartition(topic, 0): CommittedOffset(2), TopicPartition(topic, 1): 5}
    )
    given = {"subscribe": topic, "startingOffsets": "group", "group.id": group}
    plan = planner(**given)
    start = plan.initial_offset()
    assert ends(start, topic) == [2, 5, 0]
    latest = planner(**given, startingOffsetsFallback="latest")
    assert ends(latest.initial_offset(), topic) == [2, 5, 5]
    # The first batch is empty. It fixes the start offset: later commits of the group are ignored.
    first = step(plan, start)
    assert rows(plan, start, first) == []
    assert rows(plan, first, step(plan, first)) == [(0, 2, 5), (2, 0, 5)]


def test_recreated_topic_does_not_inherit_group_offsets(planner, bus, make_topic):
    topic = make_topic(9)
    group = f"recreated-{topic}"
    bus.admin.commit_offsets(group, {TopicPartition(topic, 0): 7})
    bus.delete_topic(topic)
    make_topic(8, name=topic)
    plan = planner(subscribe=topic, startingOffsets="group", **{"group.id": group})
    assert ends(plan.initial_offset(), topic) == [0]


def test_ending_query_commits_no_offset_to_a_recreated_topic(
    planner, bus, make_topic, make_again, caplog
):
    topic, kept = make_topic(10), make_topic(3)
    group = f"left-{topic}"
    given = {"subscribe": f"{topic},{kept}", "startingOffsets": "earliest", "group.id": group}
    plan = planner(**given)
    first = step(plan, plan.initial_offset())
    plan.latest_offset(first, unlimited=False)
    until(plan.report, lambda report: report["groupState"] == "published")
    make_again(topic, 15)
    plan.stop()
    found = bus.admin.committed(group)
    assert {tp: row.offset for tp, row in found.items()} == {TopicPartition(kept, 0): 3}
    assert lease_of(found[TopicPartition(kept, 0)].metadata) == ("", 0)
    assert f"topic '{topic}' was deleted and recreated" in caplog.text
    # A new query that starts from the group's offsets must read all records of the new topic.
    again = planner(**(given | {"startingOffsets": "group"})).initial_offset()
    assert (ends(again, topic), ends(again, kept)) == ([0], [3])


def test_data_loss_is_checked_before_progress_is_committed(planner, bus, make_topic, make_again):
    topic = make_topic(10)
    group = f"judged-{topic}"
    given = {"subscribe": topic, "startingOffsets": "earliest", "group.id": group}
    strict = planner(**given)
    first = step(strict, strict.initial_offset())
    make_again(topic, 15)
    assert "recreated" in fails(
        lambda: planner(**given).latest_offset(first, unlimited=False), DataLossError
    )
    fails(lambda: strict.latest_offset(first, unlimited=False), DataLossError)
    strict.stop()
    assert bus.admin.committed(group) == {}
    lax = planner(**given, failOnDataLoss="false")
    end = step(lax, first)
    assert ends(end, topic) == [15]
    lax.stop()
    assert bus.admin.committed(group) == {}
    lax = planner(**given, failOnDataLoss="false")
    until(
        lambda: lax.latest_offset(end, unlimited=False) and lax.report(),
        lambda report: report and report["groupState"] == "published",
    )
    assert bus.admin.committed(group)[TopicPartition(topic, 0)].offset == 15
