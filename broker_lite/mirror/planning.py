"""Decide what a mirror changes on the target: topics, settings and group offsets.

A topic keeps its name and number of partitions. The mirror copies settings of retention and size
that both clusters know. It does not copy settings of durability and timestamps. It writes a group's
offset only if the target has no offset, or one that a mirror wrote. So a group whose consumers have
moved to the target keeps its offsets. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker_lite.client.administration.admin import ConfigEntry
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.config import TopicConfig, parse, text
from broker_lite.errors import InvalidConfigError
from broker_lite.mirror.offset_map import OffsetMap
from broker_lite.model import MIRROR_PREFIX, NULL_TOPIC_ID, CommittedOffset, TopicPartition

EFFECTIVE = ("retention.ms", "retention.bytes", "max.message.bytes")
"""Settings that a mirror copies even if the topic has them from its brokers' defaults."""
OWN = (
    "cleanup.policy",
    "flush.messages",
    "flush.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
"""Settings that a mirror never copies. Durability is the target's choice, and copied records keep
their timestamps."""
NAMED_MAX = 20
"""Maximum number of topics in the error for a pattern that matches no topic."""
_MARK = "mirrored from "
"""The beginning of the metadata of an offset that a mirror wrote."""


def chosen_topics(view: ClusterView, pattern: str) -> list[str]:
    """Return the source's topics whose whole name matches the pattern, without internal topics."""
    return sorted(
        name
        for name, topic in view.topics.items()
        if topic.error is None
        and re.fullmatch(pattern, name)
        and not name.startswith(("__", MIRROR_PREFIX))
    )


def absent(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the topics that ``pattern`` names and that are not among ``names``. Only a plain list
    (``a|b``) names topics."""
    named = pattern.split("|")
    if not all(re.fullmatch(r"[a-zA-Z0-9._-]+", each) for each in named):
        return []
    return [each for each in named if not any(re.fullmatch(each, name) for name in names)]


def nothing_matches(pattern: str, servers: str, names: Sequence[str]) -> str:
    """Return the error's text for a pattern that matches no topic. ``names`` are the existing
    topics."""
    there = ", ".join(names[:NAMED_MAX]) or "none"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    hint = "; it is a pattern: a|b for two topics" if "," in pattern else ""
    return f"--topics {pattern!r} matches no topic at {servers} (there: {there}{more}){hint}"


class WantedSettings(NamedTuple):
    """The settings for a topic's copy, the settings that the target does not know, and warnings for
    the log."""

    values: dict[str, str]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def wanted_settings(entries: Mapping[str, ConfigEntry]) -> WantedSettings:
    """Return the settings that the copy of a topic should have."""
    defaults = text(TopicConfig())
    values: dict[str, str] = {}
    unknown: list[str] = []
    notes: list[str] = []
    for name, entry in sorted(entries.items()):
        if entry.value is None or (entry.source != "topic" and name not in EFFECTIVE):
            continue
        if name == "cleanup.policy" and "compact" in entry.value:
            notes.append("compacted at the source; the copy keeps every record for ever")
        elif name in OWN:
            if entry.value != defaults[name]:
                notes.append(f"{name}={entry.value} is not copied: the target keeps its own value")
        elif name not in defaults or not _is_taken(name, entry.value):
            unknown.append(f"{name}={entry.value}")
        else:
            values[name] = entry.value
    policy = entries.get("cleanup.policy")
    if policy is not None and "compact" in (policy.value or ""):
        values |= {"retention.ms": "-1", "retention.bytes": "-1"}
    largest = "max.message.bytes"
    if largest in values:
        values[largest] = str(max(int(values[largest]), int(defaults[largest])))
    return WantedSettings(values, tuple(unknown), tuple(notes))


def _is_taken(name: str, value: str) -> bool:
    try:
        parse(TopicConfig, {name: value})
    except InvalidConfigError:
        return False
    return True


def settings_to_create(settings: WantedSettings) -> dict[str, str]:
    """Return the settings with which to create a copy: those that differ from the defaults."""
    defaults = text(TopicConfig())
    return {name: value for name, value in settings.values.items() if value != defaults[name]}


def settings_to_alter(
    settings: WantedSettings, current: Mapping[str, ConfigEntry], given: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the settings to change at the copy. None removes a setting that the source no longer
    has. This applies only if the copy still has the value that the mirror set (``given``)."""
    changes: dict[str, str | None] = {
        name: value
        for name, value in settings.values.items()
        if name in current and current[name].value != value
    }
    for name, value in given.items():
        entry = current.get(name)
        is_ours = entry is not None and (entry.source, entry.value) == ("topic", value)
        if is_ours and name not in settings.values:
            changes[name] = None
    return changes


def describe_changes(changes: Mapping[str, str | None]) -> str:
    """Format changed settings for a log line."""
    return ", ".join(
        f"{name} removed" if value is None else f"{name}={value}" for name, value in changes.items()
    )


def refusal(topic: str, current: Mapping[str, ConfigEntry]) -> InvalidConfigError | None:
    """Return an error if the target's topic has LogAppendTime. Otherwise return None.

    A copy must keep the source's timestamps, because after a kill they identify the records that
    are already copied.
    """
    entry = current.get("message.timestamp.type")
    if entry is None or entry.value != "LogAppendTime":
        return None
    return InvalidConfigError(
        "the target's topic has message.timestamp.type=LogAppendTime, so records would lose their "
        "times and be copied twice after a crash; on the target: logbus topic alter "
        f"{topic} -c message.timestamp.type=CreateTime"
    )


class GroupRow(NamedTuple):
    """A group's offset in one partition, at the source and at the target.

    ``state`` is ``write`` (to be written), ``same`` (already written), ``behind`` (the copy has not
    reached this offset), ``own`` (the target's group has its own progress, which stays) or
    ``refused: …`` (the target's error).
    """

    group: str
    tp: TopicPartition
    source_offset: int
    target_offset: int | None
    state: str


def mark(name: str, source_offset: int) -> str:
    """Return the metadata for an offset that a mirror writes."""
    return f"{_MARK}{name.removeprefix(MIRROR_PREFIX)} offset {source_offset}"


def plan_group(
    group: str,
    at_source: Mapping[TopicPartition, CommittedOffset],
    at_target: Mapping[TopicPartition, CommittedOffset],
    *,
    maps: Mapping[TopicPartition, OffsetMap],
    source_ids: Mapping[str, str],
    target_ids: Mapping[str, str],
) -> list[GroupRow]:
    """Return the row of each partition of a group, without partitions that are not copied and
    without offsets of deleted topics."""
    rows = []
    for tp, commit in sorted(at_source.items()):
        known = maps.get(tp)
        if known is None or commit.offset < 0:
            continue
        if commit.topic_id not in (NULL_TOPIC_ID, source_ids.get(tp.topic)):
            continue
        offset = known.translate(commit.offset)
        there = at_target.get(tp)
        if there is not None and there.topic_id != target_ids.get(tp.topic):
            there = None
        state = "write"
        if there is not None and not there.metadata.startswith(_MARK):
            state, offset = "own", there.offset
        elif offset is None:
            state = "behind"
        elif there is not None and there.offset == offset:
            state = "same"
        rows.append(GroupRow(group, tp, commit.offset, offset, state))
    return rows


def translate_offsets(
    offsets: Mapping[str, Mapping[str, int]], maps: Mapping[TopicPartition, OffsetMap]
) -> dict[str, dict[str, int]]:
    """Translate source offsets in Spark's form, ``{"topic": {"0": 42}}``, to the target's offsets.
    Raises InvalidConfigError for an offset that is not copied yet."""
    translated: dict[str, dict[str, int]] = {}
    for topic, rows in offsets.items():
        for partition, offset in rows.items():
            tp = TopicPartition(topic, int(partition))
            known = maps.get(tp)
            moved = offset if offset < 0 else None if known is None else known.translate(offset)
            if moved is None:
                so_far = "no record" if known is None else f"records before {known.source_next}"
                raise InvalidConfigError(
                    f"{tp}: offset {offset} is not copied yet; the copy has {so_far}. Run logbus "
                    "mirror until it has the offset"
                )
            translated.setdefault(topic, {})[partition] = moved
    return translated
