"""``ConsumerFace``: the methods that ``Consumer`` and ``AsyncConsumer`` share; none blocks."""

from __future__ import annotations

from collections.abc import Sequence

from broker_lite.client.consuming.membership import MemberOffsets
from broker_lite.client.consuming.partition_discovery import Reset
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.operations.bounds import INT64_MAX
from broker_lite.config import ConsumerConfig
from broker_lite.errors import InvalidConfigError, LogbusError, UnknownTopicOrPartitionError
from broker_lite.model import CommittedOffset, TopicPartition


class ConsumerFace:
    """The base class of ``Consumer`` and ``AsyncConsumer``."""

    core: ReaderCore
    """The reader that does the consumer's work; not part of the public API."""

    @property
    def config(self) -> ConsumerConfig:
        """The consumer's settings."""
        return self.core.config

    @property
    def is_open(self) -> bool:
        """False after ``close``, after a failure or in a forked child, True otherwise."""
        return self.core.end is None

    @property
    def group(self) -> str | None:
        """The name of the consumer's group; None without a group."""
        return self.core.group

    @property
    def member_id(self) -> str:
        """The consumer's member id in its group; "" while it is not a member."""
        return self.core.membership.member_id

    @property
    def commit_error(self) -> LogbusError | None:
        """The error of the last automatic commit, or None."""
        return self.core.commit_error

    @property
    def is_settled(self) -> bool:
        """False while an assignment or revocation is incomplete, True otherwise."""
        return self.core.membership.is_settled and not self.core.has_changes

    def group_offsets(self) -> MemberOffsets:
        """Return the positions, the group and the member's identity, for a transaction's commit.

        ``send_offsets(consumer)`` of a transaction calls it. Raises InvalidGroupIdError without a
        group, NotOwnerError for a partition that the member lost, and InvalidConfigError for a
        group that coordinates through ZooKeeper."""
        group, offsets = self.core.group_id(), self.core.collector.commitable()
        grants = self.core.assignment.grants(offsets)
        identity = self.core.membership.identity({tp: grants.get(tp) for tp in offsets})
        return MemberOffsets(group, identity, offsets)

    # Methods that report and change the positions of assigned partitions.

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer reads."""
        return self.core.collector.assignment()

    def position(self, topic: str | TopicPartition, partition: int | None = None) -> int:
        """Return the offset of the partition's next record.

        Raises UnknownTopicOrPartitionError for a partition that the consumer does not read."""
        tp = self._tp(topic, partition)
        next_offset = self.core.collector.position(tp)
        assert next_offset is not None
        return next_offset

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of all partitions."""
        return {tp: self.position(tp) for tp in self.assignment()}

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions to commit automatically. Records still being processed are not
        committed."""
        return self.core.collector.settled()

    def seek(self, topic: str | TopicPartition, partition: int, offset: int | None = None) -> None:
        """Move a position: ``seek(topic, partition, offset)`` or ``seek(TopicPartition(…),
        offset)``.

        If the offset is outside the log, the next read continues where the option ``start``
        says."""
        if isinstance(topic, TopicPartition) and offset is None:
            tp, offset = self._tp(topic, None), partition
        else:
            tp = self._tp(topic, partition)
        if not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
            raise InvalidConfigError(f"seek to offset {offset!r}: give a number from 0 to 2^63-1")
        self.core.collector.begin({tp: offset})

    def pause(self, *tps: TopicPartition) -> None:
        """Return no records of these partitions, by default of all, until ``resume``."""
        self.core.collector.pause(tps or self.assignment(), True)

    def resume(self, *tps: TopicPartition) -> None:
        """End the pause of these partitions, by default of all."""
        self.core.collector.pause(tps or self.assignment(), False)
        self.core.notify()

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return self.core.collector.paused()

    @property
    def skipped(self) -> list[tuple[TopicPartition, int, int]]:
        """Corrupt offset ranges that ``on_corrupt="skip"`` skipped: (partition, first, next
        offset)."""
        return self.core.collector.skipped

    @property
    def resets(self) -> list[Reset]:
        """The resets so far: replacements of positions that were out of range."""
        return self.core.discovery.resets

    def _tp(self, topic: str | TopicPartition, partition: int | None) -> TopicPartition:
        tp = topic
        if not isinstance(tp, TopicPartition):
            if partition is None:
                raise InvalidConfigError(
                    f"topic {topic!r} is given without a partition; give its number too"
                )
            tp = TopicPartition(str(topic), partition)
        if self.core.collector.position(tp) is None:
            raise UnknownTopicOrPartitionError(
                f"this consumer does not read {tp}; see consumer.assignment()"
            )
        return tp

    def _behind(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of its partition."""
        return {tp: max(0, ends[tp] - self.position(tp)) for tp in ends}

    def _chosen(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [self._tp(tp, None) for tp in tps] or self.assignment()
