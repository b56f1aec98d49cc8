"""What a consumer is asked to read, and of which kind of group it is a member, for both faces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.client.callbacks import Callbacks
from broker_lite.client.options import check_pattern, only_of_members
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TopicPartition


class Reading(NamedTuple):
    """What a consumer was asked to read: topics, or chosen ``partitions`` (of the one topic, where
    they are numbers), or all topics that ``pattern`` matches; alone or as one of a ``group``."""

    topics: list[str]
    partitions: list[TopicPartition | int] | None
    pattern: str | None
    group: str | None


def reading(
    topics: Sequence[str | TopicPartition | Iterable[str]],
    partitions: Iterable[TopicPartition | int] | None,
    pattern: str | None,
    group: str | None,
) -> Reading:
    """As users say it: names, partitions and rows of names may stand side by side."""
    names: list[str] = []
    chosen: list[TopicPartition | int] = [] if partitions is None else list(partitions)
    for each in topics:
        if isinstance(each, TopicPartition):
            chosen.append(each)
        elif isinstance(each, str):
            names.append(each)
        else:
            names.extend(each)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfigError(f"topics are names: {names!r}")
    return Reading(names, chosen if chosen or partitions is not None else None, pattern, group)


def membership(
    coordination: str, asked: Reading, options: Mapping[str, Any], callbacks: Callbacks
) -> str:
    """Of which kind of group a consumer is a member: "kafka", "zookeeper", or "" of none. Raises
    InvalidConfigError for what does not go together."""
    names, chosen, pattern, group = asked
    if coordination not in ("kafka", "zookeeper"):
        raise InvalidConfigError(f"coordination={coordination!r}: give kafka or zookeeper")
    if coordination == "zookeeper":
        if chosen is not None:
            raise InvalidConfigError("partitions are chosen without a group's coordination")
        return coordination
    if "zookeeper" in options:
        raise InvalidConfigError("zookeeper goes with coordination='zookeeper'")
    if group is not None and chosen is None:
        if bool(names) == (pattern is not None):
            raise InvalidConfigError(
                f"topics={list(names)!r} and pattern={pattern!r}: give topics, or a pattern"
            )
        if pattern is not None:
            check_pattern(pattern)
        return coordination
    of_members = [*only_of_members(options), *(["pattern"] if pattern is not None else [])]
    of_members += [name for name, row in callbacks._asdict().items() if row is not None]
    if of_members:
        cure = "leave it out" if chosen is not None else "give group='…'"
        raise InvalidConfigError(f"{of_members[0]} is for members of a group, who share: {cure}")
    return ""
