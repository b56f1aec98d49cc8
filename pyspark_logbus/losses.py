"""Confirm data losses of a streaming query, then fail the query or skip the lost records.

With ``failOnDataLoss=true`` a loss ends the query. Otherwise the query logs and counts the loss
once, and continues after the lost records. One instance serves a whole run of a query. It runs on
the driver, on the planner's thread.
"""

from __future__ import annotations

import logging
import time

from broker_lite.model import TopicPartition
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import Loss
from pyspark_logbus.query_options import ReadOptions

log = logging.getLogger("pyspark_logbus")


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
        """Return whether some partition's log end has moved back, but so recently that it may
        recover (``confirmed``)."""
        return bool(self._suspects)

    def confirmed(self, losses: list[Loss]) -> list[Loss]:
        """Return those of ``losses``, the losses of the query's present position, that are certain:
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
            if loss.kind == plan.REGRESSED:
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
            raise plan.data_loss(losses)
        for loss in losses:
            if _key(loss) not in self._accepted:
                self._accepted.add(_key(loss))
                self.row_count += loss.rows
                log.warning("[LOGBUS_DATA_LOSS] the query continues without %s", loss)
        return frozenset(
            TopicPartition(loss.topic, loss.partition)
            for loss in losses
            if loss.kind == plan.REGRESSED
        )


def _key(loss: Loss) -> tuple[str, str, int, int]:
    return loss.kind, loss.topic_id, loss.partition, loss.first
