"""Whether others take this broker for its groups' coordinator still, while ZooKeeper is silent.

A broker without ZooKeeper goes on telling the members of its groups that all is well: where nobody
reaches it they are to read on, and only commits wait. But where one broker alone is cut off,
another has its groups once its session has ended, and gives out what they read. So it asks the
others whose a group is, and gives up what is another's: members hear of that by their next
heartbeat (``coordinator/README.md``). Who reaches neither
ZooKeeper nor the others goes on. Loop thread; ``broker.py`` calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_lite.errors import LogbusError
from broker_lite.model import NO_BROKER, Endpoint
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.wire.calls.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

LOOK_MS = 250
ANSWER_S = 1.0
"""A broker that says nothing for so long is asked again the next time."""
GROUPS_PER_CALL = 500
"""What a broker looks up at once: 2 ms of its loop."""
PEERS_PER_LOOK = 3
"""Others take their turns: a large cluster without ZooKeeper has more to do than to ask around."""

Ask = Callable[[Endpoint, FindCoordinatorRequest], Awaitable[FindCoordinatorResponse]]


class SecondOpinion:
    """``ask`` raises OSError, EOFError or LogbusError where there is no answer."""

    def __init__(
        self, broker_id: int, registry: Registry, groups: GroupCoordinator, ask: Ask
    ) -> None:
        self._broker_id = broker_id
        self._registry = registry
        self._groups = groups
        self._ask = ask
        self._asked = 0

    async def look(self) -> None:
        """Ask, where there is a reason to; to be called every ``LOOK_MS``."""
        names = self._groups.held
        if self._registry.connected or not names:
            return
        others = [
            view.endpoint
            for broker_id, view in sorted(self._registry.live_brokers().items())
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

    async def _heed(self, peer: Endpoint, call: FindCoordinatorRequest) -> None:
        """At once, whoever else is silent."""
        for row in await self._rows(peer, call):
            if not row.error_code and row.node_id not in (NO_BROKER, self._broker_id):
                self._groups.give_up(row.key, row.node_id)

    async def _rows(self, peer: Endpoint, call: FindCoordinatorRequest) -> tuple[Coordinator, ...]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._ask(peer, call)).coordinators
        except (OSError, EOFError, LogbusError):
            return ()
