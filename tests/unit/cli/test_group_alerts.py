"""Tests of alerts about groups and security, which promtool evaluates on made-up metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promtool import Series, firing

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
LISTENER = (("instance", "broker-0"), ("listener", "CLIENTS"))
CERTIFICATE = Series("logbus_certificate_end_seconds", LISTENER)
REJECTED = Series("logbus_certificate_reloads_failed_total", LISTENER)
ZNODES = Series("logbus_unreadable_znodes", (("instance", "broker-0"),))
DAY_S = 86_400.0
"""Seconds in a day. promtool's clock starts at 0, so times in samples are small numbers."""
HEALTHY = {
    LAG: 10.0, LATE: 2.0, AGE: 3.0, CERTIFICATE: 60 * DAY_S, REJECTED: 0.0, ZNODES: 0.0,
    CONTROLLER: 1.0, SECOND: 0.0, OTHER: 1.0, INFO: 1.0, SECOND_INFO: 1.0, OTHER_INFO: 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "each_minute", "expected"),
    [
        ({}, {}, set()),
        ({LATE: 301.0}, {}, {"LogbusGroupLate"}),
        ({}, {LAG: 50.0}, {"LogbusGroupLagGrowing"}),
        ({AGE: 1.0}, {AGE: 60.0}, {"LogbusStaleSample"}),
        ({CONTROLLER: 0.0}, {}, {"LogbusNoController"}),
        ({SECOND: 1.0}, {}, {"LogbusSeveralControllers"}),
        ({CERTIFICATE: 13 * DAY_S}, {}, {"LogbusCertificateEnds"}),
        ({}, {REJECTED: 1.0}, {"LogbusCertificateRejected"}),
        ({ZNODES: 1.0}, {}, {"LogbusUnreadableZnodes"}),
    ],
    ids=[
        "healthy",
        "high lag in seconds",
        "growing lag",
        "stale sample",
        "no controller",
        "two controllers",
        "certificate ends",
        "certificate rejected",
        "unreadable znodes",
    ],
)
def test_each_cluster_or_group_fault_fires_only_its_own_alert(
    changed: dict[Series, float],
    each_minute: dict[Series, float],
    expected: set[str],
    tmp_path: Path,
) -> None:
    assert firing(HEALTHY | changed, tmp_path, each_minute=each_minute) == expected


def test_alert_for_no_controller_fires_for_a_cluster_whose_brokers_have_all_ended(
    tmp_path: Path,
) -> None:
    ended = (CONTROLLER, SECOND, INFO, SECOND_INFO)
    assert firing(HEALTHY, tmp_path, gone=ended) == {"LogbusNoController"}
    assert firing(HEALTHY, tmp_path, gone=(CONTROLLER, INFO)) == {"LogbusNoController"}
    assert firing(HEALTHY | {SECOND: 1.0}, tmp_path, gone=(CONTROLLER, INFO)) == set()
