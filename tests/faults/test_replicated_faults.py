"""Test replicated topics while real processes, disks and networks fail.

A workload writes and reads during each fault. No acknowledged record may be lost, duplicated or out
of order, no reader may get uncommitted records, and no producer may report an error. ``make chaos``
runs many more faults.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from faults import bit_flips, machine
from faults.group_member import member_of
from faults.history import WAIT_S, read_log
from faults.machine import Network
from faults.replicated import POLL_S, Replicated, on_disks, on_network
from support.plain_connection import PlainConnection

from broker_lite.cli.main import EXIT_CRITICAL, run
from broker_lite.client import ClusterView, Producer
from broker_lite.errors import (
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    StorageError,
    UnknownMemberIdError,
    error_for,
)
from broker_lite.local.broker import LocalBroker
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("replicated-faults")]

SESSION_MS = "2000"
LAG_MS = "2000"
PAST_SESSION = 1000
"""Acknowledgements to wait for, so many that they take longer than a session timeout."""

needs_disks = pytest.mark.skipif(
    bool(machine.why_no_disks()), reason=f"no disks: {machine.why_no_disks()}"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    directory = tmp_path_factory.mktemp("disks")
    with on_disks(
        directory,
        zookeeper_session_timeout_ms=SESSION_MS,
        replica_lag_time_max_ms=LAG_MS,
        metrics_port="0",
    ) as running:
        yield running


@pytest.fixture
def topic(cluster: Replicated) -> str:
    cluster.start_all()
    return cluster.make_topic()


def others(cluster: Replicated, *brokers: LocalBroker) -> list[LocalBroker]:
    return [broker for broker in cluster.brokers.values() if broker not in brokers]


def change_a_setting(broker: LocalBroker, topic: str) -> None:
    """Change a topic's setting through a broker; retry retriable errors."""
    row = AlterConfigsResource(2, topic, (AlterableConfig("retention.ms", 0, "900000"),))
    codes = []
    deadline = time.monotonic() + WAIT_S
    with PlainConnection(broker.endpoint) as connection:
        while not codes or codes[-1]:
            assert time.monotonic() < deadline, codes
            answer = connection.call(IncrementalAlterConfigsRequest((row,)))
            codes.append(answer.responses[0].error_code)
            time.sleep(POLL_S)
    refused = {code for code in codes if code}
    assert all(error_for(code).retriable for code in refused), refused


def test_sigkill_of_leader_follower_or_controller_loses_no_acknowledged_record(
    cluster: Replicated, topic: str
) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        for role in (cluster.leader, cluster.follower, lambda _: cluster.controller()):
            victim = role(topic)
            victim.kill()
            change_a_setting(others(cluster, victim)[0], topic)
            work.wait_acked()
            victim.start()
            cluster.wait_in_sync(topic)
        assert len(cluster.finish(work).sent) > 100


def test_sigkill_of_all_brokers_loses_no_acknowledged_record(
    cluster: Replicated, topic: str
) -> None:
    with cluster.workload(topic) as work:
        work.wait_acked()
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start_all()
        cluster.finish(work)


def test_hanging_controller_is_replaced_and_rejoins_as_broker(
    cluster: Replicated, topic: str
) -> None:
    """The controller also leads partitions. After it resumes, it must act as an ordinary broker."""
    with cluster.workload(topic) as work:
        work.wait_acked()
        hung = cluster.controller()
        hung.pause()
        change_a_setting(others(cluster, hung)[0], topic)
        work.wait_acked()
        hung.resume()
        cluster.wait(lambda view: view.controller_id not in (hung.id, -1))
        cluster.finish(work)


def test_coordinator_hanging_past_its_session_commits_no_offset(
    cluster: Replicated, topic: str
) -> None:
    """A commit waits in the socket of a suspended coordinator.

    Another broker takes the group over, and the member commits there. When the former coordinator
    resumes, it must not write the earlier commit.
    """
    hung = member_of(cluster, topic)
    hung.join()
    assert hung.commit(5) == 0
    old = cluster.brokers[hung.coordinator]
    old.pause()
    try:
        hung.send_commit(6)
        heir = member_of(cluster, topic)
        heir.move_from(old.id)
        assert heir.join(hung.member_id) == UnknownMemberIdError.code
        heir.join()
        assert heir.generation > hung.generation
        assert heir.commit(9) == 0
    finally:
        old.resume()
    assert hung.committed() in (NotCoordinatorError.code, CoordinatorNotAvailableError.code)
    found = cluster.admin.committed(topic)
    assert {tp: row.offset for tp, row in found.items()} == {TopicPartition(topic, 0): 9}
    # The resumed broker registers again, becomes the coordinator and continues the generations.
    last = member_of(cluster, topic)
    last.join()
    assert last.generation > heir.generation
    assert last.commit(10) == 0
    for member in (hung, heir, last):
        member.close()


@needs_disks
def test_stale_replicas_do_not_lead_before_the_up_to_date_one_returns(
    cluster: Replicated, topic: str
) -> None:
    """The first broker hung and fell behind, then the second lost its power.

    The third broker, which alone has all acknowledged records, then hangs too. The first two
    return, but must not lead until the third returns.
    """
    with cluster.workload(topic) as work:
        work.wait_acked()
        last = cluster.leader(topic)
        asleep, cut = others(cluster, last)
        asleep.pause()
        cluster.wait_out_of_sync(topic, asleep, at=last)
        work.wait_acked()
        cluster.cut_power([cut], Random(0))
        cluster.wait_out_of_sync(topic, cut, at=last)
        last.pause()
        asleep.resume()
        cut.start()

        def nobody_leads(view: ClusterView) -> bool:
            rows = view.topics[topic].partitions
            return all((row.leader, list(row.isr)) == (-1, [last.id]) for row in rows)

        for broker in (asleep, cut):
            cluster.wait(nobody_leads, topic, at=broker)
        last.resume()
        cluster.finish(work)


def test_partition_gets_a_leader_after_its_leader_died_during_a_zookeeper_outage(
    cluster: Replicated, topic: str
) -> None:
    """ZooKeeper is down for longer than a session timeout; leaders serve meanwhile.

    Then the partition's leader dies.
    """
    with cluster.workload(topic) as work:
        work.wait_acked()
        cluster.zookeeper.kill()
        work.wait_acked(PAST_SESSION)
        cluster.leader(topic).kill()
        cluster.zookeeper.start()
        work.wait_acked()
        cluster.start_all()
        cluster.finish(work)


@needs_disks
def test_power_loss_of_all_brokers_loses_no_acknowledged_record(
    cluster: Replicated, topic: str
) -> None:
    with cluster.workload(topic) as work:
        for seed in range(2):
            work.wait_acked()
            cluster.cut_power(list(cluster.brokers.values()), Random(seed))
            cluster.start_all()
        cluster.finish(work)


def check_disk_reports(
    cluster: Replicated,
    victim: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    *,
    state: str,
    found: str,
) -> None:
    """Check that ``health``, ``doctor``, ``status``, ``/metrics`` and ``/readyz`` report a broker's
    disk as critical.

    The gauge of the ``state`` ("full" or "failed") is 1, and the commands print a text that
    contains ``found``."""
    address = f"http://127.0.0.1:{victim.metrics_port}"
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    directory = victim.directory / "data"
    assert f'logbus_disk_{state}{{dir="{directory}"}} 1.0' in lines
    with pytest.raises(urllib.error.HTTPError) as unready:
        urllib.request.urlopen(f"{address}/readyz")
    assert unready.value.code == 503
    (reason,) = json.loads(unready.value.read())["reasons"]
    assert str(directory) in reason and reason.endswith(state)
    printed = {}
    for command, code in (("health", EXIT_CRITICAL), ("doctor", EXIT_CRITICAL), ("status", 0)):
        capsys.readouterr()
        assert run([command, "-b", cluster.bootstrap_servers, "-o", "json"]) == code
        printed[command] = capsys.readouterr()
    about, text = f"broker {victim.id}", f"{directory}: {found}"
    for command in ("health", "status"):
        causes = json.loads(printed[command].out)["causes"]
        (cause,) = (each for each in causes if each["about"] == about)
        assert cause["state"] == "critical" and text in cause["found"], command
    assert f"critical: {about}: {text}" in printed["status"].err
    (finding,) = (
        each for each in json.loads(printed["doctor"].out) if each["check"] == "brokers' disks"
    )
    assert finding["state"] == "critical" and f"{about}: {text}" in finding["found"]


@needs_disks
def test_broker_with_full_disk_gives_up_leadership_and_rejoins(
    cluster: Replicated, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker leaves the ISRs at once, and stays out until its disk has space, even after a
    restart. Regression: ``logbus status`` did not show the full disk."""
    single = f"{topic}-single"
    with cluster.workload(topic) as work:
        work.wait_acked()
        victim = cluster.leader(topic)
        cluster.admin.create_topic(single, 3, 1)
        number = cluster.led_by(single, victim)[0]
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send(single, b"before", partition=number).result(WAIT_S)
        cluster.disks[victim.id].fill()
        try:
            cluster.wait_out_of_sync(topic, victim)
            assert cluster.led_by(topic, victim) == []
            full = {"state": "full", "found": "the disk is full"}
            check_disk_reports(cluster, victim, capsys, **full)
            work.wait_acked()
            victim.kill()
            victim.start()
            work.wait_acked()
            # Consumers can still read a partition that has no other replica.
            assert read_log(cluster.bootstrap_servers, single)[number] == [(0, b"before")]
            assert cluster.led_by(topic, victim) == []
        finally:
            cluster.disks[victim.id].free()
        cluster.finish(work)


@pytest.mark.skipif(bool(machine.why_no_strace()), reason=f"no strace: {machine.why_no_strace()}")
def test_fsync_error_stops_the_replica_but_not_the_partition(
    cluster: Replicated, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records before a failed fsync must not be acknowledged, even if the next fsync succeeds."""
    with cluster.workload(topic) as work:
        work.wait_acked()
        victim = cluster.leader(topic)
        assert victim.pid is not None
        how = "error=EIO:when=1"
        with machine.failing(victim.pid, "fdatasync", how, tmp_path / "strace.log"):
            cluster.wait_out_of_sync(topic, victim)
            work.wait_acked()
        failed = {"state": "failed", "found": StorageError().message}
        check_disk_reports(cluster, victim, capsys, **failed)
        victim.kill()
        victim.start()
        cluster.finish(work)


def test_flipped_bits_are_detected_before_delivery_and_repaired(cluster: Replicated) -> None:
    cluster.start_all()
    seed = int.from_bytes(os.urandom(4), "big")
    try:
        found = bit_flips.run(cluster, Random(seed), 40, per_round=20)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert found["flips"] == 40


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


def test_controller_cut_off_from_all_peers_is_replaced(network: tuple[Replicated, Network]) -> None:
    """The controller also leads a partition, so clients must find its new leader."""
    cluster, wires = network
    topic = cluster.make_topic()
    with cluster.workload(topic) as work:
        work.wait_acked()
        alone = cluster.controller()
        wires.isolate(alone.id)
        work.wait_acked()
        wires.join(alone.id)
        cluster.wait(lambda view: view.controller_id not in (alone.id, -1))
        cluster.finish(work)


def test_leader_cut_off_from_zookeeper_loses_no_acknowledged_record(
    network: tuple[Replicated, Network],
) -> None:
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
        cluster.finish(work)


@pytest.mark.parametrize("ways", ["both ways", "one way"])
def test_two_brokers_cut_off_from_each_other_lose_no_acknowledged_record(
    network: tuple[Replicated, Network], ways: str
) -> None:
    """Each of the two brokers follows partitions of the other, and both reach ZooKeeper.

    A follower that falls behind must leave the ISR. If only one direction is cut, one leader
    receives fetches but its responses are lost; the other leader receives no fetch.
    """
    cluster, wires = network
    topic = cluster.make_topic()
    with cluster.workload(topic) as work:
        work.wait_acked()
        first, second = cluster.leader(topic, 0), cluster.leader(topic, 1)
        assert first is not second
        if ways == "one way":
            wires.silence(first.id, wires.address(second.id))
        else:
            wires.cut(first.id, second.id)

        def parted(view: ClusterView) -> bool:
            mine, theirs = view.topics[topic].partitions[:2]
            return second.id not in mine.isr and first.id not in theirs.isr

        cluster.wait(parted, topic)
        work.wait_acked()
        assert cluster.leader(topic, 0) is first and cluster.leader(topic, 1) is second
        if ways == "one way":
            wires.hear(first.id, wires.address(second.id))
        else:
            wires.mend(first.id, second.id)
        cluster.finish(work)
