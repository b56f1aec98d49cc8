"""Tests with mutated batches: each raises a logbus error or decodes, and none crashes the process.

A crash ends the process and the test run. To run more mutations: ``LOGBUS_FUZZ_CASES=1000000 pytest
tests/unit/record/test_fuzz.py``, or as a program, ``python tests/unit/record/test_fuzz.py 1000000
[seed]``.
"""

from __future__ import annotations

import os
import random
import struct
import sys

import numpy as np
import pyarrow as pa
from support.row_codec import Row, decode_rows, encode_rows

from broker_lite.errors import CorruptMessageError, LogbusError, UnsupportedCompressionTypeError
from broker_lite.record import arrow, batch, transcode
from broker_lite.record import format as fmt

CASES = int(os.environ.get("LOGBUS_FUZZ_CASES", "3000"))
SEED = int(os.environ.get("LOGBUS_FUZZ_SEED", "1"))
INTEGERS = (0, 1, -1, 2, 7, 8, 255, 256, 1 << 20, 1 << 29, 2**31 - 1, 1 << 32, 2**63 - 1, -(2**63))
REFUSALS = (CorruptMessageError, UnsupportedCompressionTypeError)


def seeds() -> list[bytes]:
    """Return valid batches of every kind."""
    count = 50
    full = arrow.Columns(
        count,
        pa.array([None if i % 2 else b"k%d" % i for i in range(count)], pa.binary()),
        pa.array([b"v%d" % i * 9 for i in range(count)], pa.binary()),
        pa.array(range(count), pa.int64()),
        pa.array(
            [[("a", b"b"), ("c", None)] if i % 3 else [] for i in range(count)], arrow.HEADERS_TYPE
        ),
        np.arange(count, dtype=np.int32) * 2,
    )
    shapes = (
        full,
        full.slice(3, 4),
        full._replace(key=None, headers=None, offset_deltas=None),
        arrow.Columns(3, None, None),
    )
    compressions: tuple[arrow.Compression, ...] = ("none", "lz4", "zstd")
    out = [
        bytes(arrow.encode(columns, timestamp_ms=5, compression=compression))
        for columns in shapes
        for compression in compressions
    ]
    rows = [
        Row(
            10 + i,
            1000 + i,
            None if i % 2 else b"k",
            b"v" * i,
            (("a", b"x"), ("b", None)) if i % 3 else (),
        )
        for i in range(70)
    ]
    out += [bytes(encode_rows(rows, codec=codec)) for codec in range(5)]
    return out


def mutate(batch_bytes: bytes, source: random.Random) -> bytes:
    out = bytearray(batch_bytes)
    for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
        at = source.randrange(fmt.CRC_FROM, len(out))
        match source.randrange(6):
            case 0:
                out[at] = source.randrange(256)
            case 1:
                out[at] ^= 1 << source.randrange(8)
            case 2:
                at = min(at & ~7 if source.random() < 0.5 else at, len(out) - 8)
                struct.pack_into("<q", out, at, source.choice(INTEGERS))
            case 3:
                at = min(at & ~3, len(out) - 4)
                struct.pack_into("<I", out, at, source.choice(INTEGERS) & 0xFFFFFFFF)
            case 4:
                start, size = source.randrange(len(out)), source.randrange(1, 32)
                piece = out[start : start + size][: len(out) - at]
                out[at : at + len(piece)] = piece
            case _ if source.random() < 0.1:
                out = out[: max(at, fmt.HEADER_BYTES)]
                struct.pack_into(">i", out, 8, len(out) - fmt.LENGTH_PREFIX_BYTES)
    if source.random() < 0.5:
        # An attacker would set a correct CRC to pass the CRC check.
        batch.set_crc(out)
    return bytes(out)


def try_columns(data: bytes, header: batch.BatchHeader) -> None:
    """If ``data`` decodes as a column batch (its body is Arrow), check that each column, and the
    same batch rewritten in Kafka's format, has as many records as the header says."""
    try:
        columns = arrow.decode(data, header)
    except REFUSALS:
        return
    for column in (columns.key, columns.value, columns.headers):
        assert column is None or len(column.to_pylist()) == header.record_count
    rows = transcode.columns_to_rows(data, header)
    assert len(decode_rows(rows, batch.read_header(rows))) == header.record_count


def try_rows(data: bytes, header: batch.BatchHeader) -> None:
    """Check that decoding a row batch to rows and to columns gives the same number of records, or
    that both fail."""
    expected: int | None
    try:
        expected = len(decode_rows(data, header))
    except REFUSALS:
        expected = None
    try:
        columns = transcode.rows_to_columns(data, header)
    except REFUSALS:
        assert expected is None
    else:
        if not header.is_control and header.record_count:
            assert expected == columns.row_count


def run(cases: int, seed: int) -> int:
    """Run ``cases`` mutations. Return the number of mutated batches that were still valid."""
    source, sound, read = random.Random(seed), seeds(), 0
    for case in range(cases):
        data = mutate(source.choice(sound), source)
        try:
            header = batch.read_header(data)
            (try_columns if header.is_columns else try_rows)(data, header)
            batch.validate_for_append(data, header, 1 << 20)
            read += 1
        except LogbusError:
            continue
        except BaseException as error:
            error.add_note(f"case {case} of seed {seed}: {data.hex()}")
            raise
    return read


def test_randomly_changed_batches_are_decoded_or_raise_errors_of_logbus() -> None:
    run(CASES, SEED)


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    print(f"{total} cases of seed {first_seed}: {run(total, first_seed)} were sound")
