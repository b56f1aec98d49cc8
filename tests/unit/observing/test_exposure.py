"""Tests of warnings about settings that leave a cluster open, and about old ZooKeeper versions."""

from __future__ import annotations

import pytest

from broker_lite.observing.exposure import exposure_cause, zookeeper_cause

SECURE = {
    "authorizer": "enforce",
    "listeners.insecure.allow": "false",
    "zookeeper.auth.file": "/etc/logbus/zookeeper.auth",
}
OPEN = {"authorizer": "off", "listeners.insecure.allow": "false", "zookeeper.auth.file": ""}


@pytest.mark.parametrize(
    ("hosts", "accounts", "users"),
    [
        ({"127.0.0.1", "::1", "localhost"}, 0, None),
        ({"127.0.0.1"}, 1, "1 other account of this machine"),
        ({"127.0.0.1"}, 2, "2 other accounts of this machine"),
        ({"127.0.0.1", "bus2"}, 0, "other machines"),
        ({"10.0.0.1"}, 3, "other machines"),
    ],
)
def test_warning_about_an_open_cluster_says_who_can_reach_it(
    hosts: set[str], accounts: int, users: str | None
) -> None:
    cause = exposure_cause({1: OPEN, 2: OPEN}, hosts, accounts)
    if users is None:
        assert cause is None
        return
    assert cause is not None and cause.state == "warning"
    assert cause.found == f"open to {users}: authorizer=off, zookeeper.auth.file=(empty)"
    assert ("logbus up --secure" in cause.cure) is ("account" in users)


def test_warning_names_each_setting_that_exposes_the_cluster_and_the_brokers_that_have_it() -> None:
    assert exposure_cause({1: SECURE}, {"bus1"}, 5) is None
    for key, value, shown in (
        ("authorizer", "report", "authorizer=report"),
        ("listeners.insecure.allow", "true", "listeners.insecure.allow=true"),
        ("zookeeper.auth.file", "", "zookeeper.auth.file=(empty)"),
    ):
        cause = exposure_cause({1: SECURE, 2: SECURE | {key: value}}, {"bus1"}, 0)
        assert cause is not None
        assert cause.found == f"open to other machines: {shown} (broker 2)"


@pytest.mark.parametrize(
    ("host", "version", "has_tls", "is_old"),
    [
        ("zk1", (3, 9, 4), True, True),
        ("zk1", (3, 8, 10), False, True),
        ("127.0.0.1", (3, 9, 4), True, True),
        ("127.0.0.1", (3, 9, 4), False, False),
        ("zk1", (3, 9, 5), True, False),
        ("zk1", (3, 10, 0), True, False),
    ],
)
def test_zookeeper_before_3_9_5_causes_a_warning_unless_it_is_local_and_without_tls(
    host: str, version: tuple[int, ...], has_tls: bool, is_old: bool
) -> None:
    cause = zookeeper_cause(host, version, has_tls=has_tls)
    assert (cause is not None) is is_old
    if cause is not None:
        assert f"{host} runs {'.'.join(map(str, version))}" in cause.found
        assert "3.9.5 or later" in cause.cure
