"""Tests of how long a broker delays its response to a failed login, by the client's address."""

from __future__ import annotations

from broker_lite.security.login_failures import (
    ADDRESSES_MAX,
    DELAY_S,
    FAILURES_PER_MIN,
    SLOW_DELAY_S,
    FailedLogins,
    network_of,
)


def test_address_with_over_twenty_failed_logins_a_minute_is_delayed_longer() -> None:
    failures = FailedLogins()
    delays = [failures.delay_s("10.0.0.7", 0) for _ in range(FAILURES_PER_MIN + 100)]
    assert delays == [DELAY_S] * FAILURES_PER_MIN + [SLOW_DELAY_S] * 100
    assert failures.delay_s("10.0.0.8", 0) == DELAY_S
    assert failures.delay_s("10.0.0.7", 2_000) == SLOW_DELAY_S
    assert failures.delay_s("10.0.0.7", 4_000) == DELAY_S
    assert [failures.delay_s("10.0.0.7", 100_000) for _ in range(20)] == [DELAY_S] * 20


def test_failed_logins_from_one_ipv6_network_of_64_bits_count_as_one_address() -> None:
    assert network_of("2001:db8:0:1::1") == network_of("[2001:db8:0:1:ffff::2]")
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8:0:2::1")
    failures = FailedLogins()
    for number in range(FAILURES_PER_MIN):
        assert failures.delay_s(f"2001:db8::{number:x}", 0) == DELAY_S
    assert failures.delay_s("2001:db8::ffff", 0) == SLOW_DELAY_S


def test_number_of_addresses_with_failed_logins_is_limited() -> None:
    failures = FailedLogins()
    for number in range(ADDRESSES_MAX + 50):
        failures.delay_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number)
    assert len(failures._left) == ADDRESSES_MAX


def test_address_that_keeps_failing_is_not_evicted_by_many_other_addresses() -> None:
    failures = FailedLogins()
    for _ in range(FAILURES_PER_MIN):
        failures.delay_s("192.0.2.1", 0)
    for number in range(ADDRESSES_MAX + 50):
        failures.delay_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0)
        assert failures.delay_s("192.0.2.1", 0) == SLOW_DELAY_S


def test_ipv4_addresses_mapped_into_ipv6_are_counted_separately() -> None:
    """A listener on ``::`` sees IPv4 clients as ::ffff:a.b.c.d, all in one /64 network, by which
    failed logins over IPv6 are counted."""
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1")
    assert network_of("::ffff:192.0.2.1") != network_of("::ffff:192.0.2.2")
