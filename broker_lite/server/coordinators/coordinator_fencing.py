"""Give up groups that moved to other brokers while this broker has no connection to ZooKeeper.

Such a broker continues to answer heartbeats, so that members keep reading during a ZooKeeper
outage; only commits wait. But if this broker alone has lost ZooKeeper, its session expires and
other brokers become coordinators of its groups. It therefore asks other brokers for the coordinator
of each group (FindCoordinator) and gives up groups that moved: their members get NOT_COORDINATOR
with the next heartbeat. A broker that reaches neither ZooKeeper nor another broker keeps its
groups."""

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

CHECK_MS = 250
"""Milliseconds between two checks in which this broker asks other brokers for the coordinators of
its groups."""
ANSWER_S = 1.0
"""Seconds to wait for another broker's answer. If none arrives, a later check (every ``CHECK_MS``)
asks again."""
GROUPS_PER_CALL = 500
"""Maximum number of groups in one FindCoordinator request.

This many groups block the event loop of the answering broker for about 2 ms."""
PEERS_PER_CHECK = 3
"""Maximum number of brokers that one check asks for coordinators; the next check asks the next
brokers."""

SendRequest = Callable[[int, FindCoordinatorRequest], Awaitable[FindCoordinatorResponse]]
"""Sends a request to the broker with this id. Raises LogbusError if no answer arrives."""


class CoordinatorFencing:
    """A periodic check whether other brokers have become coordinators of this broker's groups."""

    def __init__(
        self, broker_id: int, registry: Registry, groups: GroupCoordinator, send: SendRequest
    ) -> None:
        self._broker_id = broker_id
        self._registry = registry
        self._groups = groups
        self._send = send
        self._next_peer = 0

    async def check(self) -> None:
        """Without a connection to ZooKeeper, ask other brokers, and give up the groups that another
        broker coordinates. With a connection, do nothing: the metadata show such groups.

        The broker calls this every ``CHECK_MS`` milliseconds."""
        names = self._groups.group_names
        if self._registry.connected or not names:
            return
        others = [
            broker_id
            for broker_id in sorted(self._registry.live_brokers())
            if broker_id != self._broker_id
        ]
        first = self._next_peer % max(len(others), 1)
        peers = (others[first:] + others[:first])[:PEERS_PER_CHECK]
        self._next_peer = first + len(peers)
        calls = [
            FindCoordinatorRequest(names[at : at + GROUPS_PER_CALL])
            for at in range(0, len(names), GROUPS_PER_CALL)
        ]
        await asyncio.gather(*(self._give_up_moved(peer, call) for call in calls for peer in peers))

    async def _give_up_moved(self, peer: int, call: FindCoordinatorRequest) -> None:
        """Send ``call`` to the broker ``peer``, and give up the groups for which the answer names
        another broker as coordinator."""
        for row in await self._rows(peer, call):
            if not row.error_code and row.node_id not in (NO_BROKER, self._broker_id):
                self._groups.give_up(row.key, row.node_id)

    async def _rows(self, peer: int, call: FindCoordinatorRequest) -> tuple[FoundCoordinator, ...]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._send(peer, call)).coordinators
        except (TimeoutError, LogbusError):
            return ()
