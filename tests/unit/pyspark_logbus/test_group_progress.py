"""Tests of how a query publishes its progress as offsets of a consumer group.

A query marks its commits with a *lease*: a name and an expiry time. Other queries must not commit
to the group until the lease expires.
"""

from __future__ import annotations

import threading

import pytest
from support.patience import until

from broker_lite.client.administration.query_lease import lease_of, lease_text
from broker_lite.errors import (
    CoordinatorNotAvailableError,
    GroupLeaseHeldError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import CommittedOffset, OffsetAndEpoch, TopicPartition
from pyspark_logbus import group_progress
from pyspark_logbus.group_progress import GroupProgress
from pyspark_logbus.offsets import SourceOffset, TopicOffsets

T0 = TopicPartition("t", 0)


class Group:
    """Simulates the broker that stores the offsets of a group and checks topic ids."""

    def __init__(self):
        self.rows = {}
        self.commits = []
        self.failures = 0
        self.ids = {"t": "id"}
        self.changed = threading.Condition()

    def committed(self, group, partitions=None):
        return dict(self.rows)

    def commit_each(self, group, offsets):
        if self.failures:
            self.failures -= 1
            raise CoordinatorNotAvailableError("not now")
        done = {tp: self.refusal(tp, row) for tp, row in offsets.items()}
        self.rows.update({tp: row for tp, row in offsets.items() if done[tp] is None})
        with self.changed:
            self.commits.append(offsets)
            self.changed.notify_all()
        return done

    def refusal(self, tp, row):
        if tp.topic not in self.ids:
            return UnknownTopicOrPartitionError(f"topic {tp.topic!r} does not exist")
        is_other = row.topic_id != self.ids[tp.topic]
        return UnknownTopicIdError("recreated") if is_other else None

    def make_again(self, topic):
        """Delete and recreate a topic; the broker then drops the topic's committed offsets."""
        self.ids[topic] += "-again"
        self.rows = {tp: row for tp, row in self.rows.items() if tp.topic != topic}


def at(offset, **ids):
    """Return a source offset: ``offset`` in partition 0 of topic ``t`` and of each topic in
    ``ids``.

    ``ids`` maps topic names to topic ids.
    """
    ids = {"t": "id"} | ids
    ends = {0: OffsetAndEpoch(offset, 3)}
    return SourceOffset("c", {name: TopicOffsets(topic_id, ends) for name, topic_id in ids.items()})


class Clock:
    ms = 1_000_000

    def __call__(self):
        return self.ms


@pytest.fixture
def group():
    return Group()


@pytest.fixture
def start(group):
    clock, running = Clock(), []

    def start(run, *, explicit=False):
        progress = GroupProgress(group, "g", explicit=explicit, run=run, now_ms=clock)
        running.append(progress)
        return progress

    start.clock = clock
    yield start
    for progress in running:
        progress.close(0)


def test_offset_commit_of_a_query_contains_leader_epoch_topic_id_and_lease(group, start):
    progress = start("one")
    progress.publish(at(5))
    assert progress.wait(5)
    row = group.rows[T0]
    assert row[:2] == (5, 3)
    assert row.topic_id == "id"
    assert lease_of(row.metadata) == ("one", start.clock.ms + 15_000)
    assert progress.state == "published"


def test_stopping_query_commits_its_progress_and_frees_the_group_for_other_queries(group, start):
    progress = start("one")
    progress.publish(at(5))
    progress.wait(5)
    progress.publish(at(9))
    progress.close()
    assert group.rows[T0].offset == 9
    assert lease_of(group.rows[T0].metadata) == ("", 0)
    other = start("two", explicit=True)
    other.publish(at(9))
    assert other.wait(5)
    other.check()


def test_stopping_query_repeats_a_failed_release_of_its_groups_lease(group, start, monkeypatch):
    """Regression: after one failed commit, other queries could not commit to the group until the
    lease expired."""
    monkeypatch.setattr(group_progress, "RETRY_MS", 1)
    progress = start("one")
    progress.publish(at(5))
    progress.wait(5)
    group.failures = 2
    progress.close()
    assert group.failures == 0
    assert lease_of(group.rows[T0].metadata) == ("", 0)


def test_stopping_query_gives_up_the_release_after_its_time_limit(group, start):
    progress = start("one")
    progress.publish(at(5))
    progress.wait(5)
    group.failures = 1_000_000
    progress.close(0.01)
    assert "not now" in progress.state
    assert lease_of(group.rows[T0].metadata)[0] == "one"


def test_second_query_with_the_same_default_group_commits_nothing_and_keeps_running(
    group, start, caplog
):
    first, second = start("one"), start("two")
    first.publish(at(5))
    first.wait(5)
    second.publish(at(7))
    second.wait(5)
    second.check()
    assert group.rows[T0].offset == 5
    assert second.state == "held by another query (one)"
    assert "this query publishes nothing" in caplog.text


@pytest.fixture
def _asks_again_soon(monkeypatch):
    monkeypatch.setattr(group_progress, "RETRY_MS", 5)


@pytest.mark.usefixtures("_asks_again_soon")
def test_second_query_with_the_same_named_group_fails_once_the_first_query_renews_its_lease(
    group, start
):
    first, second = start("one"), start("two", explicit=True)
    first.publish(at(5))
    first.wait(5)
    second.publish(at(7))
    second.wait(5)
    second.check()  # The first query may have been killed, so its lease is no error yet.
    renewed = lease_text("one", start.clock.ms + 20_000)
    group.rows[T0] = CommittedOffset(5, 3, renewed, "id")
    with pytest.raises(GroupLeaseHeldError, match=r"give this query another group\.id") as raised:
        second.claim()
    assert "(one)" in str(raised.value)
    with pytest.raises(GroupLeaseHeldError):
        second.check()
    assert group.rows[T0].offset == 5


@pytest.mark.usefixtures("_asks_again_soon")
def test_query_with_a_named_group_waits_until_a_killed_querys_lease_on_the_group_expires(
    group, start
):
    group.rows[T0] = CommittedOffset(5, 3, lease_text("killed", start.clock.ms + 9_000), "id")
    progress = start("two", explicit=True)
    progress.publish(at(7))
    progress.wait(5)
    assert group.rows[T0].offset == 5
    start.clock.ms += 9_001
    progress.claim()
    assert group.rows[T0].offset == 7


@pytest.mark.usefixtures("_asks_again_soon")
def test_query_with_a_named_group_does_not_wait_for_an_unavailable_coordinator(group, start):
    group.failures = 1_000_000
    progress = start("one", explicit=True)
    progress.publish(at(7))
    progress.claim()
    assert progress.state == "[LOGBUS_COORDINATOR_NOT_AVAILABLE] not now"


def test_query_commits_after_a_killed_querys_lease_on_the_group_has_expired(group, start):
    group.rows[T0] = CommittedOffset(5, 3, lease_text("killed", start.clock.ms - 1), "id")
    progress = start("two", explicit=True)
    progress.publish(at(7))
    assert progress.wait(5)
    progress.check()
    assert group.rows[T0].offset == 7


def test_restarted_query_commits_under_its_old_group_lease_without_waiting(group, start):
    """The lease names the query, so the new run need not wait until the lease expires."""
    until_ms = start.clock.ms + 14_000
    group.rows[T0] = CommittedOffset(5, 3, lease_text("query", until_ms), "id")
    progress = start("query")
    progress.publish(at(7))
    assert progress.wait(5)
    assert (progress.state, group.rows[T0].offset) == ("published", 7)


def test_only_the_newest_uncommitted_progress_of_a_query_is_committed(group, start):
    progress = start("one")
    progress.publish(at(1))
    progress.wait(5)
    before = len(group.commits)
    with group.changed:  # The commit in flight waits for this lock, so later commits wait too.
        for offset in range(2, 50):
            progress.publish(at(offset))
    assert progress.wait(5)
    assert group.rows[T0].offset == 49
    assert len(group.commits) - before < 48


def test_commit_to_an_unavailable_coordinator_is_retried_without_delaying_batches(group, start):
    group.failures = 1
    progress = start("one")
    progress.publish(at(5))
    progress.check()
    with group.changed:
        assert group.changed.wait_for(lambda: group.commits, 10)
    assert group.rows[T0].offset == 5


def test_no_offset_is_committed_to_a_recreated_topic(group, start, caplog):
    group.ids["u"] = "other"
    progress = start("one")
    progress.publish(at(5, u="other"))
    assert progress.wait(5)
    group.make_again("t")
    progress.publish(at(9, u="other"))
    assert progress.wait(5)
    assert {tp: row.offset for tp, row in group.rows.items()} == {TopicPartition("u", 0): 9}
    assert progress.state == "not published: t was recreated"
    assert caplog.text.count("topic 't' was deleted and recreated") == 1
    progress.publish(at(2, t="id-again", u="other"))
    assert progress.wait(5)
    assert (group.rows[T0].offset, progress.state) == (2, "published")


def test_stopping_query_frees_the_group_without_commits_to_a_recreated_topic(group, start, caplog):
    group.ids["u"] = "other"
    progress = start("one")
    progress.publish(at(5, u="other"))
    assert progress.wait(5)
    group.make_again("t")
    progress.close()
    assert set(group.rows) == {TopicPartition("u", 0)}
    assert lease_of(group.rows[TopicPartition("u", 0)].metadata) == ("", 0)
    assert "the progress in the deleted topic (id id) is not committed" in caplog.text


def test_progress_of_a_deleted_topic_is_reported_as_not_committed(group, start):
    progress = start("one")
    del group.ids["t"]
    progress.publish(at(5))
    until(lambda: "does not exist" in progress.state, what="the failed commit")
    progress.close(0)
    assert group.rows == {}


@pytest.mark.parametrize("text", ["", "x", "{}", "[]", '{"spark":1}', '{"spark":"a","until":"x"}'])
def test_commit_metadata_of_another_client_is_not_taken_for_a_querys_lease_on_the_group(text):
    assert lease_of(text) == ("", 0)
