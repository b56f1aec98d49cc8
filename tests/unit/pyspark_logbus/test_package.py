"""Tests of the package pyspark_logbus: imported modules, Spark settings, lag in query progress."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import broker_lite
import pyspark_logbus as logbus
from broker_lite.errors import InvalidConfigError, MissingDependencyError
from pyspark_logbus import datasource, settings
from pyspark_logbus.progress_listener import lag_of
from pyspark_logbus.stream_reader import LogbusStreamReader

ROOT = Path(__file__).parents[3]


def imported_by(code):
    """Run the code in a new interpreter; return the names of all modules that it has imported."""
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True,
        env={"LOGBUS_BOOTSTRAP_SERVERS": "127.0.0.1:1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_of_the_package_loads_none_of_its_other_modules():
    found = imported_by("import pyspark_logbus")
    heavy = {"pyspark", "pyarrow", "numpy", "kazoo", "asyncio", "broker_lite", "socket"}
    assert not heavy & found


def test_process_that_commits_a_sinks_batch_imports_neither_pyarrow_nor_the_client():
    found = imported_by(
        "from pyspark_logbus import DefaultSource\n"
        "from pyspark.sql.types import StructType, StructField, StringType\n"
        "schema = StructType([StructField('value', StringType())])\n"
        "source = DefaultSource({'topic': 't', 'bootstrap.servers': 'h:1'})\n"
        "writer = source.streamWriter(schema=schema, overwrite=False)\n"
        "writer.commit([], 0)\n"
    )
    assert not {"pyarrow", "numpy", "kazoo", "broker_lite.client.administration.admin"} & found
    assert not {name for name in found if name.startswith("broker_lite.wire")}


def test_process_that_plans_a_sources_batches_imports_no_pyarrow():
    found = imported_by("import pyspark_logbus.stream_planner")
    assert not {"pyarrow", "numpy", "kazoo", "asyncio"} & found


def test_executors_import_the_client_and_pyarrow_but_no_planning_code():
    found = imported_by("import pyspark_logbus.stream_reader, pyspark_logbus.partition_reader")
    assert not {"kazoo", "asyncio", "kafka", "pyspark_logbus.stream_planner"} & found
    assert not {
        name for name in found if name.startswith(("broker_lite.server", "broker_lite.m"))
    } - {"broker_lite.machine", "broker_lite.model"}


def test_public_names_are_imported_lazily():
    assert logbus.DefaultSource.name() == "logbus"
    assert logbus.errors.LogbusError
    assert set(logbus.__all__) <= set(dir(logbus))
    assert logbus.__version__ == broker_lite.__version__
    with pytest.raises(AttributeError, match="nosuch"):
        logbus.nosuch  # noqa: B018


def test_package_can_be_imported_without_pyspark_and_its_error_names_what_is_missing():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['pyspark'] = None\n"
            "import pyspark_logbus as logbus\n"
            "print(hasattr(logbus, 'DefaultSource'))\n"
            "try: logbus.DefaultSource\n"
            "except AttributeError as error: print(error)",
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("False\nDefaultSource needs PySpark 4.2")


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "3.5.3"])
def test_error_for_an_older_spark_names_the_required_version(version, monkeypatch):
    monkeypatch.setattr(datasource.pyspark, "__version__", version)
    with pytest.raises(MissingDependencyError, match=r"needs PySpark 4\.2 or later"):
        datasource.DefaultSource({"subscribe": "t", "bootstrap.servers": "h:1"})


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev1", "5.0.0"])
def test_newer_spark_versions_are_accepted(version, monkeypatch):
    monkeypatch.setattr(datasource.pyspark, "__version__", version)
    datasource.DefaultSource({"subscribe": "t", "bootstrap.servers": "h:1"})


def test_query_with_both_bootstrap_servers_and_zookeeper_connect_is_refused():
    with pytest.raises(InvalidConfigError, match="both name a cluster"):
        datasource.DefaultSource({"bootstrap.servers": "h:1", "zookeeper.connect": "z:1"})


def test_cluster_address_in_the_environment_is_read_on_the_driver(monkeypatch):
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", "env:1234")
    datasource._resolved.clear()
    source = datasource.DefaultSource({"subscribe": "t"})
    assert source.reader(source.schema())._plan.options.bootstrap_servers == "env:1234"


def test_invalid_stream_option_raises_its_error_when_spark_requests_the_read_limit():
    source = datasource.DefaultSource(
        {"subscribe": "t", "bootstrap.servers": "h:1", "endingOffsets": "latest"}
    )
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LogbusStreamReader)
    with pytest.raises(InvalidConfigError, match="not valid in streaming queries"):
        reader.getDefaultReadLimit()
    reader.stop()


def test_spark_conf_function_returns_the_settings_of_spark_defaults_conf(monkeypatch):
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    file = dict(line.split() for line in lines if line.strip() and not line.startswith("#"))
    monkeypatch.setattr(settings.tempfile, "gettempdir", lambda: "/tmp")
    assert settings.spark_conf() == file
    assert settings.spark_conf("/data/checkpoint") == file
    assert settings.spark_conf("hdfs://name/checkpoint") == file
    for store in ("s3a://b/c", "abfss://c@a/x", "gs://b/c"):
        assert settings.spark_conf(store) == {settings.SOCKETS: "true"}


def test_spark_socket_path_is_short_even_if_the_temporary_folder_has_a_long_path(monkeypatch):
    monkeypatch.setattr(settings.tempfile, "gettempdir", lambda: "/tmp/" + "x" * 120)
    folder = settings.spark_conf()[settings.SOCKET_FOLDER]
    assert len(folder) + settings.SOCKET_NAME_BYTES <= settings.SOCKET_PATH_MAX


def offset_document(offsets, **begin):
    document = {"version": 1, "cluster": "c", "topics": {"t": of_topic(offsets)}}
    return {**document, **{name: {"t": of_topic(at)} for name, at in begin.items()}}


def of_topic(offsets):
    return {"id": "x", "offsets": offsets, "epochs": dict.fromkeys(offsets, 0)}


@pytest.mark.parametrize(
    ("start", "end", "rows", "missing"),
    [
        (offset_document({"0": 5}), offset_document({"0": 9}), 4, 0),
        (offset_document({"0": 5}), offset_document({"0": 9}), 1, 3),
        (offset_document({"0": 5}), offset_document({"0": 9}), 0, 4),
        # The end offset of a query's first batch also contains its start offsets.
        (None, offset_document({"0": 9}, begin={"0": 2}), 6, 1),
        # More rows than offsets: foreachBatch read the batch twice, so the loss is unknown.
        (offset_document({"0": 5}), offset_document({"0": 9}), 8, None),
        # The driver does not know whether the new partition 1 was read from 0 or from offset 3.
        (offset_document({"0": 5}), offset_document({"0": 9, "1": 3}), 7, 0),
        (offset_document({"0": 5}), offset_document({"0": 9, "1": 3}), 4, 0),
        (offset_document({"0": 5}), offset_document({"0": 9, "1": 3}), 6, None),
        (offset_document({"0": 5}), None, 0, None),
        # Transaction markers and aborted records have offsets, but give no rows.
        (offset_document({"0": 5}), {**offset_document({"0": 9}), "transactions": True}, 3, None),
        (offset_document({"0": 5}), {**offset_document({"0": 9}), "transactions": True}, 4, 0),
    ],
)
def test_missing_rows_of_a_batch_are_computed_from_its_offsets_and_its_row_count(
    start, end, rows, missing
):
    latest = {"topics": {"t": {"0": 9}}, "lagAfterBatchTotal": 0}
    for form in (lambda document: document, json.dumps):
        source = {
            "latestOffset": latest, "startOffset": start and form(start),
            "endOffset": end and form(end), "numInputRows": rows,
        }  # fmt: skip
        [lag] = lag_of({"sources": [source]})
        assert lag.missing_rows == missing


def test_lag_is_read_from_spark_progress():
    latest = {
        "topics": {"t": {"0": 9, "1": 4}},
        "lagAfterBatch": {},
        "lagAfterBatchTotal": 6,
        "group": "g",
    }
    end = offset_document({"0": 7, "1": 4})
    progress = {
        "id": "q", "name": None, "batchId": 3,
        "sources": [
            {"latestOffset": latest, "endOffset": end, "numInputRows": 2},
            {"latestOffset": {"other": 1}},
            {"latestOffset": None},
            {"latestOffset": "shard-3", "startOffset": "shard-1", "endOffset": "shard-2"},
        ],
    }  # fmt: skip
    [lag] = lag_of(progress)
    assert (lag.records_behind, lag.rows, lag.group, lag.batch_id) == (2, 2, "g", 3)
    assert lag.by_partition == {"t": {"0": 2, "1": 0}}


def test_query_lag_of_a_batch_that_spark_repeats_counts_offsets_without_rows():
    """Spark does not call ``latestOffset`` for a repeated batch, so the query progress has a null
    ``latestOffset``. Offsets without rows are counted from the batch's start and end offsets."""
    for latest in (None, "null"):
        source = {
            "latestOffset": latest, "startOffset": json.dumps(offset_document({"0": 5})),
            "endOffset": json.dumps(offset_document({"0": 9})), "numInputRows": 1,
        }  # fmt: skip
        other = {"latestOffset": None, "startOffset": None, "endOffset": {"seconds": 3}}
        [lag] = lag_of({"batchId": 7, "sources": [source, other]})
        assert (lag.batch_id, lag.missing_rows, lag.rows) == (7, 3, 1)
        assert (lag.records_behind, lag.lost_records, lag.by_partition) == (None, 0, {})


def test_executors_do_not_import_pandas():
    # Calls of pa.array, pa.scalar and to_numpy would import pandas, which takes half a second.
    found = imported_by(
        "import pyarrow as pa, numpy as np\n"
        "from broker_lite.record import arrow\n"
        "from broker_lite.record.batch import read_header\n"
        "from broker_lite.client.fetch.range_reader import FetchedBatch\n"
        "from broker_lite.record.arrays import binary\n"
        "from broker_lite.record.arrow import Columns, TIMESTAMP_TYPE, HEADERS_TYPE\n"
        "from pyspark_logbus import partition_writer as writer, row_columns\n"
        "from pyspark_logbus.offset_ranges import OffsetRange\n"
        "from pyspark_logbus.schema import SinkColumns\n"
        "value = binary(np.array([0, 1, 2], np.int32), b'ab')\n"
        "batch = pa.RecordBatch.from_arrays([value, value.cast(pa.string())], names=['v', 't'])\n"
        "parts = list(writer.by_topic(batch, '', SinkColumns(value=0, topic=1)))\n"
        "columns = writer.to_columns(batch, SinkColumns(value=0, key=1))\n"
        "header = read_header(arrow.encode(columns, compression='none', timestamp_ms=5))\n"
        "rows = FetchedBatch(header, columns, 0, 2)\n"
        "for build in row_columns._BUILDERS.values(): build(OffsetRange('t', 0, 0, 2), rows)\n"
    )
    assert "pandas" not in found
