"""Test ``LagMetrics`` and its alerts on a real query."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from support.patience import until
from support.promtool import firing, parsed

from pyspark_logbus.lag_metrics import LagMetrics


def test_lag_metrics_of_a_query_equal_its_row_counts_and_its_lag(queries, tmp_path):
    source, target = queries.topic(13, 7), queries.topic(0)
    registry = CollectorRegistry()
    metrics = LagMetrics(queries.spark, registry)

    def scraped():
        found = parsed(generate_latest(registry).decode())
        return {series: value for series, value in found.items() if "_created" not in series.name}

    def value(name, **labels):
        """Return the sum of the query's series with this name and these labels.

        Return None if there is no such series.
        """
        wanted = {"query": str(query.id), **labels}.items()
        named = {s: v for s, v in scraped().items() if s.name == f"logbus_spark_{name}"}
        found = [value for series, value in named.items() if wanted <= dict(series.labels).items()]
        return sum(found) if found else None

    given = {"subscribe": source, "startingOffsets": "earliest", "group.id": f"g-{source}",
             "maxOffsetsPerTrigger": "10"}  # fmt: skip
    frame = queries.stream(**given).select("value")
    query = queries.start(frame, topic=target)
    until(lambda: value("input_rows_total") == 20)
    until(lambda: value("lag_records") == 0)
    batches = [one for one in query.recentProgress if one.numInputRows]
    assert value("batches_total") >= len(batches)
    assert value("batch_duration_seconds_count") == value("batches_total")
    assert value("lost_records_total") == value("missing_rows_total") == 0
    assert value("query_info", group=f"g-{source}", query_id=str(query.id)) == 1
    assert value("last_batch_timestamp_seconds") > 1.7e9
    before = scraped()
    assert firing(before, tmp_path) == set()
    queries.fill(source, 15)
    until(lambda: value("input_rows_total") == 35)
    # Evaluate the alerts with a lag that grows by 100 records a minute, and with lost records.
    growth = {series: 100.0 for series in before if series.name == "logbus_spark_lag_records"}
    growth |= {series: 1.0 for series in before if series.name.endswith("spark_lost_records_total")}
    assert firing(scraped(), tmp_path, each_minute=growth) == {
        "LogbusSparkLagGrowing",
        "LogbusSparkRecordsLost",
    }
    query.stop()
    until(lambda: value("lag_records") is None)
    metrics.close()
