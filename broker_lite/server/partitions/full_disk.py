"""A full data directory: other brokers lead until it has room again.

Loop thread only; owned by ``replica_manager``. The registration says that the disk is full. The
controller then moves leadership to brokers with room and takes this broker out of the ISRs, so that
neither producers nor high watermarks wait for it. What no other broker can lead stays here and is
read. When there is room the registration says so; the replicas catch up and join as any others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from broker_lite.errors import LogbusError
from broker_lite.server.partitions.disk import Disk
from broker_lite.storage.manager import LogManager

logger = logging.getLogger("logbus.full_disk")

LOOK_S = 1.0
"""How often a full disk is looked at, and a registration that failed is tried again."""


class Cluster(Protocol):
    """Who is told: the registry."""

    async def set_full(self, is_full: bool) -> None: ...


class FullDisk:
    """Tells the cluster while the data directory is full."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        cluster: Cluster,
        disk: Disk,
        logs: LogManager,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._disk = disk
        self._logs = logs
        self._is_told = logs.is_full
        """Whether the registration says that the disk is full."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        if logs.is_full:
            self.found()

    def found(self) -> None:
        """A write found no space. Cheap; nothing happens while the disk is known to be full."""
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._wait_for_room())

    def close(self) -> None:
        """The broker stops, or its directory failed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def _wait_for_room(self) -> None:
        directory = self._logs.directory
        try:
            while not await self._disk.run_read(self._logs.has_room):
                if not self._is_told:
                    logger.error(
                        "log.dir %s is full: in-sync replicas on other brokers lead until there "
                        "is room; free some space",
                        directory,
                    )
                    await self._tell(True)
                await asyncio.sleep(LOOK_S)
            if self._is_told:
                logger.warning("log.dir %s has room again", directory)
                await self._tell(False)
        finally:
            self._task = None
        if self._logs.is_full:
            self.found()

    async def _tell(self, is_full: bool) -> None:
        try:
            await self._cluster.set_full(is_full)
        except LogbusError as error:
            logger.warning("the registration cannot be changed now: %s", error)
        else:
            self._is_told = is_full
