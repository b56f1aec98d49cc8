"""Compute how long a broker delays its answer to a failed login, so that passwords cannot be
guessed quickly.

In each minute, the broker answers ``FAILURES_PER_MIN`` failed logins from a network (an IPv4
address or a /64) after ``DELAY_S``, and further ones after ``SLOW_DELAY_S``. It never delays a
login with the right password, so that an attacker cannot lock out a user of the same network."""

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
"""Maximum networks whose failed logins are counted. A new network replaces the one whose last
failure is oldest."""


def network_of(host: str) -> str:
    """Return the network of a host, by which a broker counts connections and failed logins.

    The network is the IPv4 address itself, or the /64 of an IPv6 address, which usually belongs to
    one host. A listener on ``::`` reports IPv4 addresses as IPv6 addresses (``::ffff:…``). Such
    addresses count as IPv4, because a single /64 contains all of them."""
    address = ipaddress.ip_address(canonical_host(host))
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class FailedLogins:
    """The counts of failed logins at one broker, by network."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, TokenBucket] = OrderedDict()
        """For each network, the number of failed logins that still get the short delay ``DELAY_S``.
        The network whose last failure is oldest comes first."""

    def delay_s(self, host: str, now_ms: float) -> float:
        """Count a failed login from ``host``, and return for how many seconds to delay the broker's
        answer."""
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
