"""The admin client on real brokers, and how clients find a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import until

from broker_lite import __version__
from broker_lite.bus import Bus, connect
from broker_lite.client import Admin
from broker_lite.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    NoBrokersError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import CommittedOffset, ListedOffset, TopicPartition


def test_admin_client_creates_extends_and_deletes_topics(face_bus: Bus) -> None:
    topic_id = face_bus.create_topic("adm", 2, config={"retention.ms": 60000})
    assert "adm" in face_bus.topics()
    view = face_bus.admin.cluster(["adm", "absent"])
    assert view.topic_id("adm") == topic_id
    assert len(view.partitions_of("adm")) == 2
    assert view.topics["absent"].error is not None
    with pytest.raises(TopicExistsError):
        face_bus.create_topic("adm")
    assert face_bus.create_topic("adm", if_not_exists=True) == topic_id
    face_bus.admin.create_partitions("adm", 5)
    assert len(face_bus.cluster().partitions_of("adm")) == 5
    with pytest.raises(InvalidPartitionsError):
        face_bus.admin.create_partitions("adm", 3)
    face_bus.delete_topic("adm")
    assert "adm" not in face_bus.topics()
    with pytest.raises(UnknownTopicOrPartitionError, match="'adm' does not exist"):
        face_bus.delete_topic("adm")
    face_bus.delete_topic("adm", if_exists=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        face_bus.admin.create_partitions("adm", 9)


def test_admin_client_refuses_to_create_an_invalid_topic(face_bus: Bus) -> None:
    with pytest.raises(InvalidTopicError, match="letters"):
        face_bus.create_topic("no spaces")
    with pytest.raises(InvalidReplicationFactorError):
        face_bus.create_topic("many", 1, 9)
    with pytest.raises(InvalidConfigError, match="did you mean"):
        face_bus.create_topic("odd", 1, config={"retention.mss": "1"})
    assert face_bus.admin.create_topic("dry", 1, validate_only=True) is not None
    assert "dry" not in face_bus.topics()


def test_admin_client_describes_and_alters_configs(bus: Bus, topic: str) -> None:
    before = bus.admin.describe_configs([topic])["topic", topic]["retention.ms"]
    assert before.is_default and before.documentation
    bus.admin.alter_configs(topic, {"retention.ms": 12345})
    after = bus.admin.describe_configs([topic])["topic", topic]["retention.ms"]
    assert (after.value, after.is_default, after.source) == ("12345", False, "topic")
    bus.admin.alter_configs(topic, {"retention.ms": None})
    assert bus.admin.describe_configs([topic])["topic", topic]["retention.ms"] == before
    with pytest.raises(InvalidConfigError):
        bus.admin.alter_configs(topic, {"retention.ms": "soon"})
    with pytest.raises(UnknownTopicOrPartitionError):
        bus.admin.alter_configs("nowhere", {"retention.ms": 1})
    broker = min(bus.cluster().brokers)
    assert "log.dir" in bus.admin.describe_configs(brokers=[broker])["broker", str(broker)]
    with pytest.raises(NoBrokersError):
        bus.admin.describe_configs(brokers=[99])


def test_admin_client_looks_up_offsets_by_timestamp_or_by_number_of_bytes(
    bus: Bus, topic: str
) -> None:
    tp = TopicPartition(topic, 1)
    with bus.producer(batch_bytes=1) as producer:
        for n in range(10):
            producer.send(topic, b"x" * 100, partition=1, timestamp_ms=1000 + n)
    admin = bus.admin
    assert admin.list_offsets({tp: -1})[tp].offset == 10
    assert admin.list_offsets({tp: -2})[tp].offset == 0
    assert admin.list_offsets({tp: 1004})[tp][:2] == (4, 1004)
    assert admin.list_offsets({tp: 9999})[tp].offset == -1
    end, size = admin.offsets_for_bytes({tp: (0, 1)})[tp]
    assert (end, size > 100) == (1, True)
    assert admin.offsets_for_bytes({tp: (0, 1 << 30)})[tp][0] == 10
    times = [admin.record_times({tp: offset})[tp] for offset in (0, 4, 10, 99)]
    assert times == [ListedOffset(0, 1000), ListedOffset(4, 1004), *[ListedOffset(-1)] * 2]
    assert admin.delete_records({tp: 3}) == {tp: 3}
    assert admin.record_times({tp: 0})[tp] == ListedOffset(3, 1003)
    assert admin.list_offsets({tp: -2})[tp].offset == 3
    topic_id = admin.cluster([topic]).topic_id(topic)
    bounds = admin.log_bounds({tp: topic_id, TopicPartition(topic, 0): topic_id}, 1)
    assert (bounds[tp][:3], bounds[tp].reach_bytes > 100) == ((3, 10, 4), True)
    assert bounds[TopicPartition(topic, 0)] == (0, 0, 0, 0)
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-1"):
        admin.delete_records({tp: 99})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_offsets({TopicPartition(topic, 9): -1})
    with pytest.raises(InvalidConfigError, match="read_committed"):
        admin.list_offsets({tp: -1}, isolation="dirty")


def test_admin_client_commits_and_reads_offsets_of_groups(bus: Bus, topic: str) -> None:
    rows = {TopicPartition(topic, 0): CommittedOffset(5, 0, "note"), TopicPartition(topic, 1): 7}
    bus.admin.commit_offsets("adm-group", rows)
    found = bus.admin.committed("adm-group")
    assert {tp: row.offset for tp, row in found.items()} == {
        TopicPartition(topic, 0): 5,
        TopicPartition(topic, 1): 7,
    }
    assert found[TopicPartition(topic, 0)].metadata == "note"
    assert bus.admin.committed("adm-group", [TopicPartition(topic, 2)]) == {}
    assert "adm-group" in [row.group for row in bus.admin.list_groups()]
    assert bus.admin.describe_groups(["adm-group"])["adm-group"].members == ()


def test_lag_counts_records_only_up_to_the_last_stable_offset(bus: Bus, topic: str) -> None:
    """Markers, aborted records and records of an open transaction do not count as lag."""
    group, tp = f"lag-{topic}", TopicPartition(topic, 0)
    hour_ago_ms = int(time.time() * 1000) - 3_600_000

    def lag() -> tuple[int | None, bool | None]:
        found = bus.admin.lag(group)[tp]
        return found.records, found.seconds is not None and found.seconds >= 3600

    with bus.producer(transactional_id=topic) as producer:

        def begin() -> None:
            producer.begin()
            producer.send(topic, b"x", partition=0, timestamp_ms=hour_ago_ms)
            producer.flush()

        begin()
        bus.admin.commit_offsets(group, {tp: 0})
        assert lag() == (0, False)
        producer.commit()
        until(lag, lambda found: found == (2, True))
        # librdkafka commits the last record's offset + 1, which leaves the marker unread.
        bus.admin.commit_offsets(group, {tp: 1})
        assert lag() == (1, False)
        begin()
        assert lag() == (1, False)
        producer.abort()
        until(lag, lambda found: found == (3, False))
        bus.admin.commit_offsets(group, {tp: 0})
        assert lag() == (4, True)


def test_lag_is_reported_in_records_and_seconds(bus: Bus, topic: str) -> None:
    group, began_ms = f"lag-{topic}", time.time() * 1000
    tps = [TopicPartition(topic, index) for index in range(3)]
    with bus.producer() as producer:
        for tp in tps:
            for age_s in (3600, 60, 0):
                written_ms = int(began_ms) - 1000 * age_s
                producer.send(topic, b"x", partition=tp.partition, timestamp_ms=written_ms)
        producer.send(topic, b"x", partition=2, timestamp_ms=int(began_ms) + 3_600_000)
    bus.admin.commit_offsets(group, {tps[0]: 1, tps[1]: 3, tps[2]: 3})
    old, none, ahead = (bus.admin.lag(group)[tp] for tp in tps)
    waited_s = time.time() - began_ms / 1000
    assert (old.committed.offset, old.end, old.records, old.owner) == (1, 3, 2, None)
    assert old.seconds is not None and 60 <= old.seconds <= 60 + waited_s
    assert (none.records, none.seconds) == (0, 0)
    assert (ahead.records, ahead.seconds) == (1, 0)
    bus.admin.delete_topic(topic)
    assert bus.admin.lag(group) == {}
    assert bus.admin.lag("nobody") == {}


def test_lag_of_many_groups_requested_together_equals_the_lag_of_each_group(
    bus: Bus, topic: str
) -> None:
    tps = [TopicPartition(topic, index) for index in range(3)]
    with bus.producer() as producer:
        for tp in tps:
            for _ in range(5):
                producer.send(topic, b"x", partition=tp.partition)
    names = [f"many-{topic}-{n}" for n in range(12)]
    for n, name in enumerate(names):
        bus.admin.commit_offsets(name, dict.fromkeys(tps, n % 6))
    with bus.consumer(topic, group=f"live-{topic}", start="earliest", auto_commit=False) as live:
        until(lambda: live.poll(0.1), what="the member reads")
        found = bus.admin.lag_many([*names, f"live-{topic}", "nobody"])
    assert list(found) == [*names, f"live-{topic}", "nobody"]
    for n, name in enumerate(names):
        rows = found[name].partitions
        assert [rows[tp].records for tp in tps] == [5 - n % 6] * 3
        assert all((rows[tp].seconds == 0) is (n % 6 == 5) for tp in tps)
        assert (found[name].state, found[name].members) == ("Empty", ())
    member = found[f"live-{topic}"]
    assert (member.state, len(member.members)) == ("Stable", 1)
    # The group has no committed offset, so its lag counts from the log start offset.
    assert {row.records for row in member.partitions.values()} == {5}
    assert {row.owner for row in member.partitions.values()} == {member.members[0].member_id}
    assert found["nobody"].state == "Dead" and not found["nobody"].partitions
    bus.admin.delete_topic(topic)
    assert not any(row.partitions for row in bus.admin.lag_many(names).values())


def test_repeated_lag_request_rereads_timestamps_only_of_newly_committed_partitions(
    bus: Bus, topic: str
) -> None:
    tps = [TopicPartition(topic, index) for index in range(2)]
    with bus.producer() as producer:
        for tp in tps:
            for _ in range(3):
                producer.send(topic, b"x", partition=tp.partition)
    name = f"again-{topic}"
    bus.admin.commit_offsets(name, dict.fromkeys(tps, 1))
    found = bus.admin.lag_many([name], empty={name})[name]
    assert (found.state, found.members) == ("Empty", ())
    assert [found.partitions[tp].unread.offset for tp in tps] == [1, 1]
    old = {
        tp: row._replace(unread=row.unread._replace(timestamp_ms=1000))
        for tp, row in found.partitions.items()
    }
    before = {name: found._replace(partitions=old)}
    bus.admin.commit_offsets(name, {tps[1]: 2})
    again = bus.admin.lag_many([name], before=before)[name].partitions
    assert [again[tp].records for tp in tps] == [2, 1]
    assert again[tps[0]].unread == old[tps[0]].unread and again[tps[0]].seconds > 1e9
    assert again[tps[1]].unread.offset == 2 and again[tps[1]].seconds < 1e9


def test_admin_client_describes_the_disks_of_brokers(bus: Bus, topic: str) -> None:
    with bus.producer() as producer:
        producer.send(topic, b"v")
    found = bus.admin.log_dirs()
    assert [row.broker_id for row in found] == sorted(bus.cluster().brokers)
    assert any(tp.topic == topic for row in found for tp in row.partitions)
    assert all(row.error is None and row.total_bytes > 0 for row in found)


def test_brokers_report_their_version_and_state(bus: Bus) -> None:
    found = bus.admin.broker_reports()
    assert [report.broker_id for report in found] == sorted(bus.cluster().brokers)
    assert {report.version for report in found} == {__version__}
    assert {(report.metadata_age_s, report.is_disk_full) for report in found} == {(0.0, False)}
    brief = bus.admin.broker_reports(with_sizes=False)
    assert [report.version for report in brief] == [report.version for report in found]
    disks = [row for report in brief for row in report.log_dirs]
    assert all(row.total_bytes > 0 and not row.partitions for row in disks) and len(disks) == 3


def test_client_finds_a_cluster_by_argument_environment_variable_or_last_started_cluster(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with connect(zookeeper=cluster.zookeeper) as bus:
        assert len(bus.cluster().brokers) == 3
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", cluster.zookeeper)
    with connect() as bus:
        assert len(bus.cluster().brokers) == 3
    monkeypatch.delenv("LOGBUS_ZOOKEEPER")
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    with connect() as bus:
        assert bus.bootstrap_servers == cluster.bootstrap_servers
    monkeypatch.delenv("LOGBUS_BOOTSTRAP_SERVERS")
    (tmp_path / "logbus").mkdir()
    facts = {"bootstrap_servers": cluster.bootstrap_servers}
    (tmp_path / "logbus" / "last-cluster.json").write_text(json.dumps(facts))
    with connect() as bus:
        assert bus.bootstrap_servers == cluster.bootstrap_servers


def test_connect_to_an_unreachable_cluster_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_lite.client.operations.requests.FIRST_CONTACT_MS", 300)
    with pytest.raises(NoBrokersError, match=r"127\.0\.0\.1:1"):
        connect("127.0.0.1:1")
    with pytest.raises(InvalidConfigError, match="did you mean 'linger_ms'"):
        connect("127.0.0.1:1", linger=5)


def test_admin_client_imports_neither_pyarrow_numpy_pandas_kazoo_nor_asyncio(
    cluster: LocalCluster,
) -> None:
    code = (
        "import sys\n"
        "from broker_lite.bus import connect\n"
        "bus = connect(sys.argv[1])\n"
        "bus.topics()\n"
        "heavy = {'pyarrow', 'numpy', 'pandas', 'kazoo', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, cluster.bootstrap_servers], check=True, timeout=60)


def test_forked_child_cannot_use_the_producer_or_consumer_of_its_parent(
    cluster: LocalCluster, topic: str
) -> None:
    code = """
import os, sys
from broker_lite.bus import connect
from broker_lite.errors import ClosedError
servers, topic = sys.argv[1:]
bus = connect(servers)
producer = bus.producer()
consumer = bus.consumer(topic, start="earliest")
producer.send(topic, b"parent", partition=0).result(30)
pending = producer.send(topic, b"pending", partition=0)
pid = os.fork()
if pid == 0:
    try:
        for use in (lambda: producer.send(topic, b"x"), lambda: consumer.poll(1)):
            try:
                use()
            except ClosedError as error:
                assert "fork" in str(error)
            else:
                os._exit(3)
        bus.topics()
        with bus.producer() as own:
            own.send(topic, b"child", partition=0).result(30)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(4)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
pending.result(30)
producer.send(topic, b"parent again", partition=0).result(30)
values = set()
while len(values) < 4:
    values |= {record.value for record in consumer.poll(5.0)}
assert values == {b"parent", b"pending", b"child", b"parent again"}
bus.topics()
producer.close(); consumer.close()
"""
    subprocess.run(
        [sys.executable, "-c", code, cluster.bootstrap_servers, topic],
        check=True,
        timeout=90,
        env={**os.environ},
    )


def test_admin_client_can_be_created_directly_from_bootstrap_servers(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        view = admin.describe_cluster()
        assert view.controller_id in view.brokers
        assert view.topics == {}
