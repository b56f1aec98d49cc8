"""Test replication with broker processes that die, hang, restart or lose their disks.

Each acknowledged record must be in the log once, and all replicas must have the same bytes.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.data_calls import Place, list_offsets, produce_request, read, rows_batch
from support.faces import LoopFace
from support.patience import until
from support.plain_connection import PlainConnection
from support.replicated import Load, Watched

from broker_lite import errors
from broker_lite.bus import connect
from broker_lite.client import Consumer, read_range
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire import fetch, produce

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("replication")]

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "1000"}


@pytest.fixture(scope="module")
def running(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(3, config=SETTINGS)


@pytest.fixture
def watched(running: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """Create a topic with a replica on each of three brokers; after the test, start stopped
    brokers."""
    with connect(running.bootstrap_servers) as bus:
        name = re.sub(r"[^a-z_]+", "-", request.node.name).strip("-")
        bus.create_topic(name, partitions=1, replication_factor=3)
        one = Watched(running, bus, name)
        one.in_sync(0, 1, 2)
        yield one
        for broker in running.brokers:
            broker.resume()
            broker.start()


def place_of(watched: Watched) -> Place:
    view = watched.bus.admin.cluster([watched.topic])
    leader = view.topics[watched.topic].partitions[0].leader
    topic_id = view.topics[watched.topic].topic_id
    return Place(watched.topic, topic_id, leader, str(view.brokers[leader]))


def answer(place: Place, values: list[bytes], acks: int) -> int:
    """Send one produce request without retries; return its error code."""
    with PlainConnection(place.address) as connection:
        connection.send(produce_request(place, rows_batch(values), acks=acks, timeout_ms=5000))
        return produce.decode_response(connection.receive()).topics[0].partitions[0].error_code


def test_new_topics_have_three_replicas_by_default(running: LocalCluster) -> None:
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic("by-default", partitions=3)
        for partition in bus.admin.cluster(["by-default"]).topics["by-default"].partitions:
            assert sorted(partition.replicas) == [0, 1, 2]


def test_replicas_of_a_partition_store_identical_bytes(watched: Watched) -> None:
    with watched.bus.producer() as producer:
        column = pa.array([b"c%d" % n for n in range(100)], pa.binary())
        producer.send_arrow(watched.topic, pa.table({"value": column}))
        for n in range(100):
            producer.send(watched.topic, b"r%d" % n)
    assert len(watched.values()) == 200
    assert len(watched.all_alike()) > 1000


@pytest.mark.parametrize("whom", ["leader", "follower"])
def test_no_acknowledged_record_is_lost_when_a_broker_is_killed(
    watched: Watched, whom: str
) -> None:
    with Load(watched) as load:
        leader = watched.leader()
        broker = leader if whom == "leader" else watched.followers()[0]
        broker.kill()
        load.more()
        if whom == "leader":
            watched.led_by_another(leader.id)
        broker.start()
        load.more()
        watched.in_sync(0, 1, 2)
    load.check()
    watched.all_alike()


def test_hanging_leader_is_replaced(watched: Watched) -> None:
    with Load(watched, request_timeout_ms=1000) as load:
        leader = watched.leader()
        leader.pause()
        watched.led_by_another(leader.id)
        load.more()
        leader.resume()
        watched.in_sync(0, 1, 2)
        load.more()
    load.check()
    watched.all_alike()


def test_hanging_follower_leaves_the_isr_and_rejoins(watched: Watched) -> None:
    follower = watched.followers()[0]
    others = {0, 1, 2} - {follower.id}
    with Load(watched) as load:
        follower.pause()
        watched.in_sync(*others)
        load.more()
        follower.resume()
        watched.in_sync(0, 1, 2)
        load.more()
    load.check()
    watched.all_alike()


def test_all_sends_succeed_during_a_rolling_restart(watched: Watched) -> None:
    with Load(watched, retry_backoff_ms=10) as load:
        for broker in watched.cluster.brokers:
            broker.stop()
            load.more()
            broker.start()
            watched.in_sync(0, 1, 2)
            log = Path(broker.log).read_text()
            assert "after a clean stop" in log and "moved leadership to other brokers in" in log
    load.check()
    watched.all_alike()


def test_unacknowledged_records_are_truncated_after_failover(watched: Watched) -> None:
    with Load(watched) as load:
        pass
    leader, followers = watched.leader(), watched.followers()
    folder, place = watched.folder(leader), place_of(watched)
    for broker in followers:
        broker.pause()
    # The first record answers the fetches that already wait. The paused followers do not read
    # these responses, so the second batch stays on the leader only.
    assert answer(place, [b"they may have this"], acks=1) == 0
    assert answer(place, [b"nobody else has this"] * 50, acks=1) == 0
    # Kill the leader before it removes the silent followers from the ISR.
    leader.kill()
    assert any(b"nobody else has this" in log.read_bytes() for log in folder.glob("*.log"))
    for broker in followers:
        broker.resume()
    watched.led_by_another(leader.id)
    with Load(watched, name=b"more") as more:
        leader.start()
        watched.in_sync(0, 1, 2)
        more.more()
    assert b"nobody else has this" not in watched.all_alike()
    load.check()
    more.check()


def test_fetch_with_a_stale_leader_epoch_or_broker_epoch_is_refused(watched: Watched) -> None:
    """Send single requests as a consumer and as a follower, without a client's retries."""
    with Load(watched) as load:
        pass
    tp = TopicPartition(watched.topic, 0)
    leader, epoch, isr = watched.state()
    first, *others = isr - {leader}
    watched.bus.admin.reassign({tp: [first, leader, *others]})
    watched.bus.admin.elect_leaders([tp])
    until(lambda: watched.state()[:2] == (first, epoch + 1), what="leadership does not move")
    place = place_of(watched)
    with PlainConnection(place.address) as connection:
        # The leader may learn of the new epoch later than the broker that answered the metadata
        # request.
        until(lambda: read(connection, place, 0, epoch=epoch + 1).error_code == 0, what="no epoch")
        for named, code in (
            (epoch + 1, 0),
            (epoch, errors.FencedLeaderEpochError.code),
            (epoch + 2, errors.UnknownLeaderEpochError.code),
        ):
            assert read(connection, place, 0, epoch=named).error_code == code
            assert list_offsets(connection, place.name, -2, epoch=named).error_code == code
        row = fetch.FetchPartition(0, 0, 1000, epoch + 1, -1, 0)
        request = fetch.FetchRequest(
            [fetch.FetchTopic("", place.topic_id, [row])], 0, replica_id=leader, replica_epoch=1
        )
        connection.send(fetch.encode_request(request, correlation_id=1, client_id=None))
        [topic] = fetch.decode_response(connection.receive()).topics
        assert topic.partitions[0].error_code == errors.StaleBrokerEpochError.code
        assert not len(topic.partitions[0].records)
    load.check()


def test_broker_with_an_emptied_disk_copies_its_replica_and_rejoins(watched: Watched) -> None:
    with Load(watched) as load:
        leader = watched.leader()
        leader.kill()
        watched.led_by_another(leader.id)
        shutil.rmtree(leader.directory / "data")
        leader.start()
        watched.in_sync(0, 1, 2)
        load.more()
    load.check()
    watched.all_alike()


def test_unclean_election_is_reported_and_readers_resume_at_the_truncation_offset(
    watched: Watched,
) -> None:
    bus, cluster = watched.bus, watched.cluster
    name = "unclean"
    bus.create_topic(name, replication_factor=2, config={"min.insync.replicas": "1"})
    topic, tp = Watched(cluster, bus, name), TopicPartition(name, 0)
    until(lambda: len(topic.state()[2]) == 2, what="nobody leads")
    number, _, isr = topic.state()
    leader, follower = cluster.brokers[number], cluster.brokers[(isr - {number}).pop()]

    def send(word: bytes, count: int) -> list[bytes]:
        values = [b"%b-%d" % (word, n) for n in range(count)]
        with bus.producer() as producer:
            for value in values:
                producer.send(name, value)
        return values

    def read_on(consumer: Consumer, count: int) -> list[bytes | None]:
        found: list[bytes | None] = []

        def are_there() -> bool:
            found.extend(record.value for record in consumer.poll(0.2))
            return len(found) >= count

        until(are_there, what=f"fewer than {count} records came")
        return found

    kept = send(b"kept", 30)
    follower.kill()
    topic.in_sync(leader.id)
    lost = send(b"lost", 30)
    with (
        contextlib.closing(LoopFace()) as face,
        face.connect(cluster.bootstrap_servers) as other_bus,
        other_bus.consumer(name, start="earliest") as other,
        bus.consumer(name, start="earliest") as consumer,
    ):
        assert read_on(consumer, 60) == read_on(other, 60) == kept + lost
        with bus.consumer(name, group=name, partitions=[0], start="earliest") as away:
            assert read_on(away, 60) == kept + lost
        leader.kill()
        follower.start()
        until(
            lambda: bus.admin.elect_leaders([tp], unclean=True)[tp] is None,
            what="nobody is elected",
        )
        # Send one batch that begins before the readers' offset 60 and ends after it.
        new = send(b"new", 50)
        assert read_on(consumer, 50) == read_on(other, 50) == new
        assert consumer.resets == other.resets == [(tp, 60, 30)]
        # A stopped group's committed offset, 60, is now inside the new batch.
        with bus.consumer(name, group=name, partitions=[0], start="earliest") as back:
            assert read_on(back, 50) == new
            assert back.resets == consumer.resets
    said = "".join(Path(broker.log).read_text() for broker in cluster.brokers)
    assert f"{tp}: UNCLEAN election: broker {follower.id} leads" in said
    assert f"{tp}: leads from offset 30 on although it was not in sync" in said
    leader.start()
    topic.in_sync(leader.id, follower.id)
    until(lambda: topic.bytes_on(leader) == topic.bytes_on(follower), what="they stay different")
    assert b"lost" not in topic.bytes_on(leader)


def test_acks_all_is_refused_below_min_insync_replicas(watched: Watched) -> None:
    with Load(watched) as load:
        pass
    followers = watched.followers()
    for broker in followers:
        broker.kill()
    watched.in_sync(watched.leader().id)
    assert answer(place_of(watched), [b"x"], acks=-1) == errors.NotEnoughReplicasError.code
    with (
        watched.bus.producer(delivery_timeout_ms=1000, linger_ms=0) as producer,
        pytest.raises(errors.DeliveryTimedOutError, match="NOT_ENOUGH_REPLICAS"),
    ):
        producer.send(watched.topic, b"x").result(30)
    assert watched.end() == len(load.acked)
    followers[0].start()
    until(lambda: answer(place_of(watched), [b"y"], acks=-1) == 0, what="acks=all stays refused")
    followers[1].start()
    watched.in_sync(0, 1, 2)
    assert watched.values()[-1] == b"y"


def damage(watched: Watched, broker_id: int, value: bytes) -> None:
    """Flip a bit of the record with this value in a broker's log."""
    folder = watched.folder(watched.cluster.brokers[broker_id])
    for file in folder.glob("*.log"):
        data = file.read_bytes()
        if (at := data.find(value)) >= 0:
            with file.open("r+b") as stream:
                stream.seek(at)
                stream.write(bytes([data[at] ^ 1]))
            return
    raise AssertionError(f"{value!r} is not in {folder}")


@pytest.mark.parametrize("reader", ["consumer", "range"])
def test_damage_on_the_leaders_disk_is_repaired_from_another_replica(
    watched: Watched, reader: str
) -> None:
    with Load(watched) as load:
        pass
    leader, epoch, _ = watched.state()
    sound = watched.all_alike()
    damage(watched, leader, b"load-30")
    if reader == "range":
        read_all = read_range(
            TopicPartition(watched.topic, 0),
            place_of(watched).topic_id,
            epoch,
            0,
            len(load.acked),
            bootstrap=watched.cluster.bootstrap_servers,
        )
        assert sum(rows.row_count for rows in read_all) == len(load.acked)
    load.check()
    until(lambda: watched.state()[1] > epoch, what="the leader keeps its corrupt log")
    watched.in_sync(0, 1, 2)
    assert watched.all_alike() == sound


def test_broker_repairs_damage_found_at_startup_before_it_becomes_leader(watched: Watched) -> None:
    with Load(watched) as load:
        pass
    sound = watched.all_alike()
    leader = watched.leader()
    leader.kill()
    damage(watched, leader.id, b"load-10")
    leader.start()
    with Load(watched, name=b"more") as more:
        watched.in_sync(0, 1, 2)
    load.check()
    more.check()
    assert watched.all_alike().startswith(sound)


def test_deleting_the_records_up_to_a_corrupt_batch_lets_followers_rejoin(
    watched: Watched,
) -> None:
    """A batch whose only copy is on the leader is damaged.

    Followers cannot copy beyond the batch, and sends with acks=all time out. Deleting the records
    up to the batch repairs the partition.
    """
    with Load(watched) as load:
        pass
    leader, followers = watched.leader(), watched.followers()
    for broker in followers:
        broker.kill()
    watched.in_sync(leader.id)
    damage(watched, leader.id, b"load-30")
    for broker in followers:
        shutil.rmtree(broker.directory / "data")
        broker.start()
    log = Path(leader.log)
    cure = f"logbus topic trim {watched.topic} --before OFFSET --partition 0"
    until(lambda: cure in log.read_text(), what="the leader does not say what to do")
    with (
        watched.bus.producer(delivery_timeout_ms=1000, linger_ms=0) as producer,
        pytest.raises(errors.DeliveryTimedOutError, match="corrupt at offset 30"),
    ):
        producer.send(watched.topic, b"x").result(30)
    assert watched.state()[2] == {leader.id}
    assert log.read_text().count(cure) == 1
    tp = TopicPartition(watched.topic, 0)
    assert watched.bus.admin.delete_records({tp: 31}) == {tp: 31}
    watched.in_sync(0, 1, 2)
    with watched.bus.producer() as producer:
        producer.send(watched.topic, b"last")
    rest: list[bytes | None] = []
    with watched.bus.consumer(watched.topic, partitions=[0], start="earliest") as consumer:
        until(lambda: rest.extend(r.value for r in consumer.poll(0.2)) or b"last" in rest, what="")
    assert rest == [b"load-%d" % n for n in range(31, len(load.acked))] + [b"last"]
