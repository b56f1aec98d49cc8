"""Driver only: which losses of a streaming query are certain, and what becomes of them.

Under ``failOnDataLoss`` a loss ends the query; else it is logged and counted, each once, and the
query goes on behind it. One instance for the whole run of a query, on its planner's thread.
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
    """``row_count``: how many records the query has gone on without."""

    def __init__(self, options: ReadOptions, monotonic: Callable[[], float]) -> None:
        self.row_count = 0
        self.grace_s = options.retries * options.retry_interval_ms / 1000
        """How long something must be missing before it is taken for gone."""
        self._ends_query = options.fail_on_data_loss
        self._monotonic = monotonic
        self._suspects: dict[tuple[str, str, int], float] = {}
        self._accepted: set[tuple[str, str, int, int]] = set()

    @property
    def are_suspected(self) -> bool:
        """Whether an end has gone back, and it is not known yet whether it stays there."""
        return bool(self._suspects)

    def confirmed(self, losses: list[Loss]) -> list[Loss]:
        """An end may go back for a moment while leaders change: only one that stays is loss."""
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
        """The partitions that are cut back, once each loss is logged and counted; raises
        DataLossError where a loss ends the query."""
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
