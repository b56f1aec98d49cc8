"""Report a full data directory to the cluster, so that other brokers lead its partitions.

The broker reports the full disk in its registration. The controller then moves leadership to
brokers with free space and removes this broker from the ISRs, so that neither producers nor high
watermarks wait for this disk. A partition that no other broker can lead remains readable here. When
space is free again, the broker updates its registration, and its replicas rejoin their ISRs."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from broker_lite.errors import LogbusError
from broker_lite.server.log_events import log_event
from broker_lite.server.partitions.disk import Disk
from broker_lite.storage.manager import LogManager

logger = logging.getLogger("logbus.full_disk")

CHECK_S = 1.0
"""Seconds between two checks of a full disk, and between two attempts to report it."""


class DiskCluster(Protocol):
    """Stores in the broker's registration whether its disk is full."""

    async def set_full(self, is_full: bool) -> None: ...


class FullDisk:
    """Watches a full data directory, and reports it to the cluster until space is free."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        cluster: DiskCluster,
        disk: Disk,
        logs: LogManager,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._disk = disk
        self._logs = logs
        self._reported: bool | None = None
        """Whether this broker's registration reports a full disk.

        None means unknown: the write of the registration failed, but ZooKeeper may have applied
        it."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        if logs.data.is_full:
            self.watch()

    def watch(self) -> None:
        """Start to watch the disk, because a write failed for lack of space. May be called
        repeatedly."""
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._wait_for_space())

    def close(self) -> None:
        """Stop watching the disk: the broker stops, or its data directory failed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def _wait_for_space(self) -> None:
        try:
            while self._reported is not False or self._logs.data.is_full:
                is_full = not await self._disk.run_read(self._logs.data.has_space)
                if is_full != self._reported:
                    await self._report(is_full)
                if self._reported is not False:
                    await asyncio.sleep(CHECK_S)
        finally:
            self._task = None

    async def _report(self, is_full: bool) -> None:
        directory = self._logs.data.path
        if is_full:
            logger.error(
                "log.dir %s is full. Other in-sync brokers lead its partitions until space is "
                "free. Delete data or enlarge the disk",
                directory,
                extra=log_event("disk_full"),
            )
        else:
            logger.warning(
                "log.dir %s has free space again", directory, extra=log_event("disk_free")
            )
        self._reported = None
        try:
            await self._cluster.set_full(is_full)
        except LogbusError as error:
            logger.warning("cannot report the disk state to the cluster; retrying: %s", error)
        else:
            self._reported = is_full
