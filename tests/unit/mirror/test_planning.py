"""Tests of how a mirror chooses the topics, topic settings and group offsets that it copies."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.admin import ConfigEntry
from broker_lite.client.operations.cluster import ClusterView, TopicMetadata
from broker_lite.config import TopicConfig, parse
from broker_lite.errors import InvalidConfigError
from broker_lite.mirror import planning
from broker_lite.mirror.offset_map import OffsetMap
from broker_lite.model import CommittedOffset, TopicPartition

WHERE = TopicPartition("t", 0)
IDS = {"t": "target"}


def entries(**values: tuple[str | None, str]) -> dict[str, ConfigEntry]:
    return {
        name.replace("_", "."): ConfigEntry(
            name.replace("_", "."), value, source == "default", False, source, ""
        )
        for name, (value, source) in values.items()
    }


def test_mirror_never_selects_internal_topics() -> None:
    names = ("a", "ab", "__consumer_offsets", "logbus-mirror-x", "b")
    view = ClusterView(topics={name: TopicMetadata(name) for name in names})
    assert planning.chosen_topics(view, ".*") == ["a", "ab", "b"]
    assert planning.chosen_topics(view, "a") == ["a"]


def test_mirror_reports_a_requested_topic_that_the_source_cluster_lacks() -> None:
    assert planning.absent("events|orders", ["events"]) == ["orders"]
    assert planning.absent("a.b", ["a.b"]) == []
    assert planning.absent("(a|b)c", []) == planning.absent(".*", []) == []
    told = planning.nothing_matches("a,b", "far:9092", ["a", "b"])
    assert told == (
        "--topics 'a,b' matches no topic at far:9092 (there: a, b); "
        "--topics is a pattern, so give a|b for two topics"
    )


def test_topic_settings_of_kafka_that_logbus_supports_are_copied_and_others_are_reported() -> None:
    wanted = planning.wanted_settings(
        entries(
            retention_ms=("3600000", "topic"),
            retention_bytes=("-1", "default"),
            max_message_bytes=("1048588", "default"),
            segment_ms=("604800000", "broker"),
            preallocate=("true", "topic"),
            compression_type=("producer", "default"),
            message_timestamp_type=("LogAppendTime", "topic"),
            index_interval_bytes=("many", "topic"),
        )
    )
    assert planning.settings_to_create(wanted) == {"retention.ms": "3600000"}
    assert wanted.unknown == ("index.interval.bytes=many", "preallocate=true")
    assert wanted.notes == (
        "message.timestamp.type=LogAppendTime is not copied: the target keeps its own value",
    )


def test_copy_of_a_compacted_topic_has_unlimited_retention() -> None:
    wanted = planning.wanted_settings(
        entries(cleanup_policy=("compact,delete", "topic"), retention_ms=("1000", "topic"))
    )
    assert planning.settings_to_create(wanted) == {"retention.ms": "-1"}
    assert "keeps every record" in wanted.notes[0]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("1048588", {"segment.bytes": "1048576"}),
        ("10000000", {"segment.bytes": "1048576", "max.message.bytes": "10000000"}),
    ],
)
def test_mirror_gives_a_copied_topic_at_least_the_default_max_message_bytes(
    message: str, expected: dict[str, str]
) -> None:
    wanted = planning.wanted_settings(
        entries(segment_bytes=("1048576", "topic"), max_message_bytes=(message, "default"))
    )
    assert planning.settings_to_create(wanted) == expected
    parse(TopicConfig, wanted.values)


def test_topic_setting_that_logbus_supports_only_with_its_default_value_is_not_copied() -> None:
    wanted = planning.wanted_settings(
        entries(
            compression_type=("zstd", "topic"),
            preallocate=("false", "topic"),
            delete_retention_ms=("86400000", "topic"),
        )
    )
    assert wanted.unknown == ("compression.type=zstd",)
    assert planning.settings_to_create(wanted) == {}


def test_mirror_alters_only_changed_settings() -> None:
    wanted = planning.wanted_settings(
        entries(retention_ms=("5", "topic"), segment_ms=("7", "topic"))
    )
    now = entries(retention_ms=("6", "default"), segment_ms=("7", "topic"))
    assert planning.settings_to_alter(wanted, now, {}) == {"retention.ms": "5"}


def test_mirror_removes_only_settings_that_it_copied_and_the_source_removed() -> None:
    given = {
        "retention.ms": "5",
        "segment.ms": "7",
        "index.interval.bytes": "9",
        "file.delete.delay.ms": "1",
        "flush.ms": "3",
    }
    wanted = planning.wanted_settings(entries(retention_ms=("5", "topic")))
    now = entries(
        retention_ms=("5", "topic"),
        segment_ms=("7", "topic"),
        # The mirror set 9; then an administrator set 10 on the target.
        index_interval_bytes=("10", "topic"),
        flush_ms=("3", "default"),
        # An administrator set this on the target; the mirror never did.
        segment_bytes=("1048576", "topic"),
    )
    changes = planning.settings_to_alter(wanted, now, given)
    assert changes == {"segment.ms": None}
    assert (
        planning.describe_changes(changes | {"retention.ms": "5"})
        == "segment.ms removed, retention.ms=5"
    )


def plan(source: CommittedOffset, target: CommittedOffset | None) -> list[planning.GroupRow]:
    known = OffsetMap((), 0, 0)
    known.add(100, 0, 50)
    there = {} if target is None else {WHERE: target}
    maps = {WHERE: known}
    return planning.plan_group(
        "g", {WHERE: source}, there, maps=maps, source_ids={"t": "s"}, target_ids=IDS
    )


def test_mirror_does_not_overwrite_offsets_that_a_group_committed_at_the_target() -> None:
    name = "logbus-mirror-x"
    marked = planning.mark(name, 110)
    states = {
        "none there": plan(CommittedOffset(120), None),
        "ours there": plan(CommittedOffset(120), CommittedOffset(10, -1, marked, "target")),
        "a rewind": plan(CommittedOffset(105), CommittedOffset(10, -1, marked, "target")),
        "an older topic's": plan(CommittedOffset(120), CommittedOffset(7, -1, "", "older")),
        "the same": plan(CommittedOffset(120), CommittedOffset(20, -1, marked, "target")),
        "its own": plan(CommittedOffset(120), CommittedOffset(33, -1, "", "target")),
        "not copied yet": plan(CommittedOffset(151), None),
    }
    assert {what: (rows[0].target_offset, rows[0].state) for what, rows in states.items()} == {
        "none there": (20, "write"),
        "ours there": (20, "write"),
        "a rewind": (5, "write"),
        "an older topic's": (20, "write"),
        "the same": (20, "same"),
        "its own": (33, "own"),
        "not copied yet": (None, "behind"),
    }
    assert plan(CommittedOffset(1, topic_id="deleted"), None) == []


def test_offsets_in_sparks_json_are_translated() -> None:
    known = OffsetMap((), 0, 0)
    known.add(100, 0, 50)
    maps = {WHERE: known}
    assert planning.translate_offsets({"t": {"0": 120}}, maps) == {"t": {"0": 20}}
    assert planning.translate_offsets({"t": {"0": -2}}, maps) == {"t": {"0": -2}}
    for wrong in ({"t": {"0": 151}}, {"u": {"0": 1}}):
        with pytest.raises(InvalidConfigError, match="is not copied"):
            planning.translate_offsets(wrong, maps)
