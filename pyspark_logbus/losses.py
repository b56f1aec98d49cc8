"""Confirms data losses of a streaming query, and fails the query or skips the records. Driver only.

Under ``failOnDataLoss`` a loss ends the query. Otherwise it is logged and counted once, and the
query continues after the lost records. One instance serves a whole run, on the planner's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_lite.model import TopicPartition
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import Loss
from pyspark_logbus.query_options import ReadOptions

log = logging.getLogger("pyspark_logbus")


class Losses:
    """The losses of a query. ``row_count`` is the number of lost records."""

    def __init__(self, options: ReadOptions, monotonic: Callable[[], float]) -> None:
        self.row_count = 0
        self.grace_s = options.retries * options.retry_interval_ms / 1000
        """Seconds for which a topic or record must be missing before it counts as lost."""
        self._ends_query = options.fail_on_data_loss
        self._monotonic = monotonic
        self._suspects: dict[tuple[str, str, int], float] = {}
        self._accepted: set[tuple[str, str, int, int]] = set()

    @property
    def are_suspected(self) -> bool:
        """Return whether an end is below its earlier value and may still recover."""
        return bool(self._suspects)

    def confirmed(self, losses: list[Loss]) -> list[Loss]:
        """Return the losses that have lasted for ``grace_s``. An end may move back briefly while
        leaders change."""
        if not losses and not self._suspects:
            return losses
        now = self._monotonic()
        suspects = {}
        found = []
        for loss in losses:
            if loss.kind == plan.REGRESSED:
                key = loss[:3]
                since = suspects[key] = self._suspects.get(key, now)
                if now - since < self.grace_s:
                    continue
            found.append(loss)
        self._suspects = suspects
        return found

    def judge(self, losses: list[Loss]) -> frozenset[TopicPartition]:
        """Log and count each loss; return the partitions whose position moves back. Raises
        DataLossError if a loss ends the query."""
        if losses and self._ends_query:
            raise plan.data_loss(losses)
        for loss in losses:
            key = (loss.kind, loss.topic, loss.partition, loss.first)
            if key not in self._accepted:
                self._accepted.add(key)
                self.row_count += loss.rows
                log.warning("[LOGBUS_DATA_LOSS] going on without %s", loss)
        return frozenset(
            TopicPartition(loss.topic, loss.partition)
            for loss in losses
            if loss.kind == plan.REGRESSED
        )
