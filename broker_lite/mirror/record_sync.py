"""Copy records of the source cluster to the target cluster.

A second thread only fetches the next records, while the mirror's thread writes the records that
were fetched before. Only the mirror's thread calls this module, and every call blocks
except ``begin_fetch``."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from broker_lite.client.fetch.position import Corrupt, Failed, Retry
from broker_lite.client.received import WalkResult
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.errors import LogbusError, OffsetOutOfRangeError, UnknownTopicIdError
from broker_lite.mirror.checkpoint import MirrorCheckpoint
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.resuming import Resumer
from broker_lite.mirror.rewrite import RewrittenBatch, rewrite
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import TopicPartition
from broker_lite.wire.fetch import FetchedPartition

REFUSED_MS = 10_000
"""Milliseconds for which fetches of a partition may fail before the mirror logs the error. The
election of a new leader takes less time."""

Fetched = dict[TopicPartition, FetchedPartition | LogbusError]
Walked = dict[TopicPartition, tuple[int, WalkResult]]
"""For each partition, the offset from which its batches were fetched, and the batches."""


class RecordSync:
    """Copies the records of the partitions in ``checkpoint.copies``. Call ``close`` at the end."""

    def __init__(
        self,
        source: MirrorSource,
        target: MirrorTarget,
        log: MirrorLog,
        checkpoint: MirrorCheckpoint,
        resumer: Resumer,
    ) -> None:
        self._source = source
        self._target = target
        self._log = log
        self._checkpoint = checkpoint
        self._copies = checkpoint.copies
        self._resumer = resumer
        self._executor = ThreadPoolExecutor(1, "logbus-mirror-fetch")

    def close(self) -> None:
        """Stop the prefetching thread."""
        self._executor.shutdown(wait=True)

    def begin_fetch(self, wait_ms: int) -> Future[Fetched]:
        """Fetch the next records of all copied partitions on another thread. If there are none yet,
        the source's brokers hold the fetch for up to ``wait_ms``."""
        positions = [copy.position for copy in self._copies.values()]
        return self._executor.submit(self._source.fetch, positions, wait_ms)

    def advance(self, fetched: Fetched, *, once: bool) -> Walked:
        """Advance each partition past its fetched batches, and return the batches for ``write``.

        After a failed fetch, retry, resume at another offset, or stop copying the topic. If retries
        fail for REFUSED_MS, log the error, or raise it with ``once``."""
        good: Walked = {}
        for tp, row in fetched.items():
            copy = self._copies.get(tp)
            if copy is None:
                continue
            first = copy.position.offset
            match copy.position.evaluate(row):
                case WalkResult() as walked:
                    copy.refused_since_ms = 0.0
                    good[tp] = first, walked
                case Corrupt(error) | Failed(error) | Retry(LogbusError() as error):
                    self._refused(copy, error, once=once)
        return good

    def _refused(self, copy: Copy, error: LogbusError, *, once: bool) -> None:
        topic = copy.tp.topic
        if isinstance(error, OffsetOutOfRangeError):
            self._resumer.handle_missing_offset(copy, error)
            if copy.is_cut:
                # The source lost records. Store the loss before the mirror copies the records that
                # the source has at the same offsets now.
                self._checkpoint.save()
        elif isinstance(error, UnknownTopicIdError) and self._is_gone(copy):
            self._copies.set_aside(
                topic, UnknownTopicIdError("the topic was deleted at the source")
            )
        elif not error.retriable:
            self._copies.set_aside(topic, error)
        else:
            self._tolerate(copy, error, once=once)

    def _tolerate(self, copy: Copy, error: LogbusError, *, once: bool) -> None:
        """Ignore a partition's retriable fetch errors for REFUSED_MS, then log the error, or raise
        it with ``once``."""
        now_ms = monotonic_ms()
        copy.refused_since_ms = copy.refused_since_ms or now_ms
        if now_ms - copy.refused_since_ms < REFUSED_MS:
            return
        text = f"{copy.tp}: the next records cannot be fetched: {error.message}"
        if once:
            raise type(error)(text)
        self._log.write_once(f"{text}; trying again")

    def _is_gone(self, copy: Copy) -> bool:
        view = self._source.admin.cluster((copy.tp.topic,))
        return view.topic_id(copy.tp.topic) != copy.source_id

    def write(self, good: Walked) -> bool:
        """Write the batches ``good`` (from ``advance``) to the target. Return whether there were
        any."""
        pieces: dict[TopicPartition, list[RewrittenBatch]] = {}
        for tp, (first, walked) in good.items():
            copy = self._copies.get(tp)
            if copy is None:
                continue
            try:
                rewritten = [rewrite(batch, tp, first) for batch in walked.batches]
            except LogbusError as error:
                self._copies.set_aside(tp.topic, error)
                continue
            pieces[tp] = [piece for piece in rewritten if piece is not None]
        refused = self._target.write(pieces, self._written)
        for tp, why in refused.items():
            if tp.topic not in self._copies.aside:
                self._copies.set_aside(tp.topic, why)
        for tp, (_, walked) in good.items():
            if tp in self._copies:
                self._copies[tp].passed(walked.next_offset)
        return any(pieces.values())

    def _written(self, tp: TopicPartition, piece: RewrittenBatch, offset: int) -> None:
        copy = self._copies.get(tp)
        if copy is not None and copy.record_write(piece, offset):
            self._log.write_once(f"topic {tp.topic}: another client writes to the copy")
