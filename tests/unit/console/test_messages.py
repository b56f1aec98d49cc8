"""Tests of the records on the console's pages: filters, shown values and order."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from broker_lite.console.messages import values
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.ranges_reader import (
    BYTES_MAX,
    RECORDS_MAX,
    SECONDS_MAX,
    SearchBudget,
)
from broker_lite.console.messages.rows import shown_rows
from broker_lite.console.messages.search import HITS_MAX, _newest_of, as_text
from broker_lite.console.messages.tail import positions_of
from broker_lite.model import TopicPartition
from broker_lite.record.envelope import envelope

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "offset": pa.array([0, 1, 2, 3]),
            "key": pa.array([b"a", None, b"ab", b"a"], pa.binary()),
            "value": pa.array([b"Grace paid", b"\xff\xfegrace", None, b"a.b"], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}],
                    None,
                    [],
                    [{"key": "other", "value": b"1"}, {"key": "trace", "value": b"2"}],
                ],
                HEADERS,
            ),
        }
    )


@pytest.mark.parametrize(
    ("filters", "offsets"),
    [
        (RecordFilters(), [0, 1, 2, 3]),
        (RecordFilters(key="a"), [0, 3]),
        (RecordFilters(text="GRACE"), [0, 1]),
        (RecordFilters(text=".*"), []),
        (RecordFilters(header="trace"), [0, 3]),
        (RecordFilters(header="trace=2"), [3]),
        (RecordFilters(key="a", header="other=1"), [3]),
        (RecordFilters(key="nobody", header="trace"), []),
    ],
)
def test_message_filters_select_matching_rows(filters: RecordFilters, offsets: list[int]) -> None:
    assert filters.select(batch()).column("offset").to_pylist() == offsets


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, "null", "null"),
        (b"", "text", ""),
        ("grüße\n".encode(), "text", "grüße\n"),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"{broken", "text", "{broken"),
        (b"[" * 100_000, "text", "[" * values.CUT_BYTES),
        (b"\xff\x00", "binary", "000000  ff 00" + " " * 42 + "  .."),
        (b"bell\x07", "binary", "000000  62 65 6c 6c 07" + " " * 33 + "  bell."),
    ],
)
def test_record_values_are_shown_as_json_text_or_hexadecimal(
    value: bytes | None, form: str, text: str
) -> None:
    shown = values.shown(value)
    assert (shown.form, shown.text) == (form, text)
    assert shown.size_bytes == len(value or b"")


def test_long_record_value_is_cut_even_within_a_character() -> None:
    shown = values.shown("é".encode() * 8_000_000, 513)
    assert (shown.form, shown.text, shown.is_cut) == ("text", "é" * 256, True)
    assert values.shown(b"\xff" * 10_000, 512).form == "binary"


@pytest.mark.parametrize("depth", [100, 490, 980, 7900])
def test_json_that_indentation_would_enlarge_is_shown_as_text(depth: int) -> None:
    """Regression: indentation turned a value of 1,960 nested brackets into 1.92 MB."""
    value = b"[" * depth + b"]" * depth
    shown = values.shown(value)
    assert (shown.form, shown.text) == ("text", value.decode())


def test_short_json_is_indented() -> None:
    value = json.dumps({"rows": [[1, 2, {"deep": [[[1]]]}]] * 50}).encode()
    assert values.shown(value).form == "json"


@pytest.mark.parametrize("value", [b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'["\\udc00\\ud800"]'])
def test_json_with_half_a_surrogate_pair_is_shown_as_text(value: bytes) -> None:
    shown = values.shown(value)
    assert (shown.form, shown.text) == ("text", value.decode())


def test_json_with_a_surrogate_pair_is_indented() -> None:
    assert "\U0001f600" in values.shown(b'{"a":"\\ud83d\\ude00"}').text


@pytest.mark.parametrize("value", [b'{"a":"\\ud800"}', b"[" * 200_000])
def test_json_that_cannot_be_parsed_or_encoded_is_exported_as_text(value: bytes) -> None:
    row = {"topic": "t", "partition": 0, "offset": 1, "timestamp_ms": 2, "key": None}
    line = envelope({**row, "value": value}, "auto").encode()
    assert json.loads(line)["value"] == value.decode()


def test_record_values_are_cut_shorter_on_a_console_page_with_more_records() -> None:
    assert values.cut_for(1) == values.CUT_BYTES
    assert values.cut_for(100) * 100 <= values.PAGE_BYTES
    assert values.cut_for(10_000) == values.LEAST_BYTES


def test_console_limits_the_number_and_size_of_the_headers_that_it_shows() -> None:
    """Without the limits, the 100,000 headers of a 1 MB record would all be shown."""
    pairs = [{"key": "k" * 10_000, "value": b"\xff" * 10_000}] * 5000
    record = {"partition": 0, "offset": 1, "timestamp_ms": 2, "key": None, "value": b"v"}
    (row,) = shown_rows([{**record, "headers": pairs}], hides_payloads=False)
    assert (len(row["headers"]), row["headers_total"]) == (values.HEADERS_MAX, 5000)
    assert len(json.dumps(row)) < 8 * values.CUT_BYTES
    (row,) = shown_rows([{**record, "headers": pairs}], hides_payloads=True)
    assert (row["headers"], row["headers_total"]) == ([], 0)


def test_fields_of_json_objects_are_shown_as_columns() -> None:
    rows = [values.shown(text) for text in (b'{"a":1,"b":"x"}', b"text", b'{"b":null,"c":[1]}')]
    names = values.fields_of(rows)
    assert names == ["a", "b", "c"]
    assert [values.cells(row, names) for row in rows] == [
        ["1", "x", ""],
        ["", "", ""],
        ["", "null", "[1]"],
    ]


def row(partition: int, offset: int, timestamp_ms: int) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "offset": offset, "timestamp_ms": timestamp_ms}


def test_next_search_for_the_newest_records_repeats_no_record_of_the_previous_search() -> None:
    """A search shows ``HITS_MAX`` records. Here the highest offset has the oldest timestamp.

    Sorted by timestamp alone, this record would be left to the next search, which would then
    repeat the records with lower offsets.
    """
    rows = [row(0, offset, 1000 + offset) for offset in range(HITS_MAX)] + [row(0, HITS_MAX, 1)]
    rows += [row(1, offset, 5) for offset in range(3)]
    kept, ends = _newest_of(rows)
    assert [each["offset"] for each in kept] == list(range(HITS_MAX, 0, -1))
    assert ends == {TopicPartition("t", 0): 1, TopicPartition("t", 1): 3}


def test_event_id_of_the_live_tail_encodes_a_position_for_each_partition() -> None:
    tps = [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert positions_of("0.12-1.0-7.3", tps) == {tps[0]: 12, tps[1]: 0}
    for text in ("", "0", "0.x", "x.1", "-1.5", "0." + "9" * 30, "٣.1"):
        assert positions_of(text, tps[:1]) == {}
    assert as_text({tps[1]: (5, 9), tps[0]: (0, 2)}) == "0.0.2-1.5.9"


def test_search_stops_at_its_limits_of_records_bytes_and_seconds() -> None:
    now_s = 0.0

    def budget() -> SearchBudget:
        return SearchBudget(lambda: now_s)

    row = pa.RecordBatch.from_arrays([pa.array([b"x" * 1024], pa.binary())], ["value"])
    by_records, by_bytes, by_time = budget(), budget(), budget()
    by_records.records = RECORDS_MAX - 1
    by_bytes.size_bytes = BYTES_MAX - row.nbytes - 1
    assert by_records.spent is by_bytes.spent is by_time.spent is None
    by_records.count(row)
    by_bytes.count(row)
    assert (by_records.spent, by_bytes.spent) == ("records", None)
    by_bytes.count(row)
    assert by_bytes.spent == "bytes"
    now_s = SECONDS_MAX
    assert by_time.spent == "seconds"
