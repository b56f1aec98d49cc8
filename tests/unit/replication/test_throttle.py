"""Tests of the throttle of replication to replicas outside the ISR."""

from __future__ import annotations

import pytest

from broker_lite.replication.throttle import LEADER_RATE, UNLIMITED, Throttle, lists


def test_replication_throttle_allows_at_most_the_rate_plus_one_batch() -> None:
    throttle, settings, sent, now_s = Throttle(LEADER_RATE), {LEADER_RATE: "1000"}, 0, 0.0
    for _ in range(200):
        if throttle.allowance(settings, now_s):
            throttle.spend(300)
            sent += 300
        assert sent <= 1000 * now_s + 300
        now_s += 0.05
    assert sent >= 9600


def test_replication_throttle_accumulates_at_most_one_second_of_its_rate() -> None:
    throttle, settings = Throttle(LEADER_RATE), {LEADER_RATE: "1000"}
    assert throttle.allowance(settings, 5.0) == 0
    assert throttle.allowance(settings, 500.0) == 1000
    throttle.spend(3000)
    assert throttle.allowance(settings, 502.0) == 0
    assert throttle.allowance(settings, 502.5) == 500


def test_replication_throttle_without_a_rate_is_unlimited() -> None:
    throttle = Throttle(LEADER_RATE)
    assert throttle.allowance({}, 1.0) == UNLIMITED
    throttle.spend(1 << 40)
    assert throttle.allowance({LEADER_RATE: "10"}, 2.0) == 0
    assert throttle.allowance({LEADER_RATE: "10"}, 2.5) == 5
    assert throttle.allowance({LEADER_RATE: "0"}, 99.0) == 0
    # After a change of the rate, the allowance begins at 0 bytes.
    assert throttle.allowance({LEADER_RATE: "10"}, 100.0) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", False), ("*", True), ("0:1,3:2", True), ("0:1, 3:2", True), ("3:1,2:3,13:2,3:22", False)],
)
def test_throttled_replicas_setting_is_matched_by_partition_and_broker(
    text: str, expected: bool
) -> None:
    assert lists(text, 3, 2) is expected
