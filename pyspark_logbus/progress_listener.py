"""A listener of Spark's progress reports that computes the lag of running queries on the driver.

Example: ``spark.streams.addListener(LagListener(print))``. The listener uses the log ends that the
source reports with every batch, and sends no requests to brokers. Executors cannot report the
deleted or corrupt records that they skip. So the listener computes the number of missing rows: the
offsets of a batch minus the rows that Spark counted. The callback runs on Spark's listener thread
and must not block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_logbus import offsets
from pyspark_logbus.offset_ranges import ranges_between
from pyspark_logbus.offsets import SourceOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


@dataclass(frozen=True, slots=True)
class QueryLag:
    """A query's position after a batch.

    ``records_behind`` is the number of unread records after the batch. ``by_partition`` has these
    numbers by topic and partition. ``lost_records`` counts the records that planning skipped since
    the query started. ``missing_rows`` counts the batch's offsets without a row, under
    failOnDataLoss=false: corrupt or deleted records, which an executor's log names.
    ``missing_rows`` is None if

    - Spark's report has no end offset of the batch;
    - the batch has transactions, whose markers and aborted records have offsets without rows;
    - the query reads each batch more than once, so that Spark counts more rows than offsets.

    When Spark repeats a batch after a restart, its report lacks the log ends. ``records_behind`` is
    then None, ``by_partition`` and ``group`` are empty, and ``lost_records`` is 0. The next batch's
    ``lost_records`` includes the records that planning skipped in the repeated batch.
    """

    query_id: str
    query_name: str
    batch_id: int
    rows: int
    records_behind: int | None
    lost_records: int
    missing_rows: int | None
    group: str
    by_partition: Mapping[str, Mapping[str, int]]


def lag_of(progress: Mapping[str, Any]) -> list[QueryLag]:
    """Return the lag of each logbus source in a progress document
    (``json.loads(progress.json)``)."""
    lags = []
    for source in progress.get("sources", ()):
        latest, ends = _document(source.get("latestOffset")), _document(source.get("endOffset"))
        is_ours = "lagAfterBatchTotal" in latest or (
            not latest and {"cluster", "topics"} <= ends.keys()
        )
        if not is_ours:
            continue
        lag = _after(latest.get("topics", {}), ends)
        rows = int(source.get("numInputRows", 0))
        lags.append(
            QueryLag(
                query_id=str(progress.get("id", "")),
                query_name=str(progress.get("name") or ""),
                batch_id=int(progress.get("batchId", -1)),
                rows=rows,
                records_behind=sum(sum(rows.values()) for rows in lag.values()) if latest else None,
                lost_records=int(latest.get("lostRecords", 0)),
                missing_rows=_missing(_document(source.get("startOffset")), ends, rows),
                group=str(latest.get("group", "")),
                by_partition=lag,
            )
        )
    return lags


def _document(offset: Any) -> dict[str, Any]:
    """Return an offset of a progress report as a dict; an empty dict if it is missing or is no JSON
    object. Spark may write an offset of logbus as a JSON document or as a text that holds JSON.
    Offsets of other sources may be any text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


def _after(
    topics: Mapping[str, Mapping[str, int]], ends: Mapping[str, Any]
) -> dict[str, dict[str, int]]:
    """Return the unread records after a batch, by topic and partition number.

    ``topics`` has the log ends, and ``ends`` is the batch's end offset.
    """
    read = ends.get("topics", {})
    return {
        name: {
            number: max(0, end - read.get(name, {}).get("offsets", {}).get(number, 0))
            for number, end in rows.items()
        }
        for name, rows in topics.items()
    }


def _missing(start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> int | None:
    """Return how many offsets of the batch from ``start`` to ``end`` have no row; None if this
    cannot be known."""
    if not end:
        return None
    until = offsets.from_json(end)
    begin = offsets.from_json(start) if start else SourceOffset(until.cluster_id)
    # A progress report lacks the option newPartitionOffsets, which decides where a partition that
    # is new in this batch starts. So compute the number of offsets for both values.
    planned = {
        sum(item.size for item in ranges_between(begin, until, new))
        for new in ("earliest", "latest")
    }
    if rows in planned:
        return 0
    if until.has_transactions:
        return None
    missing = max(planned) - rows
    return missing if missing > 0 and len(planned) == 1 else None


class LagListener(StreamingQueryListener):
    """A listener that calls ``callback`` with the lag of every logbus source after each batch of
    the source."""

    def __init__(self, on_lag: Callable[[QueryLag], None]) -> None:
        super().__init__()
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the listener reports the lag only after a batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for lag in lag_of(json.loads(event.progress.json)):
            self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the listener reports the lag only after a batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the listener reports the lag only after a batch."""
