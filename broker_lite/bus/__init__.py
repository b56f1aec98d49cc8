"""Entry points of the client: ``connect`` and ``Bus``, ``aconnect`` and ``AsyncBus`` for asyncio.

A bus makes producers, consumers (alone, in Kafka groups or in native groups) and an admin for one
cluster. Importing this package imports neither pyarrow, numpy, asyncio nor kazoo.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_lite.bus.aio import AsyncBus, aconnect
    from broker_lite.bus.blocking import Bus, connect

_HOMES = {"AsyncBus": "aio", "Bus": "blocking", "aconnect": "aio", "connect": "blocking"}

__all__ = ["AsyncBus", "Bus", "aconnect", "connect"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
