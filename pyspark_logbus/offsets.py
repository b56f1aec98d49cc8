"""Classes for the offsets in a user's options, and for the position in Spark's checkpoint.

``SourceOffset`` also has topic ids and leader epochs, which reveal a recreated topic or a truncated
log. Its JSON has one fixed order of keys. Spark compares offsets as text, so another order would
look like new data. The module runs on the driver and does no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker_lite.errors import InvalidConfigError, UnsupportedVersionError
from broker_lite.model import NO_EPOCH, OffsetAndEpoch, TopicPartition

EARLIEST = -2
LATEST = -1
"""The numbers that mean the log's start (-2) and the log's end (-1) in an option's JSON, as in
Spark's Kafka source."""
ALL_PARTITIONS = "*"
"""The key, in an option's JSON, that means all partitions of the topic without a key of their
own."""
FORMAT_VERSION = 1
"""The version of ``SourceOffset.to_json``, which every checkpoint holds."""
LONG_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class SymbolicOffset:
    """One word that gives the start or end of every partition: ``earliest``, ``latest`` or
    ``group`` (the group's committed offsets)."""

    word: str


@dataclass(frozen=True, slots=True)
class PerPartition:
    """Offsets by topic and partition number. The key ``*`` means the topic's other partitions.

    Offsets from a progress report also have the cluster id and the topic ids of the report.
    """

    topics: Mapping[str, Mapping[str, int]]
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PerPartitionTime:
    """Timestamps (ms) by topic and partition number, for an offset lookup by time."""

    topics: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class GlobalTime:
    """One timestamp (ms) for an offset lookup by time in every partition."""

    timestamp_ms: int


OffsetSpec = SymbolicOffset | PerPartition | PerPartitionTime | GlobalTime

EARLIEST_EVERYWHERE = SymbolicOffset("earliest")
LATEST_EVERYWHERE = SymbolicOffset("latest")
GROUP = SymbolicOffset("group")


class TopicOffsets(NamedTuple):
    """The next offset to read in each partition of one topic. ``topic_id`` distinguishes the topic
    from a recreated topic of the same name."""

    topic_id: str
    partitions: Mapping[int, OffsetAndEpoch]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A query's position: the next offset to read of each partition.

    ``begin`` exists only in the end of a query's first batch: the offsets at which that batch
    starts. Spark's checkpoint stores only the ends of batches, and a repeat of the first batch
    needs its start. ``query`` is a random text that all offsets of one checkpoint share. With
    ``has_transactions``, the batch that ends here may have offsets without rows, those of
    transaction markers and aborted records.
    """

    cluster_id: str
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    begin: Mapping[str, TopicOffsets] | None = None
    query: str = ""
    has_transactions: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document for Spark, with topics ordered by name and partitions by
        number."""
        document: dict[str, Any] = {"version": FORMAT_VERSION, "cluster": self.cluster_id}
        if self.query:
            document["query"] = self.query
        if self.begin is not None:
            document["begin"] = _topics_to_json(self.begin)
        if self.has_transactions:
            document["transactions"] = True
        document["topics"] = _topics_to_json(self.topics)
        return document

    def batch_start(self, before: SourceOffset) -> SourceOffset:
        """Return the start of the batch that ends here: ``begin`` for a query's first batch, else
        ``before``, the end of the batch before."""
        return before if self.begin is None else SourceOffset(self.cluster_id, self.begin)

    def partitions(self) -> dict[TopicPartition, OffsetAndEpoch]:
        return {
            TopicPartition(name, number): end
            for name, topic in self.topics.items()
            for number, end in topic.partitions.items()
        }


def from_json(document: Any) -> SourceOffset:
    """Decode an offset of a checkpoint. Raises UnsupportedVersionError for an offset of another
    version or of another source, and for a damaged one."""
    if not isinstance(document, dict) or "version" not in document:
        raise UnsupportedVersionError(
            "the checkpoint holds an offset that logbus did not write: "
            f"{json.dumps(document)[:200]}; convert the checkpoint of a Kafka query with: logbus "
            "checkpoint OLD NEW; or use a new checkpointLocation"
        )
    version = document["version"]
    if version != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"the checkpoint holds a logbus offset of version {version!r}; this logbus reads "
            f"version {FORMAT_VERSION}: upgrade it, or use a new checkpointLocation"
        )
    try:
        begin = document.get("begin")
        return SourceOffset(
            document["cluster"],
            _topics_from_json(document["topics"]),
            None if begin is None else _topics_from_json(begin),
            str(document.get("query", "")),
            bool(document.get("transactions", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedVersionError(
            f"the checkpoint's logbus offset is damaged ({error!r}): "
            f"{json.dumps(document)[:200]}; restore the checkpoint from a copy, or use a new "
            "checkpointLocation"
        ) from error


def _topics_to_json(topics: Mapping[str, TopicOffsets]) -> dict[str, Any]:
    document = {}
    for name in sorted(topics):
        topic = topics[name]
        numbers = sorted(topic.partitions)
        document[name] = {
            "id": topic.topic_id,
            "offsets": {str(p): topic.partitions[p].offset for p in numbers},
            "epochs": {str(p): topic.partitions[p].leader_epoch for p in numbers},
        }
    return document


def _topics_from_json(document: Any) -> dict[str, TopicOffsets]:
    topics = {}
    for name, topic in document.items():
        epochs = topic["epochs"]
        topics[name] = TopicOffsets(
            topic["id"],
            {
                int(p): OffsetAndEpoch(int(offset), int(epochs.get(p, NO_EPOCH)))
                for p, offset in topic["offsets"].items()
            },
        )
    return topics


def parse_offsets(option: str, text: str, *, words: Iterable[str]) -> OffsetSpec:
    """Parse an option's value in one of three forms:

    - one of ``words``, such as ``earliest``;
    - JSON by topic and partition: ``{"t": {"0": 23, "*": -2}, "u": "earliest"}``;
    - an offset of Spark's progress report (``SourceOffset.to_json``).
    """
    word = text.strip().lower()
    allowed = tuple(words)
    if word in allowed:
        return SymbolicOffset(word)
    if not text.lstrip().startswith("{"):
        raise InvalidConfigError(
            f"{option}={text!r}: give {', '.join(allowed)}, or JSON such as "
            '{"topic":{"0":23,"1":-2}} (-2 earliest, -1 latest)'
        )
    document = _json_object(option, text)
    if isinstance(document.get("cluster"), str) and isinstance(document.get("topics"), dict):
        return _reported(option, document)
    topics: dict[str, Mapping[str, int]] = {}
    for topic, value in document.items():
        if isinstance(value, str) and value.strip().lower() in _WORDS:
            topics[topic] = {ALL_PARTITIONS: _WORDS[value.strip().lower()]}
        elif isinstance(value, dict):
            topics[topic] = {p: _offset(option, topic, p, o) for p, o in value.items()}
        else:
            raise InvalidConfigError(
                f"{option}: topic {topic!r} has {value!r}; give {{partition: offset}}, "
                '"earliest" or "latest"'
            )
    return PerPartition(topics)


def _reported(option: str, document: Mapping[str, Any]) -> PerPartition:
    """Return the offsets of a progress report, which the user gives as an option's value."""
    try:
        offset = from_json(document)
    except UnsupportedVersionError as error:
        raise InvalidConfigError(f"{option}: {error.message}") from error
    return PerPartition(
        {
            name: {str(number): at.offset for number, at in topic.partitions.items()}
            for name, topic in offset.topics.items()
        },
        offset.cluster_id,
        {name: topic.topic_id for name, topic in offset.topics.items()},
    )


def parse_timestamps(option: str, text: str) -> PerPartitionTime:
    """Parse JSON of timestamps in milliseconds: ``{"t": {"0": 1700000000000}}``."""
    topics: dict[str, Mapping[str, int]] = {}
    for topic, value in _json_object(option, text).items():
        if not isinstance(value, dict):
            raise InvalidConfigError(
                f"{option}: topic {topic!r} has {value!r}; give {{partition: timestamp ms}}"
            )
        row = {}
        for number, timestamp in value.items():
            _check_number(option, topic, number)
            if not _is_whole(timestamp, 0, LONG_MAX):
                raise InvalidConfigError(
                    f"{option}: {topic}-{number} has {timestamp!r}; "
                    "give milliseconds since the epoch"
                )
            row[number] = timestamp
        topics[topic] = row
    return PerPartitionTime(topics)


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse the option ``assign``, JSON of partitions: ``{"t": [0, 1]}``."""
    if not text.lstrip().startswith("{"):
        raise InvalidConfigError(f'{option}={text!r}: give JSON such as {{"topic":[0,1]}}')
    assignment = set()
    for topic, numbers in _json_object(option, text).items():
        if not isinstance(numbers, list) or not all(
            _is_whole(n, 0, PARTITION_MAX) for n in numbers
        ):
            raise InvalidConfigError(
                f"{option}: topic {topic!r} needs a list of partitions, not {numbers!r}"
            )
        assignment |= {TopicPartition(topic, n) for n in numbers}
    if not assignment:
        raise InvalidConfigError(
            f'{option}={text!r} names no partition; give JSON such as {{"topic":[0,1]}}'
        )
    return tuple(sorted(assignment))


def expand(
    option: str,
    topics: Mapping[str, Mapping[str, int]],
    assigned: Iterable[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the value that an option gives for each assigned partition. ``topics`` has the values
    by topic and partition number.

    Raises InvalidConfigError if the option gives no value for an assigned partition, or a value for
    another partition.
    """
    tps = sorted(assigned)
    values: dict[TopicPartition, int] = {}
    for partition in tps:
        row = topics.get(partition.topic, {})
        value = row.get(str(partition.partition), row.get(ALL_PARTITIONS))
        if value is not None:
            values[partition] = value
    known = set(tps)
    extra = [
        f"{topic}-{number}"
        for topic, row in sorted(topics.items())
        for number in sorted(row)
        if number != ALL_PARTITIONS and TopicPartition(topic, int(number)) not in known
    ]
    names = {partition.topic for partition in tps}
    extra += [
        f"{topic}-*"
        for topic, row in sorted(topics.items())
        if topic not in names and not any(n != ALL_PARTITIONS for n in row)
    ]
    missing = [str(partition) for partition in tps if partition not in values]
    if missing or extra:
        said = [f"not specified: {', '.join(missing)}"] if missing else []
        said += [f"specified but not read: {', '.join(extra)}"] if extra else []
        raise InvalidConfigError(
            f"if {option} contains specific values, you must specify all TopicPartitions. Use -1 "
            f'for latest, -2 for earliest, or a topic\'s "*" for its other partitions; '
            f"{'; '.join(said)}; assigned: {', '.join(map(str, tps)) or 'none'}"
        )
    return values


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"{option}: {text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidConfigError(f"{option}: {text!r} is not a JSON object")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {double!r} appears more than once; remove all but one")
    return document


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check_number(option: str, topic: str, number: str) -> None:
    # Refuse "00", because it would be a second spelling of partition 0.
    if not re.fullmatch("0|[1-9][0-9]{0,9}", number) or int(number) > PARTITION_MAX:
        raise InvalidConfigError(
            f"{option}: topic {topic!r} has a partition {number!r}; give a number such as 0 or 12"
        )


def _offset(option: str, topic: str, number: str, value: Any) -> int:
    if number != ALL_PARTITIONS:
        _check_number(option, topic, number)
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if not isinstance(value, int) or not _is_whole(value, EARLIEST, LONG_MAX):
        raise InvalidConfigError(
            f"{option}: {topic}-{number} has {value!r}; give an offset, -1 (latest) or "
            "-2 (earliest)"
        )
    return value
