"""Tests of the output formats of ``logbus consume``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker_lite.cli import main
from broker_lite.cli.consume import RecordChooser
from broker_lite.cli.records import printer
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE

Out = pytest.CaptureFixture[bytes]


@pytest.fixture
def out(capsysbinary: Out) -> Out:
    return capsysbinary


def batch(**columns: Any) -> pa.RecordBatch:
    rows = len(next(iter(columns.values())))
    return pa.record_batch(
        {
            "topic": pa.array(["t"] * rows, pa.string()),
            "partition": pa.array([1] * rows, pa.int32()),
            "offset": pa.array(range(7, 7 + rows), pa.int64()),
            "timestamp": pa.array(columns.get("timestamp", [0] * rows), TIMESTAMP_TYPE),
            "key": pa.array(columns.get("key", [None] * rows), pa.binary()),
            "value": pa.array(columns["value"], pa.binary()),
            "headers": pa.array(columns.get("headers", [None] * rows), HEADERS_TYPE),
        }
    )


def test_consume_prints_one_value_per_line(out: Out) -> None:
    printer(None, None, "auto").write(batch(value=[b"a", None, b"\xff"]))
    assert out.readouterr().out == b"a\n\n\xff\n"


def test_format_string_supports_the_letters_of_kcat(out: Out) -> None:
    rows = batch(value=[b"v", None], key=[b"k", None], headers=[[("h", b"x"), ("i", b"y")], None])
    printer(None, r"%t[%p]@%o %k=%s %h %K %S 100%% %T\n", "auto").write(rows)
    assert out.readouterr().out.decode().splitlines() == [
        "t[1]@7 k=v h=x,i=y 1 1 100% 1970-01-01T00:00:00.000Z",
        "t[1]@8 =  -1 -1 100% 1970-01-01T00:00:00.000Z",
    ]


@pytest.mark.parametrize("template", ["%x", "%", "%v %"])
def test_unknown_letter_in_a_format_string_is_refused(template: str) -> None:
    with pytest.raises(click.BadParameter, match="names no field"):
        printer(None, template, "auto")


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (b'{"a": [1]}', "auto", {"a": [1]}),
        (b"[1]", "auto", [1]),
        (b"404", "auto", "404"),
        (b"404", "json", 404),
        (b'{"a":\n1}', "json", {"a": 1}),
        (b'{"a":\n1}', "auto", '{"a":\n1}'),
        (b"{broken", "auto", "{broken"),
        (b'{"a": 1}', "str", '{"a": 1}'),
        (b"\xff", "auto", {"$b64": "/w=="}),
        (b"a", "base64", {"$b64": "YQ=="}),
        (None, "auto", None),
    ],
)
def test_consume_with_json_output_prints_json_values_as_json(
    out: Out, value: bytes | None, form: str, expected: object
) -> None:
    printer("json", None, form).write(batch(value=[value], timestamp=[None]))
    row = json.loads(out.readouterr().out)
    assert row["value"] == expected
    assert (row["topic"], row["partition"], row["offset"]) == ("t", 1, 7)
    assert (row["timestamp"], row["timestamp_ms"]) == (None, -1)


def test_json_output_has_a_json_value_as_it_was_written(out: Out) -> None:
    """Regression: 1.10 was printed as 1.1, and spaces were added."""
    printer("jsonl", None, "auto").write(batch(value=[b'{"a":1.10,"b":1e3,"a":[]}']))
    assert b'"value": {"a":1.10,"b":1e3,"a":[]}, "headers"' in out.readouterr().out


def test_json_output_keeps_order_and_duplicates_of_headers(out: Out) -> None:
    rows = batch(value=[b"v"], headers=[[("h", b"2"), ("h", b"1"), ("n", None)]])
    printer("jsonl", None, "auto").write(rows)
    assert json.loads(out.readouterr().out)["headers"] == [["h", "2"], ["h", "1"], ["n", None]]


def test_arrow_and_parquet_output_of_consume_holds_the_consumed_records(
    out: Out, tmp_path: Path
) -> None:
    rows = batch(value=[b"v", None])
    arrow = printer("arrow", None, "auto")
    arrow.write(rows)
    arrow.close()
    assert pa.ipc.open_stream(out.readouterr().out).read_all().to_batches()[0].equals(rows)
    parquet = printer("parquet", None, "auto")
    parquet.write(rows)
    parquet.close()
    assert pq.read_table(io.BytesIO(out.readouterr().out)).column("value").to_pylist() == [
        b"v",
        None,
    ]


def test_arrow_output_to_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(click.UsageError, match="not for a terminal"):
        printer("parquet", None, "auto")


def test_format_string_together_with_an_output_format_is_refused() -> None:
    with pytest.raises(click.UsageError, match="both set the format"):
        printer("json", "%v", "auto")


def test_error_for_a_field_name_in_a_format_string_names_the_letter_of_the_field() -> None:
    with pytest.raises(click.BadParameter, match=r"\{offset\} is not a field: write .*%o offset"):
        printer(None, "{offset}: %v", "auto")


def test_grep_with_a_wrong_pattern_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: the command printed a traceback, and only when the first record arrived."""
    assert main.run(["consume", "t", "--grep", "(", "-b", "127.0.0.1:1"]) == 2
    assert "'(': Invalid regular expression: missing ): (; write" in " ".join(
        capsys.readouterr().err.split()
    )


def test_filters_find_bytes_that_are_not_utf8() -> None:
    """Regression: the command printed a traceback for arguments that are not UTF-8."""
    rows = batch(value=[b"k\xe4se", b"x"], key=[b"\xe4", None], headers=[[("h", b"\xe4")], None])
    chooser = RecordChooser("k\udce4", "\udce4", "h=\udce4")
    assert chooser.choose(rows).column("value").to_pylist() == [b"k\xe4se"]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_output_file_without_records_can_be_read(form: str, out: Out) -> None:
    """Regression: the file was empty, which neither Parquet nor Arrow can read."""
    printer(form, None, "auto").close()
    data = pa.BufferReader(out.readouterr().out)
    found = pq.read_table(data) if form == "parquet" else pa.ipc.open_stream(data).read_all()
    assert found.num_rows == 0 and "value" in found.column_names
