"""Check that the code writes and reads the bytes of the examples in FORMAT.md."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from support.row_codec import Row, decode_rows, encode_rows

from broker_lite.record import arrow, batch

HERE = Path(__file__).parent
FORMAT = HERE.parents[1] / "broker_lite" / "record" / "FORMAT.md"


def example(name: str) -> tuple[bytes, list[str]]:
    """Return the bytes of FORMAT.md's example in the file ``name``, and the lines of this file."""
    lines = [
        line for line in (HERE / name).read_text("utf-8").splitlines() if not line.startswith("#")
    ]
    return b"".join(bytes.fromhex(line.split(maxsplit=1)[0]) for line in lines), lines


def test_encoded_kafka_record_batch_equals_the_example_bytes_in_format_md() -> None:
    raw, lines = example("rows.txt")
    rows = [Row(0, 1000, b"k", b"hello", (("h", b"x"),)), Row(1, 1001, None, None)]
    header = batch.read_header(raw)
    batch.check_crc(raw, header)
    assert decode_rows(raw, header) == rows
    assert encode_rows(rows) == raw
    assert "\n".join(lines) in FORMAT.read_text("utf-8")


def test_example_bytes_of_an_arrow_batch_in_format_md_are_decoded() -> None:
    raw, lines = example("columns.txt")
    header = batch.read_header(raw)
    batch.check_crc(raw, header)
    columns = arrow.decode(raw, header)
    assert columns.key is not None and columns.key.to_pylist() == [b"k", None]
    assert columns.value is not None and columns.value.to_pylist() == [b"hello", b"hi"]
    assert columns.timestamp is columns.headers is columns.offset_deltas is None
    assert header.constant_timestamp == 1000
    assert "\n".join(lines) in FORMAT.read_text("utf-8")


def test_arrow_batch_is_encoded_as_in_format_md_apart_from_arrow_metadata() -> None:
    # Leave out Arrow's metadata, which another version of Arrow may encode differently.
    raw, _ = example("columns.txt")
    written = arrow.encode(
        arrow.Columns(2, pa.array([b"k", None]), pa.array([b"hello", b"hi"])), timestamp_ms=1000
    )
    assert written[21:72] == raw[21:72]
    assert bytes(written[-56:]) == raw[-56:]
