"""Compute how long a broker delays its answer to a failed login, against guesses of passwords.

In each minute, the broker answers ``FAILURES_PER_MIN`` failed logins of an address after
``DELAY_S``, and further failures after ``SLOW_DELAY_S``. It never delays a login with the right
password, so that an attacker cannot lock out a user of the same address.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from broker_lite.security.acls import canonical_host
from broker_lite.security.quotas import TokenBucket

DELAY_S = 0.1
"""Seconds before the answer to a failed login, as in Kafka's default of
``connection.failed.authentication.delay.ms``."""
SLOW_DELAY_S = 5.0
FAILURES_PER_MIN = 20
ADDRESSES_MAX = 10_000
"""Maximum addresses whose failures are counted. A new address replaces the address whose last
failure is oldest."""


def network_of(host: str) -> str:
    """Return the network to which the connections and failed logins of a host are counted.

    The network is an IPv4 address, or an IPv6 /64, which usually belongs to one host. IPv4 mapped
    into IPv6, which a listener on ``::`` reports, counts as IPv4: one /64 contains all mapped
    addresses.
    """
    address = ipaddress.ip_address(canonical_host(host))
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class FailedLogins:
    """The counts of failed logins at one broker, by network."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, TokenBucket] = OrderedDict()
        """By network, the number of failures that are still answered after ``DELAY_S``. The network
        whose last failure is oldest comes first."""

    def delay_s(self, host: str, now_ms: float) -> float:
        """Count a failed login, and return the seconds by which to delay its answer."""
        network = network_of(host)
        bucket = self._left.get(network)
        if bucket is None:
            if len(self._left) >= ADDRESSES_MAX:
                self._left.popitem(last=False)
            bucket = self._left[network] = TokenBucket(FAILURES_PER_MIN / 60, now_ms, 60.0)
        self._left.move_to_end(network)
        bucket.spend(0, now_ms)
        if bucket.left < 1:
            return SLOW_DELAY_S
        bucket.spend(1, now_ms)
        return DELAY_S
