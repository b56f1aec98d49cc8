"""Tests of the verdict on a cluster's health, and of its *causes*: faults, each with a remedy."""

from __future__ import annotations

from dataclasses import replace

from broker_lite.client.administration.admin import BrokerReport, LogDir
from broker_lite.client.administration.replica_requests import Reassignment
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.errors import StorageError
from broker_lite.model import Endpoint, TopicPartition, UnreadableZnode
from broker_lite.observing.sample import ClusterSample
from broker_lite.observing.verdict import broker_causes, causes, state_of

BROKERS = {number: Endpoint("h", 9092 + number) for number in range(3)}
ALL = (0, 1, 2)


def sample(
    *partitions: PartitionMetadata,
    live: tuple[int, ...] = ALL,
    controller: int = 0,
    min_insync: str | None = None,
    dirs: tuple[LogDir, ...] = (),
    reports: tuple[BrokerReport, ...] = (),
) -> ClusterSample:
    topic = TopicMetadata("t", partitions=partitions or (PartitionMetadata(0, 0, 1, ALL, ALL),))
    view = ClusterView("c", controller, {n: BROKERS[n] for n in live}, {"t": topic})
    reports += tuple(BrokerReport(row.broker_id, (row,)) for row in dirs)
    return ClusterSample(view, {}, {"t": min_insync} if min_insync else {}, reports)


def disk(free: int, broker_id: int = 1, error: StorageError | None = None) -> LogDir:
    return LogDir(broker_id, "/data", error, 100, free, {})


def test_health_verdict_on_a_healthy_cluster_lists_no_fault() -> None:
    found = sample(dirs=(disk(15),))
    assert causes(found) == broker_causes(found, 1) == []
    assert state_of([]) == "ok"


def test_health_verdict_lists_the_worst_fault_first() -> None:
    found = causes(
        sample(
            PartitionMetadata(0, 0, 1, ALL, (0, 2)),
            PartitionMetadata(1, -1, 1, (1,), (1,)),
            live=(0, 2),
        )
    )
    assert [(cause.state, cause.found.partition(";")[0]) for cause in found] == [
        ("critical", "1 of 2 partitions: no leader"),
        ("warning", "1 of 2 partitions: under-replicated"),
    ]
    assert "broker 1 is down" in found[0].found and "--unclean" in found[0].cure
    assert state_of(found) == "critical" and state_of(found[1:]) == "warning"


def test_partition_below_min_insync_replicas_makes_the_health_critical() -> None:
    short = PartitionMetadata(0, 0, 1, ALL, (0,))
    (cause,) = causes(sample(short, min_insync="2"))
    assert cause.state == "critical" and "acks=all needs 2" in cause.found
    (cause,) = causes(sample(short))
    assert cause.state == "warning"


def test_replica_that_a_reassignment_adds_is_not_reported_as_a_fault() -> None:
    found = sample(PartitionMetadata(0, 0, 1, ALL, (0, 1)))
    move = Reassignment(ALL, adding=(2,), removing=())
    assert causes(found._replace(moves={TopicPartition("t", 0): move})) == []


def test_missing_controller_makes_the_health_critical() -> None:
    for controller in (-1, 7):
        (cause,) = causes(sample(controller=controller))
        assert (cause.state, cause.about) == ("critical", "controller")


def test_health_verdict_on_a_disk_depends_on_free_space_and_errors() -> None:
    for free, state in ((16, None), (14, "warning"), (4, "critical")):
        found = causes(sample(dirs=(disk(free),)))
        assert [cause.state for cause in found] == ([state] if state else [])
    (cause,) = causes(sample(dirs=(disk(50, error=StorageError("it failed")),)))
    assert (cause.state, cause.about) == ("critical", "broker 1") and "it failed" in cause.found
    unknown = LogDir(1, "/data", None, -1, -1, {})
    assert causes(sample(dirs=(unknown,))) == []


def test_broker_counts_as_faulty_until_it_is_registered_and_its_replicas_are_in_sync() -> None:
    behind = sample(
        PartitionMetadata(0, 0, 1, ALL, (0, 2)), PartitionMetadata(1, 0, 1, (0, 1), (0, 1))
    )
    (cause,) = broker_causes(behind, 1)
    assert cause.found == "1 of 2 replicas are not in sync, such as t-0"
    assert broker_causes(behind, 2) == []
    (cause,) = broker_causes(sample(live=(0, 2)), 1)
    assert (cause.state, cause.found) == ("critical", "not registered; brokers that run: 0, 2")
    nobody = behind._replace(view=replace(behind.view, brokers={}))
    assert "none" in broker_causes(nobody, 1)[0].found


def test_broker_that_reports_a_full_disk_makes_the_cluster_health_critical() -> None:
    found = sample(reports=(BrokerReport(1, (disk(50),), is_disk_full=True),))
    (cause,) = causes(found)
    assert (cause.state, cause.about) == ("critical", "broker 1") and "is full" in cause.found
    assert broker_causes(found, 1) == [cause] and broker_causes(found, 0) == []


def test_znode_that_two_brokers_cannot_read_causes_a_single_warning() -> None:
    one = UnreadableZnode("/acls/topic/literal/t", "it is malformed", "Delete it")
    two = UnreadableZnode("/credentials/users/alice", "it is malformed", "Add it again")
    reports = (
        BrokerReport(1, (), unreadable=(one, two)),
        BrokerReport(2, (), unreadable=(one,)),
    )
    found = causes(sample(reports=reports))
    assert [(cause.state, cause.about, cause.cure) for cause in found] == [
        ("warning", "ZooKeeper", "Delete it"),
        ("warning", "ZooKeeper", "Add it again"),
    ]
    assert found[0].found == "znode /acls/topic/literal/t cannot be read: it is malformed"


def test_brokers_that_have_not_reached_zookeeper_for_some_seconds_are_reported_as_a_fault() -> None:
    def lost(*ages: float | None, groups: str = "") -> list[tuple[str, str]]:
        reports = tuple(
            BrokerReport(broker_id, (), "1.0", age_s) for broker_id, age_s in enumerate(ages)
        )
        return [
            (cause.state, cause.found.partition(";")[0])
            for cause in causes(sample(reports=reports), groups)
        ]

    assert lost(0.0, 0.0) == lost(2.0, 9.0) == lost(None, None) == []
    assert lost(0.0, 12.4) == [("warning", "not reached by broker 1 for 12 s")]
    assert lost(None, groups="unavailable")[0][0] == "warning"
    assert len(lost(60.0, 60.0, groups="unavailable")) == 1
    assert lost(60.0, 12.0) == [("critical", "not reached by brokers 0, 1 for 60 s")]
