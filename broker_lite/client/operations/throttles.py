"""Remember which brokers throttle a client that is over its quota (KIP-219).

An answer says for how long the broker starts no request that comes on the same connection. A
request that is sent meanwhile may time out."""

from __future__ import annotations

from broker_lite.model import Endpoint


class Throttles:
    """The time (ms) until which each broker throttles this client."""

    def __init__(self) -> None:
        self._until_ms: dict[Endpoint, float] = {}

    def __bool__(self) -> bool:
        """Return whether any throttle is stored; ``forget`` removes ended ones."""
        return bool(self._until_ms)

    def note(self, endpoint: Endpoint, throttle_time_ms: int, now_ms: float) -> None:
        """Store the throttle time of a broker's answer; 0 means none."""
        if throttle_time_ms:
            until_ms = max(self.until_ms(endpoint), now_ms + throttle_time_ms)
            self._until_ms[endpoint] = until_ms

    def until_ms(self, endpoint: Endpoint) -> float:
        """Return the time until which no request should go to the broker; 0 if it never throttled
        the client."""
        return self._until_ms.get(endpoint, 0.0)

    def next_end_ms(self, now_ms: float) -> float:
        """Return the time at which the next throttle ends; infinite without one."""
        return min((ms for ms in self._until_ms.values() if ms > now_ms), default=float("inf"))

    def forget(self, now_ms: float) -> None:
        """Remove the throttles that have ended."""
        if self._until_ms:
            self._until_ms = {at: ms for at, ms in self._until_ms.items() if ms > now_ms}
