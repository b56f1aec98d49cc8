"""Give up groups that moved to other brokers while this broker has no connection to ZooKeeper.

A broker without ZooKeeper continues to answer heartbeats, so that members keep reading during a
ZooKeeper outage; only commits wait. But if this broker alone has lost ZooKeeper, its session
expires and other brokers become coordinators of its groups.

This broker therefore asks other brokers for the coordinator of each of its groups
(FindCoordinator), and gives up groups that moved. The members of these groups get NOT_COORDINATOR
with the next heartbeat. A broker that reaches neither ZooKeeper nor another broker keeps its
groups. ``broker.py`` calls this module.
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

CHECK_MS = 250
"""Time in ms between two checks in which this broker asks other brokers whether they coordinate its
groups."""
ANSWER_S = 1.0
"""Seconds to wait for another broker's answer. If none arrives, a later check asks again."""
GROUPS_PER_CALL = 500
"""Maximum number of groups in one FindCoordinator request. That many block the other broker's event
loop for about 2 ms.
"""
PEERS_PER_CHECK = 3
"""Maximum number of brokers that one check asks. In a larger cluster, the next check continues with
the brokers that follow.
"""

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
        """If ZooKeeper is not connected, ask other brokers which broker coordinates each of this
        broker's groups, and give up the groups that another broker coordinates. The broker calls
        this method every ``CHECK_MS`` milliseconds.
        """
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
        """Ask the broker ``peer`` which brokers coordinate the groups that ``call`` names. Give up
        the groups that another broker coordinates."""
        for row in await self._rows(peer, call):
            if not row.error_code and row.node_id not in (NO_BROKER, self._broker_id):
                self._groups.give_up(row.key, row.node_id)

    async def _rows(self, peer: int, call: FindCoordinatorRequest) -> tuple[FoundCoordinator, ...]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._send(peer, call)).coordinators
        except (TimeoutError, LogbusError):
            return ()
