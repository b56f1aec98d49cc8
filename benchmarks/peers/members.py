"""Measure a Kafka group with many members: the time until it is stable, and its cost afterwards.

Each member has a connection and acts as a Kafka client does: it joins, syncs, and sends a heartbeat
every three seconds. All members are coroutines of one process, which uses more processor time than
the broker. So with many members this process lengthens the measured times. The broker's processor
seconds are measured by themselves."""

from __future__ import annotations

import asyncio
import random
import time

from kafka_groups import PARTITIONS_A_MEMBER, Connection, coordinator, take_part

from peers.growth import Alone, Idling, percentile

GROUP = "crew"
HEARTBEAT_SECONDS = 3.0
"""Kafka's ``heartbeat.interval.ms``."""
WATCHED_SECONDS = 15.0


def measure(logbus: Alone, count: int) -> dict[str, float]:
    """Make ``count`` members join together and then send only heartbeats; return the figures."""
    return asyncio.run(_measure(logbus, count))


async def _measure(logbus: Alone, count: int) -> dict[str, float]:
    servers = logbus.cluster.bootstrap_servers
    partitions = count * PARTITIONS_A_MEMBER
    connections = [await coordinator(servers, GROUP) for _ in range(count)]
    with Idling(logbus.processes()) as joining:
        before = time.perf_counter()
        parts = await asyncio.gather(
            *(take_part(each, GROUP, count, partitions) for each in connections)
        )
        stable = time.perf_counter() - before
    generation = max(generation for generation, _, _ in parts)
    took: list[float] = []
    with Idling(logbus.processes()) as living:
        until = time.perf_counter() + WATCHED_SECONDS
        await asyncio.gather(
            *(
                _live(connection, member, generation, until, took)
                for connection, (_, member, _) in zip(connections, parts, strict=True)
            )
        )
    for connection in connections:
        connection.writer.close()
    return {
        "stable_s": stable,
        "broker_cpu_to_stable_s": joining.seconds["broker"],
        "zookeeper_cpu_to_stable_s": joining.seconds["zookeeper"],
        "heartbeats_per_s": len(took) / WATCHED_SECONDS,
        "heartbeat_p50_ms": percentile(took, 50),
        "heartbeat_p99_ms": percentile(took, 99),
        **{key.removeprefix("idle_"): value for key, value in living.percent.items()},
    }


async def _live(
    connection: Connection, member: str, generation: int, until: float, took: list[float]
) -> None:
    """Send heartbeats until the time ``until``, the first after a random delay. Add their seconds
    to ``took``."""
    await asyncio.sleep(random.random() * HEARTBEAT_SECONDS)
    while (before := time.perf_counter()) < until:
        answer = await connection.ask(
            "Heartbeat", 3, group_id=GROUP, generation_id=generation, member_id=member,
            group_instance_id=None,
        )  # fmt: skip
        took.append((time.perf_counter() - before) * 1000)
        if answer.error_code:
            raise RuntimeError(f"a heartbeat was answered with error {answer.error_code}")
        await asyncio.sleep(min(HEARTBEAT_SECONDS, max(0.0, until - time.perf_counter())))
