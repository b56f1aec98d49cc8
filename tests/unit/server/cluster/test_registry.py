"""Tests of the metadata snapshot that a broker keeps in memory, while ZooKeeper is unreachable."""

from __future__ import annotations

import asyncio

from support.handler_world import World, run


def test_metadata_age_grows_only_while_zookeeper_is_unreachable() -> None:
    async def body(world: World) -> None:
        await world.start()
        registry = world.brokers[1].registry
        assert registry.metadata_age_s == 0
        world.service.stop()
        await asyncio.sleep(2)
        assert 1 < registry.metadata_age_s <= 2
        world.service.start()
        while registry.metadata_age_s:
            await asyncio.sleep(0.1)
        assert registry.connected

    run(body)
