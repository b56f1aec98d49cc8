"""Tests of source offsets in JSON, as checkpoints and options contain them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import InvalidConfigError, UnsupportedVersionError
from broker_lite.model import OffsetAndEpoch, TopicPartition
from pyspark_logbus import offsets
from pyspark_logbus.offsets import SourceOffset, TopicOffsets


def test_offset_json_is_independent_of_topic_order():
    def build(names, numbers):
        return SourceOffset(
            "cl",
            {
                name: TopicOffsets("id", {p: OffsetAndEpoch(p * 7, 3) for p in numbers})
                for name in names
            },
        )

    one = json.dumps(build(["b", "a"], [10, 9, 0]).to_json())
    other = json.dumps(build(["a", "b"], [0, 9, 10]).to_json())
    assert one == other
    assert one.index('"9"') < one.index('"10"')
    # Spark's runner parses the JSON and writes it again, which must not change the text.
    assert json.dumps(json.loads(one)) == one


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.dictionaries(
            st.integers(0, 200),
            st.builds(OffsetAndEpoch, st.integers(0, 1 << 62), st.integers(-1, 99)),
            max_size=5,
        ),
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
)
def test_offset_json_round_trips(topics, first, mixed):
    ends = {n: TopicOffsets(f"id{n}", t) for n, t in topics.items()}
    at = SourceOffset("cl", ends, ends if first else None, has_transactions=mixed)
    assert offsets.from_json(json.loads(json.dumps(at.to_json()))) == at


def test_offset_json_of_version_1_is_readable():
    text = (
        '{"version": 1, "cluster": "cl", "topics": {"t": {"id": "x", '
        '"offsets": {"0": 5}, "epochs": {"0": 2}}}}'
    )
    at = offsets.from_json(json.loads(text))
    assert at == SourceOffset("cl", {"t": TopicOffsets("x", {0: OffsetAndEpoch(5, 2)})})
    assert json.dumps(at.to_json()) == text


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"version": 2, "cluster": "c", "topics": {}}, "version 2"),
        ({"t": {"0": 5}}, "did not write"),
        (7, "did not write"),
        ({"version": 1, "cluster": "c", "topics": {"t": {}}}, "damaged"),
        ({"version": 1, "topics": {}}, "damaged"),
    ],
)
def test_offset_json_of_another_source_or_a_newer_version_is_refused(document, said):
    with pytest.raises(UnsupportedVersionError, match=said) as raised:
        offsets.from_json(document)
    assert "[LOGBUS_UNSUPPORTED_VERSION]" in str(raised.value)


WORDS = ("earliest", "latest", "group")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", offsets.EARLIEST_EVERYWHERE),
        (" LATEST ", offsets.LATEST_EVERYWHERE),
        ("group", offsets.GROUP),
        ('{"t":{"0":23,"1":-2}}', offsets.PerPartition({"t": {"0": 23, "1": -2}})),
        ('{"t":"earliest"}', offsets.PerPartition({"t": {"*": -2}})),
        ('{"t":{"*":"latest","0":4}}', offsets.PerPartition({"t": {"*": -1, "0": 4}})),
    ],
)
def test_offset_option_json_is_parsed(text, expected):
    assert offsets.parse_offsets("startingOffsets", text, words=WORDS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ealiest",
        "{",
        "[1]",
        '{"t":{"a":1}}',
        '{"t":{"0":1.5}}',
        '{"t":{"0":-3}}',
        '{"t":7}',
        '{"t":{"0":true}}',
        '{"t":{"0":9223372036854775808}}',
        '{"t":{"0":1,"0":2}}',
        '{"t":{"0":1},"t":{"1":2}}',
        '{"t":{"00":1}}',
        '{"t":{"0":1,"00":1}}',
        '{"t":{"٣":1}}',
        '{"t":{"4294967296":1}}',
        '{"t":' * 100_000,
    ],
)
def test_error_for_invalid_offsets_names_the_option(text):
    with pytest.raises(InvalidConfigError, match="startingOffsets"):
        offsets.parse_offsets("startingOffsets", text, words=WORDS)


def test_offsets_option_must_name_exactly_the_assigned_partitions():
    assigned = [TopicPartition("t", 0), TopicPartition("t", 1)]
    with pytest.raises(InvalidConfigError) as raised:
        offsets.expand("startingOffsets", {"t": {"0": 1, "2": 5}, "x": {"*": 1}}, assigned)
    message = str(raised.value)
    assert "you must specify all TopicPartitions" in message
    assert "not specified: t-1" in message
    assert "specified but not read: t-2, x-*" in message
    assert offsets.expand("startingOffsets", {"t": {"0": 1, "*": -2}}, assigned) == {
        assigned[0]: 1,
        assigned[1]: -2,
    }


@pytest.mark.parametrize(
    "text",
    [
        "t",
        "{",
        '{"t":0}',
        '{"t":["0"]}',
        '{"t":[-1]}',
        "{}",
        '{"t":[]}',
        '{"t":[0],"t":[1]}',
        '{"t":[4294967296]}',
    ],
)
def test_malformed_assign_option_is_refused(text):
    with pytest.raises(InvalidConfigError, match="assign"):
        offsets.parse_assignment("assign", text)


def test_partitions_of_the_assign_option_are_sorted_and_deduplicated():
    assert offsets.parse_assignment("assign", '{"u":[1],"t":[1,0,1]}') == (
        TopicPartition("t", 0),
        TopicPartition("t", 1),
        TopicPartition("u", 1),
    )
