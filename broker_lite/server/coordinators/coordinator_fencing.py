"""Fence this broker's groups while it has no ZooKeeper connection.

A broker without ZooKeeper keeps answering heartbeats, so that members keep reading during a
ZooKeeper outage; only commits wait. If this broker alone lost ZooKeeper, another broker coordinates
its groups after the session has expired. This broker therefore sends FindCoordinator to its peers
for each group, and gives up groups that moved. Members get NOT_COORDINATOR with their next
heartbeat (docs/pages/explanation/groups.md). A broker that reaches neither ZooKeeper nor a peer
keeps its groups. Loop thread; ``broker.py`` calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_lite.errors import LogbusError
from broker_lite.model import NO_BROKER
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.wire.calls.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)

LOOK_MS = 250
ANSWER_S = 1.0
"""Seconds to wait for a peer's answer; a peer that does not answer gets the request again in the
next round.
"""
GROUPS_PER_CALL = 500
"""Maximum groups in one FindCoordinator request; so many take the peer 2 ms of its event loop."""
PEERS_PER_LOOK = 3
"""Maximum peers that get the request in one round; in a larger cluster the peers take turns."""

Ask = Callable[[int, FindCoordinatorRequest], Awaitable[FindCoordinatorResponse]]


class CoordinatorFencing:
    """A periodic check with the peers. ``ask`` sends a request to a broker by its id; it raises
    LogbusError on failure."""

    def __init__(
        self, broker_id: int, registry: Registry, groups: GroupCoordinator, ask: Ask
    ) -> None:
        self._broker_id = broker_id
        self._registry = registry
        self._groups = groups
        self._ask = ask
        self._asked = 0

    async def look(self) -> None:
        """While ZooKeeper is unavailable, ask the other brokers for the groups' coordinators. Call
        this every ``LOOK_MS``.
        """
        names = self._groups.held
        if self._registry.connected or not names:
            return
        others = [
            broker_id
            for broker_id in sorted(self._registry.live_brokers())
            if broker_id != self._broker_id
        ]
        first = self._asked % max(len(others), 1)
        peers = (others[first:] + others[:first])[:PEERS_PER_LOOK]
        self._asked = first + len(peers)
        calls = [
            FindCoordinatorRequest(names[at : at + GROUPS_PER_CALL])
            for at in range(0, len(names), GROUPS_PER_CALL)
        ]
        await asyncio.gather(*(self._heed(peer, call) for call in calls for peer in peers))

    async def _heed(self, peer: int, call: FindCoordinatorRequest) -> None:
        """Ask one peer and give up moved groups at once, without waiting for the other peers."""
        for row in await self._rows(peer, call):
            if not row.error_code and row.node_id not in (NO_BROKER, self._broker_id):
                self._groups.give_up(row.key, row.node_id)

    async def _rows(self, peer: int, call: FindCoordinatorRequest) -> tuple[FoundCoordinator, ...]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._ask(peer, call)).coordinators
        except (TimeoutError, LogbusError):
            return ()
