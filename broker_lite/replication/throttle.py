"""Limit the bandwidth of replication to replicas outside the ISR, with Kafka's settings (KIP-73).

A topic's settings list the throttled replicas. A broker has two rates in bytes per second: one for
records that it sends as leader, one for records that it fetches as follower."""

from __future__ import annotations

from collections.abc import Mapping

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
RATES = frozenset({LEADER_RATE, FOLLOWER_RATE})
ALL_REPLICAS = "*"
UNLIMITED = (1 << 63) - 1


def lists(replicas: str, partition: int, broker_id: int) -> bool:
    """Return whether a topic's list of throttled replicas, such as "0:1,1:2" (partition and broker
    id) or "*", includes a replica."""
    if not replicas or replicas == ALL_REPLICAS:
        return bool(replicas)
    return f"{partition}:{broker_id}" in replicas.replace(" ", "").split(",")


class Throttle:
    """A token bucket for the bytes of one direction (sent or fetched) of a broker's replication.

    It holds at most the bytes of one second. A batch is sent whole, so the level may fall below
    zero; no bytes are sent until it is above zero again."""

    __slots__ = ("_at_s", "_left", "_rate", "_setting")

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._left = 0.0
        self._rate = 0
        self._at_s: float | None = None

    def allowance(self, settings: Mapping[str, str], now_s: float) -> int:
        """Return the number of bytes that may be sent or fetched now; UNLIMITED if the settings
        have no rate."""
        text = settings.get(self._setting)
        if text is None:
            self._left, self._at_s = 0.0, None
            return UNLIMITED
        if self._at_s is not None:
            self._left += (now_s - self._at_s) * self._rate
        self._rate, self._at_s = int(text), now_s
        self._left = min(self._left, float(self._rate))
        return max(0, int(self._left))

    def spend(self, size: int) -> None:
        """Take the tokens for ``size`` bytes of throttled records that were sent or fetched."""
        if self._at_s is not None:
            self._left -= size
