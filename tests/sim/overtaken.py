"""Let the marker of a transaction overtake the answer to a verification.

The sequence needs a client with transaction version 1, whose abort does not bump the producer
epoch. Every message from the coordinator to the leader takes up to a second:

1. The client adds a partition at the coordinator and sends a batch, which is delayed.
2. The batch arrives. The leader asks the coordinator whether the transaction has the partition.
3. The client aborts without waiting for the batch. If the coordinator has said yes before, its
   answer may arrive at the leader after the marker.
"""

from __future__ import annotations

import asyncio
import random

from sim.cluster import SimCluster
from sim.deposed import late_client
from sim.net import CLIENTS

from broker_lite.errors import LogbusError

SENT_S, ARRIVES_S, ENDED_S = 1.0, 0.1, 8.0
"""Seconds until the batch is sent; from its arrival until the abort, at most; until the transaction
has ended."""


async def overtaken_answer(cluster: SimCluster, rng: random.Random) -> None:
    """Run the sequence that the module describes, if one broker is a coordinator and another leads
    a partition of the output topic."""
    found = late_client(cluster, rng)
    if found is None:
        return
    late, roles = found
    net, leader_id = cluster.net, roles.leader.broker_id
    link = roles.coordinator.broker_id, leader_id
    try:
        await late.begin()
        net.cut(CLIENTS, leader_id)
        late.send(roles.partition, [f"{late.label}/0".encode()])
        await asyncio.sleep(SENT_S)
        net.slow.add(link)
        net.heal(CLIENTS, leader_id)
        await asyncio.sleep(ARRIVES_S * rng.random())
        async with asyncio.timeout(ENDED_S):
            await late.end(is_commit=False)
        await asyncio.sleep(SENT_S)
    except (LogbusError, TimeoutError) as error:
        cluster.trace(late.label, "failed", type(error).__name__)
    finally:
        net.slow.discard(link)
