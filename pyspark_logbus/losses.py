"""Find records that a query can no longer read, then fail the query or skip the lost records.

With ``failOnDataLoss=true`` a loss ends the query. Otherwise the query logs and counts the loss
once, and continues after the lost records. The module runs on the driver, on the thread that plans
batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import DataLossError
from broker_lite.model import OffsetAndEpoch, TopicPartition
from pyspark_logbus.offset_ranges import Live, OffsetRange, starts_in
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions, Topics

log = logging.getLogger("pyspark_logbus")


GONE, RECREATED, REGRESSED, LATE = "gone", "recreated", "regressed", "late"
UNSUBSCRIBED = "unsubscribed"
"""The kinds of a loss:

- GONE: the topic or partition was deleted;
- RECREATED: the topic was deleted and created again;
- REGRESSED: the partition's log end moved back;
- LATE: records were deleted before the query read them;
- UNSUBSCRIBED: the query's options no longer name the topic.
"""


class Loss(NamedTuple):
    """A range of records of one partition that a query cannot read.

    The range is ``first`` to ``end`` (exclusive); an ``end`` of -1 is unknown. ``detail`` is the
    reason, for error messages. ``topic_id`` is the id of the topic that had the records.
    """

    kind: str
    topic: str
    partition: int
    first: int
    end: int
    detail: str
    topic_id: str = ""

    @property
    def rows(self) -> int:
        """Return the number of lost records, 0 if the range's end is unknown."""
        return max(0, self.end - self.first) if self.end >= 0 else 0

    def __str__(self) -> str:
        end = "?" if self.end < 0 else str(self.end)
        return f"{self.topic}-{self.partition} [{self.first}, {end}): {self.detail}"


CURE = (
    "Some data may have been lost because they are not available any more: either the topic was "
    "deleted, or records aged out before they were read. To continue without them, set "
    "failOnDataLoss=false"
)
"""The remedy in an error about lost records. Its first words are those of Spark's Kafka source."""

RESUBSCRIBE = (
    "To continue would drop these partitions from the checkpoint. Subscribe to them again, or set "
    "failOnDataLoss=false to drop them"
)
"""The remedy in an error about partitions that the options no longer name."""


RUN_AGAIN = "To continue without the lost records, run the query again with failOnDataLoss=false"
"""The remedy in an error about an AvailableNow run whose target lies beyond the log's end."""


def data_loss(losses: Collection[Loss]) -> DataLossError:
    """Return an error that names every lost range."""
    are_there = all(loss.kind == UNSUBSCRIBED for loss in losses)
    return DataLossError(f"{'; '.join(map(str, losses))}. {RESUBSCRIBE if are_there else CURE}")


def find_losses(
    start: SourceOffset, live: Live, topics: Topics, seen: Mapping[str, Mapping[int, int]]
) -> list[Loss]:
    """Return what was lost after the position ``start``: deleted topics and partitions, log ends
    that moved back, and topics that the options (``topics``) no longer name.

    A topic with another topic id counts as deleted. ``seen`` has the last known log end of each
    partition, by topic id and number; a deleted partition's range of lost records ends at this
    offset.
    """
    losses = []
    for name in sorted(start.topics):
        before, now = start.topics[name], live.topics.get(name)
        for number in sorted(before.partitions):
            at = before.partitions[number]
            detail = kind = ""
            if not topics.reads(TopicPartition(name, number)):
                kind, detail = UNSUBSCRIBED, unsubscribed(topics)
            elif now is None:
                kind, detail = GONE, f"topic {name} ({before.topic_id}) was deleted"
            elif now.topic_id != before.topic_id:
                kind = RECREATED
                detail = (
                    f"topic {name} was deleted and recreated (id {before.topic_id}, now "
                    f"{now.topic_id})"
                )
            elif number not in now.ends:
                kind, detail = GONE, f"partition {number} does not exist any more"
            elif 0 <= now.ends[number].offset < at.offset:
                losses.append(_regression(name, before.topic_id, number, at, now.ends[number]))
            if kind:
                end = seen.get(before.topic_id, {}).get(number, -1)
                losses.append(Loss(kind, name, number, at.offset, end, detail, before.topic_id))
    return losses


def check_target(target: Live, start: SourceOffset, live: Live) -> None:
    """Check that a run with Trigger.AvailableNow can read from ``start`` to the log ends
    ``target``.

    Raises DataLossError, even with failOnDataLoss=false, if a log now ends before its target,
    because the run would never end.
    """
    for name, topic in target.topics.items():
        now = live.topics.get(name)
        for number, end in topic.ends.items():
            at = starts_in(start, name, topic.topic_id, number)
            if at is not None and at >= end.offset:
                continue
            if now is None or now.topic_id != topic.topic_id or number not in now.ends:
                raise DataLossError(
                    f"{name}-{number} (topic id {topic.topic_id}) was deleted before this run "
                    f"with Trigger.AvailableNow read it to the end. {RUN_AGAIN}"
                )
            if 0 <= now.ends[number].offset < end.offset:
                raise DataLossError(
                    f"{name}-{number} ends at offset {now.ends[number].offset}, but this run "
                    f"with Trigger.AvailableNow planned to read up to {end.offset}. {RUN_AGAIN}"
                )


def unsubscribed(topics: Topics) -> str:
    """Return, as text for error messages, why a query does not read a partition that its checkpoint
    has and that still exists."""
    return f"the query no longer subscribes to it, but to {topics.describe()}"


def _regression(
    name: str, topic_id: str, number: int, at: OffsetAndEpoch, now: OffsetAndEpoch
) -> Loss:
    return Loss(
        REGRESSED,
        name,
        number,
        now.offset,
        at.offset,
        f"partition {name}-{number}'s offset was changed from {at.offset} to {now.offset} "
        f"(leader epoch {at.leader_epoch}, now {now.leader_epoch})",
        topic_id,
    )


def with_ranges(losses: Iterable[Loss], ranges: Iterable[OffsetRange]) -> list[Loss]:
    """Extend losses that were computed from the end of a repeated batch: let them begin at its
    start.

    Only losses of deleted or recreated topics, and of topics that the options no longer name, are
    extended: the batch can read none of their records.
    """
    of = {(item.topic, item.partition): item for item in ranges}
    extended = []
    for loss in losses:
        item = of.get((loss.topic, loss.partition))
        if item is not None and loss.kind in (GONE, RECREATED, UNSUBSCRIBED):
            loss = loss._replace(first=item.start, end=max(loss.end, item.end))
        extended.append(loss)
    return extended


class Losses:
    """The lost records of one run of a query. ``row_count`` is the number of records that the run
    skipped."""

    def __init__(self, options: ReadOptions) -> None:
        self.row_count = 0
        self._grace_s = options.grace_s
        self._ends_query = options.fail_on_data_loss
        self._suspects: dict[tuple[str, str, int], float] = {}
        self._accepted: set[tuple[str, str, int, int]] = set()
        """The losses that are logged and counted, by kind, topic id, partition and first offset.
        Planning finds a loss again until the query's position has passed it."""

    @property
    def are_suspected(self) -> bool:
        """Return whether some log end moved back less than ``grace_s`` ago. It may recover, so
        ``confirmed`` leaves it out."""
        return bool(self._suspects)

    def confirmed(self, losses: list[Loss]) -> list[Loss]:
        """Filter ``losses``, the losses at the query's present position. Return the certain ones:
        log ends that moved back at least ``grace_s`` seconds ago, and all losses of other kinds.

        A log end may move back briefly while a partition's leader changes.
        """
        self._accepted &= set(map(_key, losses))
        if not losses and not self._suspects:
            return losses
        now = time.monotonic()
        suspects = {}
        confirmed_losses = []
        for loss in losses:
            if loss.kind == REGRESSED:
                key = loss[:3]
                since = suspects[key] = self._suspects.get(key, now)
                if now - since < self._grace_s:
                    continue
            confirmed_losses.append(loss)
        self._suspects = suspects
        return confirmed_losses

    def judge(self, losses: list[Loss]) -> frozenset[TopicPartition]:
        """Raise DataLossError if there are losses and failOnDataLoss is true.

        Otherwise log and count each new loss. Return the partitions whose log end moved back,
        because the query's position in them must move back too.
        """
        if losses and self._ends_query:
            raise data_loss(losses)
        for loss in losses:
            if _key(loss) not in self._accepted:
                self._accepted.add(_key(loss))
                self.row_count += loss.rows
                log.warning("[LOGBUS_DATA_LOSS] the query continues without %s", loss)
        return frozenset(
            TopicPartition(loss.topic, loss.partition) for loss in losses if loss.kind == REGRESSED
        )


def _key(loss: Loss) -> tuple[str, str, int, int]:
    return loss.kind, loss.topic_id, loss.partition, loss.first
