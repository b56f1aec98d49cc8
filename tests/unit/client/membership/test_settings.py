"""Tests of the options of group members, and of option values that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.options import build, check_names
from broker_lite.errors import InvalidConfigError


def test_member_accepts_assignors_as_text_or_list() -> None:
    config = build(MemberConfig, {"assignors": ["sticky", "range"]}, {})
    assert config.assignor_names == ("sticky", "range") and not config.is_cooperative
    kafkas = {"partition_assignment_strategy": "cooperative-sticky"}
    assert build(MemberConfig, kafkas, {}).is_cooperative
    assert not MemberConfig().is_cooperative, "the group may choose range"
    check_names({"session_timeout_ms": 6000, "group_instance_id": "a"})


def test_rebalance_timeout_defaults_to_max_poll_interval() -> None:
    assert MemberConfig(max_poll_interval_ms=7000).gathering_ms == 7000
    assert MemberConfig(rebalance_timeout_ms=500).gathering_ms == 500


@pytest.mark.parametrize(
    "options",
    [
        {"assignors": "round-robin"},
        {"assignors": ""},
        {"session_timeout_ms": 1500},
        {"heartbeat_interval_ms": 30_000},
        {"max_poll_interval_ms": 0},
    ],
)
def test_invalid_member_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        build(MemberConfig, options, {})
