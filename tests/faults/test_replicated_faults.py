"""What happens to replicated topics when processes, disks and networks fail, for real.

A workload writes and reads all the while. Whatever happens, nothing that was acknowledged is lost,
doubled or out of order, nobody reads what is not committed, and no producer hears of it. Many more
of each: ``make chaos``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from faults import machine
from faults.machine import Network
from faults.replicated import Replicated, on_disks, on_network

from broker_lite.local.broker import LocalBroker

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("replicated-faults")]

SESSION_MS = "2000"
LAG_MS = "2000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    directory = tmp_path_factory.mktemp("disks")
    with on_disks(
        directory, zookeeper_session_timeout_ms=SESSION_MS, replica_lag_time_max_ms=LAG_MS
    ) as running:
        yield running


@pytest.fixture
def topic(cluster: Replicated) -> str:
    cluster.start_all()
    return cluster.make_topic()


def pick(cluster: Replicated, topic: str, role: str) -> LocalBroker:
    return {"leader": cluster.leader, "follower": cluster.follower}[role](topic)


def test_kill_9_of_leader_follower_and_controller(cluster: Replicated, topic: str) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        for victim in (cluster.leader(topic), cluster.follower(topic), cluster.controller()):
            victim.kill()
            work.wait_acked()
            victim.start()
            cluster.wait_in_sync(topic)
            work.wait_acked()
        assert len(work.finish().sent) > 100


def test_kill_9_of_all_brokers(cluster: Replicated, topic: str) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start_all()
        work.wait_acked()
        cluster.wait_in_sync(topic)
        work.finish()


def test_a_leader_that_hangs_is_deposed_and_comes_back(cluster: Replicated, topic: str) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        leader = cluster.leader(topic)
        leader.pause()
        try:
            work.wait_acked()
        finally:
            leader.resume()
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()


@pytest.mark.skipif(bool(machine.why_no_disks()), reason=f"no disks: {machine.why_no_disks()}")
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_power_cut_at_one_broker(cluster: Replicated, topic: str, role: str) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        victim = pick(cluster, topic, role)
        cluster.cut_power([victim], Random(role))
        work.wait_acked()
        victim.start()
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()


@pytest.mark.skipif(bool(machine.why_no_disks()), reason=f"no disks: {machine.why_no_disks()}")
def test_a_power_cut_of_all_brokers(cluster: Replicated, topic: str) -> None:
    with cluster.workload(topic) as work:
        for seed in range(2):
            work.wait_acked()
            cluster.cut_power(list(cluster.brokers.values()), Random(seed))
            cluster.start_all()
        work.wait_acked()
        cluster.wait_in_sync(topic)
        work.finish()


@pytest.mark.skipif(bool(machine.why_no_disks()), reason=f"no disks: {machine.why_no_disks()}")
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_full_disk_holds_up_and_loses_nothing(cluster: Replicated, topic: str, role: str) -> None:
    """A follower's: it leaves the ISR and the rest goes on. A leader's: until there is room."""
    with cluster.workload(topic) as work:
        work.wait_acked()
        victim = pick(cluster, topic, role)
        led = [
            row.partition
            for row in cluster.admin.cluster([topic]).topics[topic].partitions
            if row.leader == victim.id
        ]
        cluster.disks[victim.id].fill()
        try:
            work.wait_acked(but=led)
        finally:
            cluster.disks[victim.id].free()
        work.wait_acked()
        cluster.wait_in_sync(topic)
        assert victim.is_running
        work.finish()


@pytest.mark.skipif(bool(machine.why_no_strace()), reason=f"no strace: {machine.why_no_strace()}")
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_an_fsync_error_ends_the_replica_not_the_partition(
    cluster: Replicated, topic: str, role: str, tmp_path: Path
) -> None:
    """What was written before a failed fsync is never acknowledged, though the next succeeds."""
    with cluster.workload(topic) as work:
        work.wait_acked()
        victim = pick(cluster, topic, role)
        assert victim.pid is not None
        how = "error=EIO:when=1"
        with machine.failing(victim.pid, "fdatasync", how, tmp_path / "strace.log"):
            cluster.wait_out_of_sync(topic, victim)
            work.wait_acked()
        victim.kill()
        victim.start()
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()


@pytest.fixture(scope="module")
def network(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Replicated, Network]]:
    if machine.why_no_networks():
        pytest.skip(f"no network namespaces: {machine.why_no_networks()}")
    with on_network(
        tmp_path_factory.mktemp("network"),
        zookeeper_session_timeout_ms=SESSION_MS,
        replica_lag_time_max_ms=LAG_MS,
    ) as running:
        yield running


def test_a_leader_cut_off_from_everybody(network: tuple[Replicated, Network]) -> None:
    cluster, wires = network
    topic = cluster.make_topic()
    with cluster.workload(topic) as work:
        work.wait_acked()
        leader = cluster.leader(topic)
        wires.isolate(leader.id)
        work.wait_acked()
        wires.join(leader.id)
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()


def test_a_leader_cut_off_from_zookeeper_alone(network: tuple[Replicated, Network]) -> None:
    cluster, wires = network
    topic = cluster.make_topic()
    with cluster.workload(topic) as work:
        work.wait_acked()
        leader, other = cluster.leader(topic), cluster.follower(topic)
        wires.silence(leader.id, wires.coordination)
        cluster.wait(
            lambda view: all(row.leader != leader.id for row in view.topics[topic].partitions),
            topic,
            at=other,
        )
        work.wait_acked()
        wires.hear(leader.id, wires.coordination)
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()


def test_two_brokers_that_do_not_reach_each_other(network: tuple[Replicated, Network]) -> None:
    """Both reach ZooKeeper: the follower falls behind and leaves, nobody else does."""
    cluster, wires = network
    topic = cluster.make_topic(partitions=1)
    with cluster.workload(topic) as work:
        work.wait_acked()
        leader, follower = cluster.leader(topic), cluster.follower(topic)
        wires.cut(leader.id, follower.id)
        cluster.wait_out_of_sync(topic, follower)
        work.wait_acked()
        assert cluster.leader(topic) is leader
        wires.mend(leader.id, follower.id)
        cluster.wait_in_sync(topic)
        work.wait_acked()
        work.finish()
