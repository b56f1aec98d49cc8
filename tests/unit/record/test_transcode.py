"""Tests of transcoding between row batches and columns, compared with a codec for single rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_codec import Row, decode_rows, encode_rows

from broker_lite.errors import CorruptMessageError, UnsupportedCompressionTypeError
from broker_lite.record import arrow, batch, scan, transcode
from broker_lite.record import format as fmt
from broker_lite.record.arrow import Columns
from broker_lite.record.transcode import columns_to_rows, join_rows, rows_to_columns

CODECS = (fmt.CODEC_NONE, fmt.CODEC_GZIP, fmt.CODEC_SNAPPY, fmt.CODEC_LZ4, fmt.CODEC_ZSTD)


def as_rows(columns: Columns, header: batch.BatchHeader) -> list[Row]:
    """Return the rows of decoded columns, with offsets and timestamps from the batch header."""
    count = columns.row_count
    nulls = [None] * count
    keys = nulls if columns.key is None else columns.key.to_pylist()
    values = nulls if columns.value is None else columns.value.to_pylist()
    headers = nulls if columns.headers is None else columns.headers.to_pylist()
    times = [header.constant_timestamp] * count
    if columns.timestamp is not None:
        times = columns.timestamp.cast(pa.int64()).to_pylist()
    deltas = range(count) if columns.offset_deltas is None else columns.offset_deltas.tolist()
    return [
        Row(
            header.base_offset + delta,
            time,
            key,
            value,
            tuple((item["key"], item["value"]) for item in items or ()),
        )
        for delta, time, key, value, items in zip(deltas, times, keys, values, headers)
    ]


def stored_columns(columns: Columns, rows: bytearray) -> memoryview:
    """Return a column batch with the offsets, epochs and attributes of the row batch ``rows``."""
    like = batch.read_header(rows)
    out = arrow.encode(
        columns,
        timestamp_ms=like.base_timestamp,
        producer_id=like.producer_id,
        producer_epoch=like.producer_epoch,
        base_sequence=like.base_sequence,
        attributes=like.attributes,
    )
    batch.stamp(out, batch.read_header(out), like.base_offset, like.leader_epoch)
    return out


def both_ways(rows: list[Row], **fields: int) -> Columns:
    """Transcode rows to columns and back; check that rows and bytes are unchanged.

    Return the columns.
    """
    buffer = encode_rows(rows, leader_epoch=3, **fields)
    header = batch.read_header(buffer)
    columns = rows_to_columns(buffer, header)
    assert as_rows(columns, header) == rows
    stored = stored_columns(columns, buffer)
    back = columns_to_rows(stored, batch.read_header(stored))
    assert back == buffer
    batch.check_crc(back, batch.read_header(back))
    return columns


# These bytes look like lengths, attributes and ends of records, so the scan finds false candidates.
TRICKY = st.lists(st.sampled_from([0, 0, 1, 12, 14, 20, 64, 128, 130, 255]), max_size=70).map(bytes)
BYTES = st.one_of(st.none(), st.binary(max_size=150), TRICKY, st.integers(0, 300).map(bytes))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), TRICKY)), max_size=4).map(
    tuple
)
ROWS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.one_of(st.just(0), st.integers(-1, 2**62)),
        BYTES,
        BYTES,
        st.one_of(st.just(()), HEADERS),
    ),
    min_size=1,
    max_size=60,
)


@given(raw=ROWS, base=st.integers(0, 2**60), dense=st.booleans())
@settings(max_examples=200, deadline=None)
def test_records_converted_to_arrow_columns_and_back_are_unchanged(
    raw: list[tuple], base: int, dense: bool
) -> None:
    rows, offset = [], base
    for step, *fields in raw:
        rows.append(Row(offset, *fields))
        offset += 1 if dense else step
    columns = both_ways(rows)
    assert (columns.offset_deltas is None) == (rows[-1].offset - base == len(rows) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_batches_of_every_codec_are_converted_to_columns_and_back(codec: int) -> None:
    rows = [Row(i, 1000 + i // 3, b"k%d" % i, b"value %d " % i * 20) for i in range(3000)]
    buffer = encode_rows(rows, codec=codec)
    header = batch.read_header(buffer)
    columns = rows_to_columns(buffer, header)
    assert as_rows(columns, header) == rows
    stored = stored_columns(columns, buffer)
    back = columns_to_rows(stored, batch.read_header(stored), codec)
    assert back == buffer


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_columns_become_uncompressed_rows(compression: arrow.Compression) -> None:
    value = pa.array([b"value %d" % i * 9 for i in range(100)])
    stored = arrow.encode(Columns(100, None, value), timestamp_ms=5, compression=compression)
    back = columns_to_rows(stored, batch.read_header(stored))
    header = batch.read_header(back)
    assert header.codec == fmt.CODEC_NONE and header.magic == fmt.MAGIC_ROWS
    assert [row.value for row in decode_rows(back, header)] == value.to_pylist()


def test_producer_id_epoch_sequence_and_attributes_survive_transcoding() -> None:
    both_ways(
        [Row(10, 5, b"a", b"b"), Row(11, 6, None, b"c")],
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        attributes=fmt.ATTRIBUTE_TRANSACTIONAL,
    )


def test_transcoded_batch_omits_all_null_columns_and_a_constant_timestamp_column() -> None:
    columns = both_ways([Row(i, 9, None, None) for i in range(5)])
    assert columns == Columns(5, None, None)
    columns = both_ways([Row(i, 9, b"", b"v") for i in range(5)])
    assert columns.key is not None and columns.timestamp is None and columns.headers is None


def test_log_append_time_is_the_timestamp_of_every_row() -> None:
    buffer = encode_rows([Row(0, 5, None, b"a"), Row(1, 7, None, b"b")])
    header = batch.set_log_append_time(buffer, batch.read_header(buffer), 1234)
    columns = rows_to_columns(buffer, header)
    assert columns.timestamp is None
    assert [row.timestamp_ms for row in as_rows(columns, header)] == [1234, 1234]
    stored = arrow.encode(
        Columns(2, None, pa.array([b"a", b"b"]), pa.array([5, 7])), timestamp_ms=0
    )
    header = batch.set_log_append_time(stored, batch.read_header(stored), 1234)
    back = columns_to_rows(stored, header)
    assert [row.timestamp_ms for row in decode_rows(back, batch.read_header(back))] == [1234] * 2


def test_control_batch_is_transcoded_to_no_rows() -> None:
    marker = Row(5, 1, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07")
    buffer = encode_rows([marker], attributes=fmt.ATTRIBUTE_CONTROL)
    header = batch.read_header(buffer)
    assert rows_to_columns(buffer, header).row_count == 0
    assert header.next_offset == 6


def test_batch_emptied_by_compaction_keeps_its_offsets() -> None:
    buffer = encode_rows([Row(5, 1, b"k", b"v"), Row(9, 1, b"k", b"v")])
    del buffer[fmt.HEADER_BYTES :]
    fields = batch.read_header(buffer)._replace(length=49, record_count=0)
    fmt.HEADER.pack_into(buffer, 0, *fields)
    header = batch.read_header(buffer)
    assert rows_to_columns(buffer, header).row_count == 0
    assert header.next_offset == 10


def test_records_with_many_headers_are_converted() -> None:
    many = tuple((f"h{i}", None if i % 7 == 0 else b"v%d" % i) for i in range(300))
    few = (("x", b"y"),)
    both_ways([Row(0, 0, b"k", b"v", many), Row(1, 0, None, None, few), Row(2, 0, b"", b"", many)])


def test_header_keys_with_invalid_utf_8_get_replacement_characters() -> None:
    rows = [Row(0, 0, None, None, (("ab", b"v"),)), Row(1, 0, None, None, (("cd", None),))]
    buffer = encode_rows(rows)
    position = bytes(buffer).rindex(b"ab")
    buffer[position : position + 2] = b"\xff\xfe"
    header = batch.read_header(buffer)
    columns = rows_to_columns(buffer, header)
    columns.headers.validate(full=True)
    assert as_rows(columns, header) == decode_rows(buffer, header)


def test_record_values_that_hold_encoded_batches_are_transcoded_unchanged() -> None:
    inner = bytes(encode_rows([Row(i, i, b"k", b"inner value %d" % i) for i in range(50)]))
    both_ways([Row(i, i, inner, inner) for i in range(20)])


def test_records_with_undefined_attributes_are_decoded_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Row(i, i, b"k", b"v" * 70) for i in range(3)]
    buffer = encode_rows(rows)
    # The attributes of the first record follow its length, which takes two bytes.
    buffer[fmt.HEADER_BYTES + 2] = 9
    header = batch.read_header(buffer)
    walks = []
    walk = scan._walk
    monkeypatch.setattr(scan, "_walk", lambda *args: walks.append(args) or walk(*args))
    assert as_rows(rows_to_columns(buffer, header), header) == rows
    assert len(walks) == 1


def test_batch_with_millions_of_zero_bytes_is_transcoded() -> None:
    rows = [Row(i, 0, None, bytes(1 << 20)) for i in range(5)]
    buffer = encode_rows(rows, codec=fmt.CODEC_ZSTD)
    header = batch.read_header(buffer)
    assert as_rows(rows_to_columns(buffer, header), header) == rows


def test_transcoder_and_record_decoder_agree_on_kafka_batches_with_a_changed_byte() -> None:
    rows = [Row(i, i, b"key", b"value", (("h", b"x"),)) for i in range(4)]
    plain = encode_rows(rows)
    for position in range(fmt.HEADER_BYTES, len(plain)):
        for value in (0, 1, 2, 127, 128, 255, plain[position] ^ 2):
            buffer = bytearray(plain)
            buffer[position] = value
            header = batch.read_header(buffer)
            try:
                expected = decode_rows(buffer, header)
            except CorruptMessageError:
                with pytest.raises(CorruptMessageError):
                    rows_to_columns(buffer, header)
            else:
                assert as_rows(rows_to_columns(buffer, header), header) == expected


@pytest.mark.parametrize("count", [1, 3, 5, 1 << 20])
def test_batch_with_a_wrong_record_count_is_corrupt(count: int) -> None:
    buffer = encode_rows([Row(i, i, b"key", b"value") for i in range(4)])
    fields = batch.read_header(buffer)._replace(record_count=count)
    fmt.HEADER.pack_into(buffer, 0, *fields)
    with pytest.raises(CorruptMessageError):
        rows_to_columns(buffer, batch.read_header(buffer))


def test_unknown_codec_is_refused() -> None:
    buffer = encode_rows([Row(0, 0, None, b"v")])
    fmt.HEADER.pack_into(buffer, 0, *batch.read_header(buffer)._replace(attributes=6))
    with pytest.raises(UnsupportedCompressionTypeError):
        rows_to_columns(buffer, batch.read_header(buffer))


def in_a_log(
    groups: list[list[Row]], codecs: list[int], gaps: list[int]
) -> list[tuple[bytearray, batch.BatchHeader]]:
    """Return row batches as a log stores them, with ``gaps[i]`` missing offsets after batch i."""
    found, base = [], 1 << 40
    for rows, codec, gap in zip(groups, codecs, gaps):
        moved = [row._replace(offset=row.offset - rows[0].offset + base) for row in rows]
        buffer = encode_rows(moved, leader_epoch=3, codec=codec)
        header = batch.read_header(buffer)
        header = header._replace(last_offset_delta=header.last_offset_delta + gap)
        found.append((buffer, header))
        base = header.next_offset
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ROWS, min_size=1, max_size=6),
    st.lists(st.sampled_from(CODECS), min_size=6, max_size=6),
    st.lists(st.sampled_from([0, 0, 3]), min_size=6, max_size=6),
)
def test_concatenated_kafka_batches_have_all_rows(
    raw: list[list[tuple]], codecs: list[int], gaps: list[int]
) -> None:
    groups = []
    for rows in raw:
        offsets = [sum(row[0] for row in rows[: n + 1]) for n in range(len(rows))]
        groups.append([Row(at, *row[1:]) for at, row in zip(offsets, rows)])
    batches = in_a_log(groups, codecs, gaps)
    columns, header, count = join_rows(batches)
    assert count == len(batches)
    assert (header.base_offset, header.next_offset) == (1 << 40, batches[-1][1].next_offset)
    apart = [as_rows(rows_to_columns(*each), each[1]) for each in batches]
    assert as_rows(columns, header) == [row for rows in apart for row in rows]
    assert header.record_count == columns.row_count == sum(map(len, groups))


def test_kafka_batches_are_concatenated_up_to_the_byte_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Row(0, 5, None, b"x" * 100)]
    batches = in_a_log([rows] * 5, [0] * 5, [0] * 5)
    monkeypatch.setattr(transcode, "JOINED_BYTES", 250)
    assert [join_rows(batches[n:])[2] for n in range(5)] == [2, 2, 2, 2, 1]
    monkeypatch.setattr(transcode, "JOINED_BYTES", 1)
    assert join_rows(batches)[2] == 1


@pytest.mark.parametrize(
    "lies",
    [
        {"record_count": 1},
        {"record_count": 3},
        {"last_offset_delta": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_wrong_record_count_in_any_of_several_concatenated_kafka_batches_is_corrupt(
    which: int, lies: dict[str, int]
) -> None:
    """A surplus of records in one batch must not make up for a missing record in the next batch."""
    rows = [Row(0, 5, b"k", b"v"), Row(1, 6, None, b"w")]
    batches = in_a_log([rows] * 3, [0] * 3, [0] * 3)
    buffer, header = batches[which]
    batches[which] = buffer, header._replace(**lies)
    with pytest.raises(CorruptMessageError):
        join_rows(batches)
    if "record_count" in lies:
        other = (which + 1) % 3
        buffer, header = batches[other]
        batches[other] = buffer, header._replace(record_count=4 - lies["record_count"])
        with pytest.raises(CorruptMessageError):
            join_rows(batches)
