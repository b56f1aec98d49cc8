"""Kill brokers, and evaluate the alert rules on the metrics of the remaining brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.patience import until
from support.promtool import firing
from support.scrapes import scraped

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster


def total(running: LocalCluster, name: str) -> float:
    return scraped(running.brokers).total(name)


@pytest.mark.real
def test_alerts_fire_for_partitions_whose_brokers_were_killed(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    running = make_cluster(3, config={"metrics.port": "0", "zookeeper.session.timeout.ms": "2000"})
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic("safe", partitions=2, config={"min.insync.replicas": "2"})
        bus.create_topic("alone", partitions=3, replication_factor=1)
        with bus.producer() as producer:
            producer.send("safe", b"x").result()
        until(lambda: total(running, "logbus_controller_active") == 1)
        assert firing(scraped(running.brokers).values, tmp_path) == set()
        controller = bus.admin.cluster().controller_id
        first, second = (each for each in running.brokers if each.id != controller)
        first.kill()
        until(lambda: total(running, "logbus_leaderless_partitions") == 1)
        until(lambda: total(running, "logbus_under_replicated_partitions") == 2)
        assert firing(scraped(running.brokers).values, tmp_path) == {
            "LogbusLeaderlessPartitions",
            "LogbusUnderReplicated",
        }
        second.kill()
        until(lambda: total(running, "logbus_under_min_isr_partitions") == 2)
        until(lambda: total(running, "logbus_leaderless_partitions") == 2)
        assert firing(scraped(running.brokers).values, tmp_path) == {
            "LogbusBelowMinInsync",
            "LogbusLeaderlessPartitions",
            "LogbusUnderReplicated",
        }
