"""Find the offset at which the copy of a partition resumes, when a mirror starts and after the
source has lost records.

The search uses the state that a mirror stored on the target. It also uses the target's records
beyond this state: a killed mirror may have written them before it could store its position. The
calls read both clusters, write nothing and block. Only the mirror's thread makes them."""

from __future__ import annotations

from collections.abc import Iterator

from broker_lite.client.fetch.position import KAFKA_LOG, FetchPosition
from broker_lite.client.received import LogTruncatedError
from broker_lite.errors import OffsetOutOfRangeError
from broker_lite.mirror import positions
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.rewrite import Content, contents, piece_contents, rewrite
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH, OffsetAndEpoch


class Resumer:
    """Finds the offsets at which the copies of one mirror resume. It logs how many records are
    lost, and how many records at the target do not come from the source."""

    def __init__(self, source: MirrorSource, target: MirrorTarget, log: MirrorLog) -> None:
        self._source = source
        self._target = target
        self._log = log

    def reconcile(self, copy: Copy, first: int, start: int, end: int) -> None:
        """Find the offset at which ``copy`` resumes when a mirror starts, and set it.

        ``first`` is the log start offset at the source. ``start`` and ``end`` are the log's start
        and end offset at the target. Raises the errors of reading both logs."""
        known, tp = copy.known, copy.tp
        if known.source_next < 0:
            known.source_next, known.target_next = first, start
        known.cut(end)
        begin = max(known.target_next, start)
        if end > begin:
            at_target = (
                row
                for rows in self._target.read(tp, copy.target_id, begin, end)
                for row in contents(rows)
            )
            at_source = self._source_rows(copy, max(known.source_next, first))
            reconciliation = positions.reconcile(known, at_target, at_source, end)
            copy.already, copy.foreign = reconciliation.copied, reconciliation.foreign
            copy.unsaved.extend(reconciliation.new_runs)
            if reconciliation.foreign:
                self._log.write(
                    f"{tp}: {reconciliation.foreign} records on the target are not at the source "
                    "(another client wrote them, or retention deleted them at the source)"
                )
        if not known.runs:
            known.target_next = end
        self.begin_at(copy, first)

    def handle_missing_offset(self, copy: Copy, error: OffsetOutOfRangeError) -> None:
        """Find the offset at which ``copy`` resumes after a fetch failed because the source's log
        does not have the fetch offset. Either retention deleted records before they were copied, or
        the source lost copied records in a crash or an unclean election."""
        ends, at = self._source.ends, copy.position.offset
        first = ends((copy.tp,), EARLIEST_TIMESTAMP)[copy.tp]
        resume_at: OffsetAndEpoch | None = None
        if isinstance(error, LogTruncatedError):
            resume_at = OffsetAndEpoch(error.offset, error.epoch)
        elif first <= at:
            end = ends((copy.tp,), LATEST_TIMESTAMP)[copy.tp]
            resume_at = OffsetAndEpoch(end, NO_EPOCH) if end < at else None
        if resume_at is None:
            # It is unknown from which offset on the source's records differ from the copied ones.
            # Fetch again from the same offset, without the leader epoch, so that the source's
            # leader does not check for a divergence.
            copy.position.lineage.forget()
        else:
            gone = f"offsets {resume_at.offset} to {at - 1}"
            self._log.write(
                f"{copy.tp}: the source has lost {gone} after they were copied. The copy keeps "
                "them, followed by the records that replaced them at the source"
            )
            copy.lost(*resume_at)
        self.begin_at(copy, first)

    def begin_at(self, copy: Copy, first: int) -> None:
        """Make ``copy`` resume after its last copied record, or at the source's log start offset
        ``first`` if that is higher."""
        known = copy.known
        if first > known.source_next:
            copy.aged_out += first - known.source_next
            lost = f"offsets {known.source_next} to {first - 1}"
            self._log.write(f"{copy.tp}: {lost} aged out at the source before they were copied")
            known.passed(first)
        if copy.position.offset != known.source_next:
            copy.position.seek(known.source_next)

    def _source_rows(self, copy: Copy, offset: int) -> Iterator[tuple[int, Content]]:
        end = self._source.ends((copy.tp,), LATEST_TIMESTAMP)[copy.tp]
        position = FetchPosition(copy.tp, copy.source_id, offset, policy=KAFKA_LOG)
        while position.offset < end:
            offset = position.offset
            for batch in self._source.fetch_one(position):
                piece = rewrite(batch, copy.tp, offset)
                if piece is not None:
                    yield from piece_contents(piece)
