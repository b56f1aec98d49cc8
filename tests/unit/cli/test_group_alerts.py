"""The alerts about groups, evaluated by promtool on values of the console's metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promtool import Series, firing

LAG = Series("logbus_group_lag_records", (("group", "g"), ("topic", "t")))
LATE = Series("logbus_group_lag_seconds", (("group", "g"), ("topic", "t")))
AGE = Series("logbus_sample_age_seconds", (("instance", "console"),))
CONTROLLER = Series("logbus_controller_active", (("instance", "broker-0"),))
HEALTHY = {LAG: 10.0, LATE: 2.0, AGE: 3.0, CONTROLLER: 1.0}


@pytest.mark.parametrize(
    ("changed", "each_minute", "expected"),
    [
        ({}, {}, set()),
        ({LATE: 301.0}, {}, {"LogbusGroupLate"}),
        ({}, {LAG: 50.0}, {"LogbusGroupLagGrowing"}),
        ({AGE: 1.0}, {AGE: 60.0}, {"LogbusStaleSample"}),
        ({CONTROLLER: 0.0}, {}, {"LogbusNoController"}),
    ],
    ids=["healthy", "late", "growing", "stale", "no controller"],
)
def test_alert_fires_for_its_cause_alone(
    changed: dict[Series, float],
    each_minute: dict[Series, float],
    expected: set[str],
    tmp_path: Path,
) -> None:
    assert firing(HEALTHY | changed, tmp_path, each_minute=each_minute) == expected
