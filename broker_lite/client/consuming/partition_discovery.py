"""Discover partitions added to a consumer's topics, and replace positions out of range.

An added partition starts at the group's committed offset, else at its earliest record: all its
records are newer than the consumer, so the option ``start`` does not apply. ``discover`` runs on
the thread that fetches, all other methods on the thread that reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from broker_lite.client.consuming.starting import Starts, starting_offsets
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.received import LogTruncatedError
from broker_lite.client.transport.steps import Shell, spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import LogbusError
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetAndEpoch,
    TopicPartition,
)

LOOKUP_TIMEOUT_MS = 30_000
"""Time limit (ms) of the lookup of new partitions' starting offsets."""

logger = logging.getLogger("logbus.consumer")


class Reset(NamedTuple):
    """A reset: the position ``from_offset`` was not in the log, so reading resumed at
    ``to_offset``.

    ``to_offset`` is where the log was truncated, for example in an unclean election, or the offset
    that the option ``start`` selects."""

    tp: TopicPartition
    from_offset: int
    to_offset: int


class PartitionDiscovery:
    """Finds new partitions of one consumer's topics, and records each replacement of a position
    that was out of range.

    ``on_found`` receives the starting offsets of new partitions, on the thread that fetches."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        group: str | None,
        topics: Sequence[str],
        on_found: Callable[[Starts], None],
    ) -> None:
        self.resets: list[Reset] = []
        self._shell = shell
        self._cluster = cluster
        self._config = config
        self._group = group
        self._topics = topics
        self._on_found = on_found
        self._discovered: set[TopicPartition] = set()
        self._began: dict[TopicPartition, int] = {}

    def discover(self, view: ClusterView, known: Collection[TopicPartition]) -> None:
        """Look up the starting offsets of those partitions in ``view`` that are new: neither
        ``known`` nor found by an earlier call."""
        new = [
            tp
            for topic in self._topics
            for tp in view.partitions_of(topic)
            if tp not in known and tp not in self._discovered
        ]
        if new:
            self._discovered.update(new)
            operation = starting_offsets(
                self._cluster,
                self._group,
                new,
                replace(self._config, start="earliest"),
                self._shell.now_ms() + LOOKUP_TIMEOUT_MS,
            )
            spawn(self._shell, operation, partial(self._looked_up, new))

    def _looked_up(self, tps: Sequence[TopicPartition], starts: Starts | LogbusError) -> None:
        if isinstance(starts, LogbusError):
            # Look the new partitions up again when the next cluster metadata arrive.
            self._discovered.difference_update(tps)
            return
        self._began.update(starts.offsets)
        self._on_found(starts)

    def reset_timestamp(self, tp: TopicPartition, position: int) -> int | None:
        """Return the timestamp (-2 earliest, -1 latest) to seek to from a position out of range.

        Return None if ``start="none"`` makes such a position an error."""
        if self._config.start == "earliest" or self._began.get(tp) == position:
            return EARLIEST_TIMESTAMP
        return LATEST_TIMESTAMP if self._config.start == "latest" else None

    def truncated_at(self, error: LogbusError) -> OffsetAndEpoch | None:
        """Return where to resume reading a truncated log: the offset, and the leader epoch of the
        record before it.

        Return None if the log was not truncated, or if ``start="none"`` makes this an error."""
        if isinstance(error, LogTruncatedError) and self._config.start != "none":
            return OffsetAndEpoch(error.offset, error.epoch)
        return None

    def note_truncation(self, tp: TopicPartition, from_offset: int, to_offset: int) -> None:
        """Record a reset to the offset at which the log was truncated, and log a warning about lost
        records."""
        logger.warning(
            "topic %r partition %d: an unclean election lost records read from offset %d to %d; "
            "reading resumes at %d, with records written since",
            tp.topic,
            tp.partition,
            to_offset,
            from_offset - 1,
            to_offset,
        )
        self.resets.append(Reset(tp, from_offset, to_offset))

    def note_reset(self, tp: TopicPartition, from_offset: int, to_offset: int) -> None:
        """Record a reset to ``to_offset``: the log lacks ``from_offset``.

        Log a warning the first time for each partition."""
        if all(each.tp != tp for each in self.resets):
            logger.warning(
                "topic %r partition %d: offset %d is not in the log; reading resumes at "
                "%d, as start=%r says. Records in between were not read; further resets of this "
                "partition are only counted (consumer.resets)",
                tp.topic,
                tp.partition,
                from_offset,
                to_offset,
                self._config.start,
            )
        self.resets.append(Reset(tp, from_offset, to_offset))
