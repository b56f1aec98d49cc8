"""Entry points of the client: ``connect`` and ``Bus``, ``aconnect`` and ``AsyncBus`` for asyncio.

A bus makes producers, consumers (alone, in Kafka groups or in native groups) and an admin for one
cluster. Importing this package imports neither pyarrow, numpy, asyncio nor kazoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_lite.lazy_names import lazy_names

if TYPE_CHECKING:
    from broker_lite.bus.aio import AsyncBus, aconnect
    from broker_lite.bus.blocking import Bus, connect

_HOMES = {"AsyncBus": "aio", "Bus": "blocking", "aconnect": "aio", "connect": "blocking"}

__all__ = ["AsyncBus", "Bus", "aconnect", "connect"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
