"""Validate the arguments of ``Bus.consumer`` and ``AsyncBus.consumer``: topics, partitions, pattern
and group coordination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.client.callbacks import Callbacks
from broker_lite.client.options import check_pattern, only_of_members
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TopicPartition

NATIVE_SESSION_TIMEOUT_MS = 6000
"""Milliseconds without a heartbeat to ZooKeeper after which a native group's member has left, by
default."""


class Reading(NamedTuple):
    """The subscription of a consumer, alone or in a ``group``.

    The consumer reads all partitions of ``topics``, only the chosen ``partitions``, or all topics
    whose whole name matches the regular expression ``pattern``. A bare number in ``partitions`` is
    a partition of the only topic in ``topics``."""

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
    """Return the subscription that the arguments describe. ``topics`` may mix names, partitions and
    lists of names. Raises InvalidConfigError for a topic that is not text."""
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
        raise InvalidConfigError(f"topics={names!r}: give each topic's name as text")
    return Reading(names, chosen if chosen or partitions is not None else None, pattern, group)


def membership(
    coordination: str, subscription: Reading, options: Mapping[str, Any], callbacks: Callbacks
) -> str:
    """Return the kind of group coordination: "kafka" (by a broker), "zookeeper", or "" for a
    consumer that is not a member. Raises InvalidConfigError for options that exclude each other."""
    names, chosen, pattern, group = subscription
    if coordination not in ("kafka", "zookeeper"):
        raise InvalidConfigError(f"coordination={coordination!r}: give kafka or zookeeper")
    if coordination == "zookeeper":
        if chosen is not None:
            raise InvalidConfigError(
                "coordination='zookeeper': the group assigns the partitions; leave out partitions"
            )
        return coordination
    if "zookeeper" in options:
        raise InvalidConfigError(
            "zookeeper=… needs coordination='zookeeper'; give both or leave zookeeper out"
        )
    if group is not None and chosen is None:
        if bool(names) == (pattern is not None):
            raise InvalidConfigError(
                f"topics={list(names)!r} and pattern={pattern!r}: give either topics or a pattern"
            )
        if pattern is not None:
            check_pattern(pattern)
        return coordination
    of_members = [*only_of_members(options), *(["pattern"] if pattern is not None else [])]
    of_members += [name for name, row in callbacks._asdict().items() if row is not None]
    if of_members:
        cure = "leave it out" if chosen is not None else "give group='…'"
        raise InvalidConfigError(
            f"{of_members[0]} is for members of a group, which share partitions: {cure}"
        )
    return ""
