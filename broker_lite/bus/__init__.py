"""Entry points of the client: ``connect`` and ``Bus``, ``aconnect`` and ``AsyncBus`` for asyncio.

A bus is the client of one cluster. It makes producers, an admin, and consumers: alone, in a Kafka
group, or in a native group, whose members coordinate through ZooKeeper and not through a broker.
Importing this package imports neither pyarrow, numpy, asyncio nor kazoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_lite.lazy_names import lazy_names

if TYPE_CHECKING:
    from broker_lite.bus.aio import AsyncBus, aconnect
    from broker_lite.bus.blocking import Bus, connect

_HOMES = {"AsyncBus": "aio", "Bus": "blocking", "aconnect": "aio", "connect": "blocking"}

__all__ = ["AsyncBus", "Bus", "aconnect", "connect"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
