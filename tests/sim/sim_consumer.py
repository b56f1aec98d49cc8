"""``SimConsumer``: the production consumer on a simulated clock and network, without records.

A test moves the positions forward where a poll would return records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.operations.cluster import Cluster
from broker_lite.config import ConsumerConfig
from broker_lite.model import TopicPartition


def fetch_nothing(_: Callable[[], None]) -> None:
    """Stands for the method ``post`` of the fetch engine, so that the engine never fetches."""


class SimConsumer(AsyncConsumer):
    """The asyncio consumer on a simulated network, without sockets."""

    def __init__(
        self,
        shell: Any,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        group: str,
        joining: Joining,
        callbacks: Callbacks = NO_CALLBACKS,
    ) -> None:
        self._shell = shell
        self._woken = asyncio.Event()
        self.core = ReaderCore(
            self,
            shell,
            cluster,
            config,
            group=group,
            joining=joining,
            callbacks=callbacks,
            notify=self._woken.set,
        )
        self.core.engine.post = fetch_nothing  # type: ignore[method-assign]

    def move(self, tp: TopicPartition, count: int) -> None:
        """Move a position forward by ``count`` offsets, as a poll does."""
        self.core.collector.begin({tp: self.position(tp) + count})
