"""Decide what a mirror writes to the target cluster: topics, settings and group offsets. No I/O.

A copied topic has the same name and number of partitions as at the source. The mirror copies its
settings about retention and size if both clusters know them, but not those about durability and
timestamps. The mirror writes a group's offset of a partition only if the group has none at the
target, or one that a mirror wrote. A group whose consumers have moved to the target thus keeps its
own progress."""

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
"""Settings that a mirror copies even if the topic does not set them at the source: it then copies
the default of the source's brokers."""
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
"""Settings that a mirror never copies: those of cleanup and durability, which the target decides,
and those of timestamps, because copied records keep theirs."""
NAMED_MAX = 20
"""Maximum number of existing topics that the error for a pattern without a match lists."""
_MARK = "mirrored from "
"""The beginning of the metadata of each committed offset that a mirror wrote."""


def chosen_topics(view: ClusterView, pattern: str) -> list[str]:
    """Return the names of the source's topics to copy: those whose whole name matches ``pattern``,
    without internal topics."""
    return sorted(
        name
        for name, topic in view.topics.items()
        if topic.error is None
        and re.fullmatch(pattern, name)
        and not name.startswith(("__", MIRROR_PREFIX))
    )


def absent(pattern: str, names: Sequence[str]) -> list[str]:
    """If ``pattern`` is a plain list of topics (``a|b``), return those that are not in ``names``.
    Return an empty list for other patterns."""
    named = pattern.split("|")
    if not all(re.fullmatch(r"[a-zA-Z0-9._-]+", each) for each in named):
        return []
    return [each for each in named if not any(re.fullmatch(each, name) for name in names)]


def nothing_matches(pattern: str, servers: str, names: Sequence[str]) -> str:
    """Return the error message for a pattern that matches no topic. ``names`` are the topics that
    exist at the source."""
    there = ", ".join(names[:NAMED_MAX]) or "none"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    hint = "; --topics is a pattern, so give a|b for two topics" if "," in pattern else ""
    return f"--topics {pattern!r} matches no topic at {servers} (there: {there}{more}){hint}"


class WantedSettings(NamedTuple):
    """The settings that the copy of a topic should have (``values``). ``unknown`` has settings of
    the source that the target does not know, and ``notes`` has warnings, which the mirror logs."""

    values: dict[str, str]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def wanted_settings(entries: Mapping[str, ConfigEntry]) -> WantedSettings:
    """Return the settings that the copy of a topic should have. ``entries`` are the topic's
    settings at the source."""
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
    """Return the settings with which to create the copy of a topic: those that differ from the
    target's defaults."""
    defaults = text(TopicConfig())
    return {name: value for name, value in settings.values.items() if value != defaults[name]}


def settings_to_alter(
    settings: WantedSettings, current: Mapping[str, ConfigEntry], given: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the settings to change at an existing copy, which has the settings ``current``.

    ``given`` has the settings that the mirror set at the copy before. A setting that the source no
    longer has is removed from the copy (None), unless another client has changed its value."""
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
    """Return a text about changed settings for a log line."""
    return ", ".join(
        f"{name} removed" if value is None else f"{name}={value}" for name, value in changes.items()
    )


def refusal(topic: str, current: Mapping[str, ConfigEntry]) -> InvalidConfigError | None:
    """Return an error if a topic, with the settings ``current`` at the target, cannot be copied
    because it has LogAppendTime there; else None.

    The copies must keep the source's timestamps. After a mirror was killed, the next one needs the
    timestamps to recognise the records that are already copied."""
    entry = current.get("message.timestamp.type")
    if entry is None or entry.value != "LogAppendTime":
        return None
    return InvalidConfigError(
        "the target's topic has message.timestamp.type=LogAppendTime, so records would lose their "
        "times and be copied twice after a crash; on the target: logbus topic alter "
        f"{topic} -c message.timestamp.type=CreateTime"
    )


class GroupRow(NamedTuple):
    """A group's committed offset in one partition, at the source and at the target, and what the
    mirror does with it.

    ``state`` is

    - ``write``: the mirror must write the offset to the target;
    - ``same``: the target has the offset already;
    - ``behind``: the partition is not copied up to this offset yet;
    - ``own``: another client committed an offset at the target, which the mirror keeps;
    - ``refused: …``: the target refused the offset, with this error."""

    group: str
    tp: TopicPartition
    source_offset: int
    target_offset: int | None
    state: str


def mark(name: str, source_offset: int) -> str:
    """Return the metadata of a committed offset that the mirror ``name`` writes: it says that a
    mirror wrote the offset, and contains the group's offset at the source."""
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
    """Decide for each committed offset of a group at the source what the mirror does with it.

    ``maps`` has the offset map of each copied partition. The result leaves out partitions that are
    not copied, and offsets of a deleted topic with the same name."""
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
    """Translate offsets at the source to offsets of the copy, in the form of Spark's option
    startingOffsets: ``{"topic": {"0": 42}}``.

    Raises InvalidConfigError for an offset if the records before it are not all copied yet."""
    translated: dict[str, dict[str, int]] = {}
    for topic, rows in offsets.items():
        for partition, offset in rows.items():
            tp = TopicPartition(topic, int(partition))
            known = maps.get(tp)
            moved = offset if offset < 0 else None if known is None else known.translate(offset)
            if moved is None:
                so_far = "no record" if known is None else f"records before {known.source_next}"
                raise InvalidConfigError(
                    f"{tp}: offset {offset} is not copied yet; the target has {so_far}. Run "
                    "logbus mirror until it has copied the offset"
                )
            translated.setdefault(topic, {})[partition] = moved
    return translated
