"""Tests of the records that ``logbus produce`` reads from its input."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from broker_lite.cli import lines, output
from broker_lite.cli.lines import LinePosition, LineRule, form_of, tables
from broker_lite.cli.produce import produce
from broker_lite.client.consuming.arrow_rows import ROW_SCHEMA_WITH_HEADERS
from broker_lite.client.record_files import WRITERS
from broker_lite.errors import InvalidSchemaError, LogbusError, MessageTooLargeError
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE


def values(found: list[pa.Table]) -> list[bytes | None]:
    return [value for table in found for value in table.column("value").to_pylist()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"\xff\xfe\r\n", [b"\xff\xfe\r"]),
    ],
)
def test_produce_reads_lines_as_bytes_without_decoding_them(
    tmp_path: Path, data: bytes, expected: list[bytes]
) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(data)
    assert values(list(tables(path, "lines", LineRule()))) == expected


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_produce_reads_lines_that_are_split_across_chunks(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk)
    data = [b"", b"one", b"two two", b"", b"three"]
    path = tmp_path / "f.log"
    path.write_bytes(b"\n".join(data))
    assert values(list(tables(path, "lines", LineRule()))) == data
    packed = tmp_path / "f.gz"
    packed.write_bytes(gzip.compress(b"\n".join(data)))
    assert values(list(tables(packed, "lines", LineRule()))) == data


def test_produce_sends_each_line_of_a_pipe_without_waiting_for_the_next_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(lines.os, "read", _reading_from(read_end))
    source = tables(None, "lines", LineRule())
    os.write(write_end, b"first\nhal")
    assert values([next(source)]) == [b"first"]
    os.write(write_end, b"f\n")
    assert values([next(source)]) == [b"half"]
    os.close(write_end)
    assert list(source) == []
    os.close(read_end)


def test_produce_reads_keys_headers_and_tombstones_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(b"k:v\nno delimiter\nk2:\n:v3\n")
    rule = LineRule(b":", None, (("h", b"x"), ("h", b"y")), null_empty=True)
    table = next(tables(path, "lines", rule))
    assert table.column("key").to_pylist() == [b"k", None, b"k2", b""]
    assert table.column("value").to_pylist() == [b"v", b"no delimiter", None, b"v3"]
    assert table.column("headers").to_pylist()[3] == [
        {"key": "h", "value": b"x"},
        {"key": "h", "value": b"y"},
    ]


def test_json_value_of_a_line_is_sent_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"value": {"a":1.10} , "key": 1e3}\n'
        '\t{ "headers":[],"v\\u0061lue" :[ 1.0,"}"]}\n'
        '{"value": "x", "value": 12345678901234567890.0}\n'
    )
    table = next(tables(path, "jsonl", LineRule()))
    assert table.column("key").to_pylist() == [b"1e3", None, None]
    expected = [b'{"a":1.10}', b'[ 1.0,"}"]', b"12345678901234567890.0"]
    assert table.column("value").to_pylist() == expected


def test_records_survive_export_to_json_lines_and_import(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"key": "k", "value": {"a": 1}, "timestamp_ms": 5, "headers": [["h", "x"]]}\n'
        '{"key": null, "value": {"$b64": "/w=="}, "offset": 9}\n\n'
        '{"value": "text"}\n'
    )
    table = next(tables(path, "jsonl", LineRule()))
    assert table.column("key").to_pylist() == [b"k", None, None]
    assert table.column("value").to_pylist() == [b'{"a": 1}', b"\xff", b"text"]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5, None, None]
    assert table.column("headers").to_pylist()[0] == [{"key": "h", "value": b"x"}]


@pytest.mark.parametrize("line", ["not json", "[1, 2]", "3"])
def test_produce_refuses_a_malformed_json_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InvalidSchemaError, match="not a JSON object"):
        list(tables(path, "jsonl", LineRule()))


def test_produce_refuses_a_table_without_a_value_column(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(pa.table({"value": [b"v"], "offset": [1]}), good)
    pq.write_table(pa.table({"text": ["v"]}), bad)
    assert [t.column_names for t in tables(good, "parquet", LineRule())] == [["value"]]
    with pytest.raises(InvalidSchemaError, match=r"needs a column 'value'.*text"):
        list(tables(bad, "parquet", LineRule()))
    pq.write_table(pa.table({"value": [b"v"], "city": ["x"]}), bad)
    with pytest.raises(InvalidSchemaError, match=r"value, city.*would be lost"):
        list(tables(bad, "parquet", LineRule()))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1, "b": "text"}', r"field 'a'.*would be lost.*--input lines"),
        ('{"value": 1, "stamp": 5}', "field 'stamp'.*would be lost"),
        ('{"key": "k"}', r"no field 'value'.*tombstone"),
        ('{"value": {"$b64": "%%%"}}', "field 'value'.*not valid base64"),
        ('{"key": {"$b64": 5}, "value": 1}', "field 'key'.*not valid base64"),
        ('{"value": "v", "headers": [["a"]]}', "'headers' is not a list of pairs"),
        ('{"value": "v", "headers": "xy"}', "'headers' is not a list of pairs"),
        ('{"value": "v", "headers": {"a": "b"}}', "'headers' is not a list of pairs"),
        ('{"value": "v", "timestamp_ms": "soon"}', "'timestamp_ms' is not a time: 'soon'"),
        ('{"value": "v", "timestamp_ms": -5}', "'timestamp_ms' is not a time"),
        ('{"value": "v", "timestamp_ms": 99999999999999999999}', "'timestamp_ms' is not a time"),
        ('{"value": "v", "timestamp": "soon"}', "'timestamp' is not a time.*2026-01-31"),
        ('{"value": "v", "timestamp": true}', "'timestamp' is not a time"),
        ('{"value": "\\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "not a JSON object"),
    ],
)
def test_produce_refuses_a_json_line_with_an_unsupported_field(
    tmp_path: Path, line: str, reason: str
) -> None:
    """If the command accepted the field, it would send another record than the line describes, and
    still exit with 0."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"value": 1}\n\n' + line + "\n")
    with pytest.raises(InvalidSchemaError, match=rf"f\.jsonl line 3: .*{reason}"):
        list(tables(path, "jsonl", LineRule()))


def test_json_line_timestamp_is_text_or_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"value": null, "timestamp": "1970-01-01T00:00:01.500Z"}\n'
        '{"value": 1, "timestamp": 7}\n'
        '{"value": 1, "timestamp": "1970-01-01T01:00:00+01:00", "timestamp_ms": 9}\n'
        '{"value": 1, "timestamp": null, "timestamp_ms": -1}\n'
    )
    table = next(tables(path, "jsonl", LineRule()))
    assert table.column("value").to_pylist() == [None, b"1", b"1", b"1"]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [1500, 7, 9, None]


@pytest.mark.parametrize(
    "content", [b"x", b"\x1f\x8b\x08\x00", gzip.compress(b"text", mtime=0)[:-9]]
)
def test_produce_error_names_an_invalid_gzip_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidSchemaError, match=r"bad\.gz cannot be read as gzip"):
        list(tables(path, "lines", LineRule()))


def test_produce_refuses_a_line_longer_than_max_request_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the limit, ``logbus produce < /dev/zero`` would fill the memory."""
    read = 0

    def endless(source: int, size: int) -> bytes:
        nonlocal read
        read += size
        return b"good\n" * (read == size) + bytes(size)

    monkeypatch.setattr(lines.os, "read", endless)
    source = tables(None, "lines", LineRule(bytes_max=5 << 20))
    assert values([next(source)]) == [b"good"]
    with pytest.raises(MessageTooLargeError, match=r"stdin line 2: longer than 5242880 bytes"):
        next(source)
    assert read < 8 << 20


@pytest.mark.parametrize("option", [("-k", "k"), ("-K", ":"), ("-H", "a=b"), ("-Z",)])
@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.arrow"])
def test_options_for_text_lines_are_refused_for_other_input_formats(
    tmp_path: Path, option: tuple[str, ...], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    form = ("--input", "jsonl") if name == "t.jsonl" else ()
    done = CliRunner().invoke(produce, ["t", str(path), *option, *form, "-b", "127.0.0.1:1"])
    assert done.exit_code == 2, done.output
    assert f"{option[0]} is only for lines" in done.output


def test_produce_chooses_the_input_format_by_the_file_extension() -> None:
    assert form_of(None, "auto") == "lines"
    assert form_of(Path("a.log.gz"), "auto") == "lines"
    assert form_of(Path("a.parquet"), "auto") == "parquet"
    assert form_of(Path("a.arrow"), "auto") == "arrow"
    assert form_of(Path("a.parquet"), "lines") == "lines"
    assert form_of(None, "jsonl") == "jsonl"


@pytest.mark.parametrize("name", ["t.arrow", "t.feather", "t.bin"])
@pytest.mark.parametrize("kind", ["file", "stream", "parquet"])
def test_arrow_and_parquet_files_are_recognised_by_their_first_bytes(
    tmp_path: Path, name: str, kind: str
) -> None:
    path, table = tmp_path / name, pa.table({"key": [b"k"], "value": [b"v"]})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    found = list(tables(path, form_of(path, "auto"), LineRule(takes_binary=False)))
    assert [batch.to_pylist() for batch in found] == [[{"key": b"k", "value": b"v"}]]


def test_exported_json_lines_are_read_back_as_records(tmp_path: Path) -> None:
    """Regression: each exported line became the value of a record."""
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        write, finish = WRITERS["jsonl"](file)
        fetched = pa.RecordBatch.from_pylist(
            [{"key": b"k", "value": b"v", "topic": "t", "partition": 0, "offset": 7,
              "timestamp": None, "timestampType": 0, "headers": [{"key": "h", "value": b"1"}]}],
            schema=ROW_SCHEMA_WITH_HEADERS,
        )  # fmt: skip
        write(fetched)
        finish()
    [found] = tables(path, form_of(path, "auto"), LineRule())
    assert found.to_pylist() == [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}]}
    ]
    path.write_text('{"topic": "t", "value": 1}\n')
    assert form_of(path, "auto") == "lines"


def test_csv_file_with_a_header_line_is_read_as_records(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('key,value\n1,"a,b"\n2,""\n"",\nNULL,NA\n')
    [found] = tables(path, form_of(path, "auto"), LineRule())
    assert found.column("key").to_pylist() == [b"1", b"2", b"", b"NULL"]
    assert found.column("value").to_pylist() == [b"a,b", b"", None, b"NA"]
    path.write_text("name,city\n1,2\n")
    with pytest.raises(InvalidSchemaError, match=r"t\.csv: a table needs .* --input lines"):
        list(tables(path, "csv", LineRule()))


def test_exported_csv_file_is_read_back(tmp_path: Path) -> None:
    """Regression: ``produce`` read an empty field as an empty key, not as no key, and refused the
    column ``headers``."""
    path = tmp_path / "t.csv"
    path.write_text(
        "partition,offset,timestamp,key,value,headers\n"
        '0,7,2026-11-20T10:00:00.250Z,k,v,"[[""a"", ""1""], [""a"", ""2""]]"\n'
        "0,8,,,w,\n"
    )
    [found] = tables(path, "csv", LineRule())
    assert found.column("key").to_pylist() == [b"k", None]
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    assert found.column("headers").to_pylist() == [pairs, None]
    assert found.column("timestamp").cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist() == [
        1_795_168_800_250,
        None,
    ]
    path.write_text("value,headers\nv,a=1\n")
    with pytest.raises(InvalidSchemaError, match="has no JSON pairs"):
        list(tables(path, "csv", LineRule()))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_exported_records_are_read_back_as_the_same_bytes(form: str, tmp_path: Path) -> None:
    """Regression: in JSON lines a value {"$b64": …} became other bytes, and a value with NaN or
    1e999 made its line invalid. ``logbus produce`` refused CSV with a record header that is not
    UTF-8, or with a row of more than a megabyte. In CSV, null and empty values were the same. In
    JSON lines, numbers and spaces of a JSON value changed."""
    values = [
        None,
        b"",
        b"v",
        b'"',
        b"a,\r\nb",
        b"\xff\x00",
        b'{"$b64": "AA=="}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
    ]
    values += [b'{"a": 1}', b"null", b"x" * 3_000_000, "[1]".encode("utf-16-le")]
    values += [b'{"a":1.10,"b": [1e3, -0.0, 12345678901234567890.0],"a":2 }', b"[ 1]\n", b"{\r\n}"]
    count = len(values)
    batch = pa.record_batch(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([None] * count, TIMESTAMP_TYPE),
            "key": pa.array(values, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[("h", value), ("n", None)] for value in values], HEADERS_TYPE),
        }
    )
    path = tmp_path / f"t.{form}"
    with path.open("wb") as file:
        write, finish = WRITERS[form](file)
        write(batch)
        finish()
    if form == "jsonl":
        for line in path.read_bytes().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    found = pa.concat_tables(tables(path, form, LineRule()), promote_options="default")
    for column in ("key", "value", "headers"):
        assert found.column(column).to_pylist() == batch.column(column).to_pylist()


def test_csv_values_with_line_ends_are_read_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: ``produce`` refused a file of more than 16 MB that ``export`` had written."""
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    path = tmp_path / "t.csv"
    path.write_bytes(b"value\r\n" + b'"a\nb"\r\n' * 200)
    assert values(list(tables(path, "csv", LineRule(bytes_max=50)))) == [b"a\nb"] * 200


def test_produce_recognises_a_file_suffix_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "EXPORT.CSV"
    path.write_text("value\n1\n")
    assert form_of(path, "auto") == "csv"


def test_gzipped_csv_is_read_as_records(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"value\n1\n2\n"))
    [found] = tables(path, form_of(path, "auto"), LineRule())
    assert found.column("value").to_pylist() == [b"1", b"2"]


@pytest.mark.parametrize("name", ["t.log", "t.log.gz", "t.csv", "t.csv.gz", "t.arrows", "t.arrow"])
def test_progress_through_an_input_file_grows_from_zero_to_nearly_one(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    text = b"value\n" + b"some text\n" * 300_000
    if "arrow" in name:
        rows = pa.record_batch({"value": pa.array([b"x"] * 100, pa.binary())})
        new = pa.ipc.new_file if name == "t.arrow" else pa.ipc.new_stream
        with new(str(path), rows.schema) as writer:
            for _ in range(3):
                writer.write_batch(rows)
    else:
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    shares: list[float] = []
    assert list(tables(path, form_of(path, "auto"), LineRule(), shares.append))
    assert shares == sorted(shares) and shares[0] > 0 and 0.9 < shares[-1] <= 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_is_shown_only_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with output.ProgressBar("bytes", is_alone=True) as bar:
        for left in (10, 5, 0):
            bar.reach(left)
    out, err = capsys.readouterr()
    assert out == "" and ("100%" in err) is is_terminal and bool(err) is is_terminal


def test_file_in_feather_version_1_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t.feather"
    path.write_bytes(b"FEA1\0\0\0\0")
    with pytest.raises(InvalidSchemaError, match=r"version 1.*Write version 2"):
        list(tables(path, form_of(path, "auto"), LineRule()))


def test_binary_file_is_split_into_lines_only_with_the_option_input_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"FEA1\0\0\n\0")
    with pytest.raises(InvalidSchemaError, match=r"NUL byte.*--input lines"):
        list(tables(path, "lines", LineRule(takes_binary=False)))
    found = next(tables(path, "lines", LineRule()))
    assert found.column("value").to_pylist() == [b"FEA1\0\0"]


def _reading_from(pipe: int):  # type: ignore[no-untyped-def]
    read = os.read
    return lambda source, size: read(pipe if source == 0 else source, size)


@pytest.mark.parametrize(
    ("form", "text", "rows", "line"),
    [
        ("jsonl", b'{"value": "a"}\n\n{"value": "b"}\nbad\n{"value": "c"}\n', 2, 4),
        ("jsonl", b"bad\n", 0, 1),
        ("lines", b"a\n" + b"b" * 3_000_000 + b"\n", 1, 2),
        ("csv", b"value,key\na,b\nc,d,e\n", 0, 0),
    ],
)
def test_number_of_a_bad_input_line_is_known_after_all_earlier_records_are_read(
    tmp_path: Path, form: str, text: bytes, rows: int, line: int
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(text)
    position, found = LinePosition(), 0
    with pytest.raises(LogbusError):
        for table in tables(path, form, LineRule(bytes_max=1 << 20), None, position):
            found += table.num_rows
    assert (found, position.line) == (rows, line)
