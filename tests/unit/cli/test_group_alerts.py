"""Tests of every alert, which promtool evaluates on made-up metrics."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from support.promtool import Series, firing

from broker_lite.cli.alerts import ALERTS

LAG = Series("logbus_group_lag_records", (("group", "g"), ("topic", "t")))
LATE = Series("logbus_group_lag_seconds", (("group", "g"), ("topic", "t")))
AGE = Series("logbus_sample_age_seconds", (("instance", "console"),))
CONTROLLER, SECOND, OTHER = (
    Series("logbus_controller_active", (("instance", f"broker-{number}"),)) for number in range(3)
)
INFO, SECOND_INFO, OTHER_INFO = (
    Series("logbus_broker_info", (("cluster_id", cluster), ("instance", f"broker-{number}")))
    for number, cluster in enumerate(("one", "one", "other"))
)
"""Brokers 0 and 1 are in one cluster, broker 2 in another."""
BROKER = (("instance", "broker-0"),)
LISTENER = (*BROKER, ("listener", "CLIENTS"))
DISK = (*BROKER, ("dir", "/data"))
QUERY = (("query", "q"),)
CERTIFICATE = Series("logbus_certificate_end_seconds", LISTENER)
REJECTED = Series("logbus_certificate_reloads_failed_total", LISTENER)
ZNODES = Series("logbus_unreadable_znodes", BROKER)
READY = Series("logbus_ready", BROKER)
LEADERLESS = Series("logbus_leaderless_partitions", BROKER)
BELOW_MIN = Series("logbus_under_min_isr_partitions", BROKER)
UNDER_REPLICATED = Series("logbus_under_replicated_partitions", BROKER)
SIZE = Series("logbus_disk_size_bytes", DISK)
FREE = Series("logbus_disk_free_bytes", DISK)
FULL = Series("logbus_disk_full", DISK)
FAILED = Series("logbus_disk_failed", DISK)
FAST_FLUSHES, QUICK_FLUSHES, FLUSHES = (
    Series("logbus_flush_duration_seconds_bucket", (*BROKER, ("le", le)))
    for le in ("0.01", "0.2", "+Inf")
)
CORRUPT = Series("logbus_corrupt_batches_total", (*BROKER, ("outcome", "read")))
SESSION_LOSSES = Series("logbus_zookeeper_session_losses_total", BROKER)
TRANSACTION = Series("logbus_oldest_transaction_age_seconds", BROKER)
SPARK_LAG = Series("logbus_spark_lag_records", QUERY)
SPARK_LOST = Series("logbus_spark_lost_records_total", QUERY)
DAY_S = 86_400.0
"""Seconds in a day. promtool's clock starts at 0, so times in samples are small numbers."""
HEALTHY = {
    LAG: 10.0, LATE: 2.0, AGE: 3.0, CERTIFICATE: 60 * DAY_S, REJECTED: 1.0, ZNODES: 0.0,
    CONTROLLER: 1.0, SECOND: 0.0, OTHER: 1.0, INFO: 1.0, SECOND_INFO: 1.0, OTHER_INFO: 1.0,
    READY: 1.0, LEADERLESS: 0.0, BELOW_MIN: 0.0, UNDER_REPLICATED: 0.0,
    SIZE: 1000.0, FREE: 150.0, FULL: 0.0, FAILED: 0.0,
    FAST_FLUSHES: 0.0, QUICK_FLUSHES: 0.0, FLUSHES: 0.0, CORRUPT: 2.0, SESSION_LOSSES: 5.0,
    TRANSACTION: 900.0, SPARK_LAG: 10.0, SPARK_LOST: 7.0,
}  # fmt: skip
"""Values of a cluster without a new fault. Its counters have counted earlier faults."""
FAST = {FAST_FLUSHES: 100.0, QUICK_FLUSHES: 100.0, FLUSHES: 100.0}
"""Flushes of each minute. All of them take less than 10 ms."""


class Case(NamedTuple):
    """``changed`` are values that differ from ``HEALTHY``; for the others see ``firing``."""

    expected: set[str]
    changed: dict[Series, float] = {}
    each_minute: dict[Series, float] = {}
    samples: dict[Series, str] = {}


CASES = {
    "healthy": Case(set()),
    "high lag in seconds": Case({"LogbusGroupLate"}, {LATE: 301.0}),
    "growing lag": Case({"LogbusGroupLagGrowing"}, each_minute={LAG: 50.0}),
    "growing lag of Spark": Case({"LogbusSparkLagGrowing"}, each_minute={SPARK_LAG: 50.0}),
    "stale sample": Case({"LogbusStaleSample"}, {AGE: 1.0}, {AGE: 60.0}),
    "no controller": Case({"LogbusNoController"}, {CONTROLLER: 0.0}),
    "two controllers": Case({"LogbusSeveralControllers"}, {SECOND: 1.0}),
    "no leader": Case({"LogbusLeaderlessPartitions"}, {LEADERLESS: 1.0}),
    "below min.insync.replicas": Case({"LogbusBelowMinInsync"}, {BELOW_MIN: 1.0}),
    "under-replicated": Case({"LogbusUnderReplicated"}, {UNDER_REPLICATED: 1.0}),
    "not ready": Case({"LogbusBrokerNotReady"}, {READY: 0.0}),
    "14.9 % of the disk free": Case({"LogbusDiskSpaceLow"}, {FREE: 149.0}),
    "4.9 % of the disk free": Case({"LogbusDiskSpaceLow", "LogbusDiskAlmostFull"}, {FREE: 49.0}),
    "disk full": Case({"LogbusDiskFull"}, {FULL: 1.0}),
    "disk failed": Case({"LogbusDiskFailed"}, {FAILED: 1.0}),
    "2 % of flushes above 10 ms": Case({"LogbusSlowFlush"}, each_minute={FAST_FLUSHES: 98.0}),
    "three lost sessions": Case(
        {"LogbusZooKeeperSessionLost"}, samples={SESSION_LOSSES: "5x30 6 7 8x8"}
    ),
    "two lost sessions": Case(set(), samples={SESSION_LOSSES: "5x30 6 7x8"}),
    "old transaction": Case({"LogbusTransactionOpen"}, {TRANSACTION: 901.0}),
    "certificate ends": Case({"LogbusCertificateEnds"}, {CERTIFICATE: 13 * DAY_S}),
    "unreadable znodes": Case({"LogbusUnreadableZnodes"}, {ZNODES: 1.0}),
} | {
    f"{alert}: {title}": Case({alert} if fires else set(), samples={counter: samples})
    for alert, counter in (
        ("LogbusCertificateRejected", REJECTED),
        ("LogbusCorruptBatch", CORRUPT),
        ("LogbusSparkRecordsLost", SPARK_LOST),
    )
    for title, samples, fires in (
        ("first count of a series", "_x35 1x5", True),
        ("first count after 0", "0x34 1x5", True),
        ("count after a restart", "1x30 0x4 1x5", True),
        ("count after a restart without samples", "5x5 _x28 1x5", True),
        ("count 20 minutes ago", "0x19 1x20", False),
        ("failed scrapes", "5x10 _x20 5x10", False),
    )
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_fault_fires_only_its_own_alert(case: Case, tmp_path: Path) -> None:
    scrape, rises = HEALTHY | case.changed, FAST | case.each_minute
    assert firing(scrape, tmp_path, each_minute=rises, samples=case.samples) == case.expected


def test_each_alert_has_a_case_that_fires_it() -> None:
    fired = set().union(*(case.expected for case in CASES.values()))
    assert fired == {alert.name for alert in ALERTS}


def test_alert_for_no_controller_fires_for_a_cluster_whose_brokers_have_all_ended(
    tmp_path: Path,
) -> None:
    ended = (CONTROLLER, SECOND, INFO, SECOND_INFO)
    assert firing(HEALTHY, tmp_path, gone=ended) == {"LogbusNoController"}
    assert firing(HEALTHY, tmp_path, gone=(CONTROLLER, INFO)) == {"LogbusNoController"}
    assert firing(HEALTHY | {SECOND: 1.0}, tmp_path, gone=(CONTROLLER, INFO)) == set()
