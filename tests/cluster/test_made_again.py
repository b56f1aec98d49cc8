"""Delete and recreate a topic while a consumer reads it.

An offset of the deleted topic must not be committed for the recreated topic: the group would skip
new records.
"""

from __future__ import annotations

import time

import pytest
from support.plain_connection import until_known

from broker_lite.bus import Bus
from broker_lite.errors import UnknownTopicIdError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import CommittedOffset, TopicPartition


def fill(bus: Bus, topic: str, count: int) -> None:
    with bus.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def make_again(cluster: LocalCluster, bus: Bus, topic: str) -> str:
    """Delete and recreate the topic; wait until every broker knows it; return its new id."""
    bus.delete_topic(topic)
    topic_id = bus.create_topic(topic, partitions=3)
    until_known(cluster.bootstrap_servers, topic, topic_id)
    return topic_id


def test_close_commits_no_offset_to_a_recreated_topic(
    cluster: LocalCluster, bus: Bus, face_bus: Bus, topic: str
) -> None:
    other, group = f"{topic}-other", f"again-{topic}"
    bus.create_topic(other, partitions=1)
    fill(bus, topic, 10)
    fill(bus, other, 4)
    consumer = face_bus.consumer(topic, other, group=group, start="earliest")
    count = 0
    while count < 14:
        count += len(consumer.poll(20.0))
    make_again(cluster, bus, topic)
    with pytest.raises(UnknownTopicIdError, match="was not committed"):
        consumer.commit({TopicPartition(topic, 0): 7})
    fill(bus, topic, 15)
    with pytest.raises(UnknownTopicIdError, match=f"'{topic}' was deleted and recreated"):
        consumer.close()
    found = bus.admin.committed(group)
    assert {tp: row.offset for tp, row in found.items()} == {TopicPartition(other, 0): 4}
    with face_bus.consumer(topic, group=group, start="earliest") as successor:
        assert successor.position(topic, 0) == 0
        assert [row.value for row in successor.poll(20.0)] == [b"%d" % n for n in range(15)]


def test_explicit_commit_to_a_recreated_topic_fails(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    tp, group = TopicPartition(topic, 0), f"again-{topic}"
    fill(bus, topic, 10)
    with bus.consumer(topic, group=group, start="earliest", auto_commit=False) as consumer:
        assert len(consumer.poll(20.0)) == 10
        new = make_again(cluster, bus, topic)
        for offsets in (None, {tp: 7}, {tp: CommittedOffset(7)}):
            with pytest.raises(UnknownTopicIdError, match="was not committed"):
                consumer.commit(offsets)
        consumer.seek_to_beginning()
        with pytest.raises(UnknownTopicIdError):
            consumer.commit()
        assert bus.admin.committed(group) == {}
        consumer.commit({tp: CommittedOffset(2, topic_id=new)})
        assert bus.admin.committed(group)[tp].offset == 2


def test_automatic_commit_reports_a_recreated_topic(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    group = f"again-{topic}"
    fill(bus, topic, 10)
    consumer = bus.consumer(
        topic, group=group, start="earliest", auto_commit_interval_ms=50, partitions=[0]
    )
    assert len(consumer.poll(20.0)) == 10
    make_again(cluster, bus, topic)
    with pytest.raises(UnknownTopicIdError, match="recreated"):
        while True:
            consumer.poll(20.0)
    with pytest.raises(UnknownTopicIdError):
        consumer.close()
    with bus.consumer(topic, group=group, start="earliest", partitions=[0]) as successor:
        assert successor.committed() == {}


def test_committed_offsets_include_the_topic_id_and_the_time_of_the_commit(
    bus: Bus, topic: str
) -> None:
    tp, group = TopicPartition(topic, 1), f"described-{topic}"
    before_ms = int(time.time() * 1000)
    bus.admin.commit_offsets(group, {tp: 0})
    row = bus.admin.committed(group)[tp]
    assert row.topic_id == bus.admin.cluster((topic,)).topic_id(topic)
    assert before_ms <= row.commit_ms <= int(time.time() * 1000)
    assert bus.admin.committed(group, [tp])[tp] == row


def test_new_member_reads_a_recreated_topic_from_earliest(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """Regression: a group with offsets of the deleted topic skipped records of the recreated topic.

    The group must read these records even with start="latest".
    """
    group, alone = f"again-{topic}", f"alone-{topic}"
    for name in (group, alone):
        bus.admin.commit_offsets(name, {TopicPartition(topic, 0): 0})
    make_again(cluster, bus, topic)
    fill(bus, topic, 3)
    with bus.consumer(topic, group=group, start="latest") as member:
        assert [row.value for row in member.poll(20.0)] == [b"0", b"1", b"2"]
    with bus.consumer(topic, group=alone, partitions=[0], start="latest") as reader:
        assert [row.value for row in reader.poll(20.0)] == [b"0", b"1", b"2"]
    with bus.consumer(topic, group=f"new-{topic}", start="latest") as newcomer:
        assert newcomer.position(topic, 0) == 3
