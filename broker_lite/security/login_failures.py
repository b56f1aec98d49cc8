"""The delay of the answer to a failed login, by client address. Pure.

Guessing passwords needs many failures. ``FAILURES_PER_MIN`` of one address are answered after
``DELAY_S``, further ones after ``SLOW_DELAY_S``. A right password is never delayed, so an attacker
cannot keep a user of the same address out.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from broker_lite.security.acls import canonical_host
from broker_lite.security.quotas import TokenBucket

DELAY_S = 0.1
"""Seconds until a failed login is answered (Kafka's connection.failed.authentication.delay.ms)."""
SLOW_DELAY_S = 5.0
FAILURES_PER_MIN = 20
ADDRESSES_MAX = 10_000
"""Maximum addresses that are tracked. A further one replaces the address whose last failure is
oldest."""


def network_of(host: str) -> str:
    """Return the address whose connections and failures are counted together: an IPv4 address, or
    an IPv6 /64, which usually belongs to one host. A listener on ``::`` gives IPv4 addresses mapped
    into IPv6, and one /64 holds all of them; they are counted as IPv4."""
    address = ipaddress.ip_address(canonical_host(host))
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class FailedLogins:
    """The failed logins at one broker."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, TokenBucket] = OrderedDict()
        """The failures that each network may still have, ordered by last failure, the oldest
        first."""

    def delay_s(self, host: str, now_ms: float) -> float:
        """Count a failed login; return the seconds after which it is answered."""
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
