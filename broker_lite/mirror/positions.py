"""The format of the state that a mirror stores on the target, and how a copy resumes from it. No
I/O.

- A position says how far a partition is copied. It is a committed offset of the group
  ``logbus-mirror-SOURCE``: the offset is the next one at the target, and its metadata contains the
  next one at the source.
- Runs map source offsets to target offsets (``offset_map``). They are records of a topic with the
  same name, written before the positions.

A mirror stores positions after the records. If it is killed after it wrote records and before it
stored their positions, the target has copies beyond the stored position. ``reconcile`` recognises
them by their content, and the next mirror resumes after the last of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import Content
from broker_lite.model import MIRROR_PREFIX, NO_EPOCH, CommittedOffset, TopicPartition

VERSION = 1
RUNS_PER_ENTRY = 10_000
BATCH_BYTES = 512 << 10
"""Maximum bytes of the entries (ranges of copied offsets) in one batch of the mirror's topic, far
below max.message.bytes."""


def name_for(cluster_id: str) -> str:
    """Return the name of the group, and of the topic, in which a mirror of the source cluster
    ``cluster_id`` stores its state on the target."""
    return MIRROR_PREFIX + "".join(c if c.isalnum() or c in "._-" else "_" for c in cluster_id)


class Position(NamedTuple):
    """A stored position: how far one partition is copied.

    ``source_id`` is the topic's id at the source. ``source_next`` and ``target_next`` are the next
    offsets at the source and at the target. ``run`` is the last run (range of copied offsets) of
    the offset map. ``epoch`` is the leader epoch of the source record before ``source_next`` (-1:
    unknown)."""

    source_id: str
    source_next: int
    target_next: int
    run: Run | None
    epoch: int = NO_EPOCH


class Signature(NamedTuple):
    """The identity of the mirror that stored a position: its generation in the mirror's group, and
    its producer id and epoch."""

    generation: int
    producer_id: int
    producer_epoch: int


def commit_of(
    position: Position,
    target_id: str,
    signature: Signature | None = None,
    settings: Mapping[str, str] | None = None,
) -> CommittedOffset:
    """Return the committed offset (with metadata) that stores this position in the mirror's group.
    ``target_id`` is the topic's id at the target. ``settings`` are the topic's settings that the
    mirror copied; only the position of partition 0 contains them."""
    text = json.dumps(
        {
            "version": VERSION,
            "source_topic_id": position.source_id,
            "source_offset": position.source_next,
            "run": position.run,
            "source_epoch": position.epoch,
            "signature": signature,
        }
        | ({} if settings is None else {"settings": dict(settings)})
    )
    return CommittedOffset(position.target_next, metadata=text, topic_id=target_id)


def read_commit(commit: CommittedOffset) -> Position | None:
    """Return the mirror's position, read from the offset and metadata of its group's ``commit``;
    None if anything but a mirror made the commit, for example ``logbus groups seek``."""
    try:
        said = json.loads(commit.metadata)
        run = said["run"]
        return Position(
            str(said["source_topic_id"]),
            int(said["source_offset"]),
            commit.offset,
            None if run is None else Run(int(run[0]), int(run[1])),
            int(said.get("source_epoch", NO_EPOCH)),
        )
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def read_signature(commit: CommittedOffset) -> Signature | None:
    """Return the signature (generation, producer id and epoch) of the mirror that committed this
    offset of the mirror's group; None if no mirror committed it."""
    try:
        return Signature(*map(int, json.loads(commit.metadata)["signature"]))
    except (ValueError, TypeError, KeyError):
        return None


def read_settings(commits: Mapping[TopicPartition, CommittedOffset]) -> dict[str, dict[str, str]]:
    """Return, by topic, the settings that the previous mirror copied from the source, as stored in
    the committed offsets of the mirror's group."""
    settings: dict[str, dict[str, str]] = {}
    for tp, commit in commits.items():
        try:
            said = json.loads(commit.metadata)["settings"]
            settings[tp.topic] = {str(name): str(value) for name, value in said.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return settings


class CopiedEntry(NamedTuple):
    """A record of the topic with a mirror's state: new runs (ranges of copied offsets) of one
    partition, and the partition's position (``source_next``, ``target_next``) at that time.

    An entry with runs replaces all earlier runs of the partition at or after its own first run. An
    entry without runs removes all runs from ``source_next`` on."""

    tp: TopicPartition
    source_id: str
    target_id: str
    runs: tuple[Run, ...]
    source_next: int
    target_next: int


def write_entry(entry: CopiedEntry) -> bytes:
    """Encode an entry (ranges of copied offsets) as the value of a record of the topic in which a
    mirror stores its state."""
    return json.dumps(
        {
            "version": VERSION,
            "topic": entry.tp.topic,
            "partition": entry.tp.partition,
            "source_topic_id": entry.source_id,
            "target_topic_id": entry.target_id,
            "runs": entry.runs,
            "source_offset": entry.source_next,
            "target_offset": entry.target_next,
        }
    ).encode()


def read_entry(value: bytes | None) -> CopiedEntry | None:
    """Return the entry (ranges of copied offsets) that is the value of a record in the mirror's
    topic; None if anything but a mirror wrote the record."""
    try:
        said: dict[str, Any] = json.loads(value or b"")
        return CopiedEntry(
            TopicPartition(str(said["topic"]), int(said["partition"])),
            str(said["source_topic_id"]),
            str(said["target_topic_id"]),
            tuple(Run(int(source), int(target)) for source, target in said["runs"]),
            int(said["source_offset"]),
            int(said["target_offset"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


def restored(
    entries: Iterable[CopiedEntry], committed: Position | None, source_id: str, target_id: str
) -> OffsetMap:
    """Return the offset map of one partition, restored from its stored entries (runs of copied
    offsets) and position.

    Entries of a deleted topic of the same name are ignored. An entry replaces all earlier runs from
    its own first run on: the source had lost the records of these runs, or a mirror has stored the
    runs twice."""
    offset_map = OffsetMap()
    for entry in entries:
        if entry.source_id == source_id and entry.target_id == target_id:
            offset_map.cut_source(entry.runs[0].source if entry.runs else entry.source_next)
            offset_map.runs.extend(entry.runs)
            offset_map.source_next, offset_map.target_next = entry.source_next, entry.target_next
    if committed is not None and committed.source_id == source_id:
        if committed.run is not None:
            offset_map.runs.append(committed.run)
        if committed.source_next >= offset_map.source_next:
            offset_map.source_next, offset_map.target_next = (
                committed.source_next,
                committed.target_next,
            )
    return OffsetMap(offset_map.runs, offset_map.source_next, offset_map.target_next)


def is_of_another(
    entries: Iterable[CopiedEntry], committed: Position | None, source_id: str, target_id: str
) -> bool:
    """Return whether all state that a mirror stored about a partition's copy (entries and position)
    comes from a deleted source topic with the same name."""
    origins = {entry.source_id for entry in entries if entry.target_id == target_id}
    if committed is not None:
        origins.add(committed.source_id)
    return bool(origins) and source_id not in origins


def epoch_before(source_next: int, committed: Position | None, source_id: str) -> int:
    """Return the leader epoch of the source record before ``source_next``, or -1 if it is unknown,
    because the stored position is at another offset."""
    if committed is None or committed.source_id != source_id:
        return NO_EPOCH
    return committed.epoch if committed.source_next == source_next else NO_EPOCH


class Reconciliation(NamedTuple):
    """The records at the target beyond the stored position of a partition: the number of copies,
    the number of records that do not come from the source, and the new runs (ranges) of copies."""

    copied: int
    foreign: int
    new_runs: tuple[Run, ...]


def reconcile(
    known: OffsetMap,
    at_target: Iterable[tuple[int, Content]],
    at_source: Iterator[tuple[int, Content]],
    target_end: int,
) -> Reconciliation:
    """Find copies at the target beyond the stored position, and add them to ``known``.

    ``at_target`` and ``at_source`` yield the offset and content of the records beyond the position
    in both clusters. A record at the target whose content equals that of the source's next record
    is its copy. The result counts other records at the target as foreign: they do not come from the
    source."""
    copied = foreign = 0
    runs = len(known.runs)
    expected = next(at_source, None)
    for offset, content in at_target:
        if expected is not None and content == expected[1]:
            known.add(expected[0], offset, 1)
            copied += 1
            expected = next(at_source, None)
        else:
            foreign += 1
    known.target_next = max(known.target_next, target_end)
    return Reconciliation(copied, foreign, tuple(known.runs[runs:]))


def last_run(known: OffsetMap) -> Run | None:
    """Return the last run (range of copied offsets) of an offset map, which is stored together with
    the position; None for an empty map."""
    return known.runs[-1] if known.runs else None


def entries_of(
    tp: TopicPartition,
    source_id: str,
    target_id: str,
    known: OffsetMap,
    runs: Sequence[Run],
    *,
    is_cut: bool = False,
) -> Iterator[CopiedEntry]:
    """Yield the entries (records of the mirror's topic) that store new ``runs`` (ranges of copied
    offsets) of a partition. An entry has at most RUNS_PER_ENTRY runs. If the source has lost
    records (``is_cut``) and there are no new runs, yield an entry without runs, which removes the
    runs of the lost records."""
    for start in range(0, len(runs) or int(is_cut), RUNS_PER_ENTRY):
        part = tuple(runs[start : start + RUNS_PER_ENTRY])
        yield CopiedEntry(tp, source_id, target_id, part, known.source_next, known.target_next)


def in_batches(entries: Iterable[CopiedEntry]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Encode entries (records with ranges of copied offsets), and divide them into batches of at
    most BATCH_BYTES. A batch is a list of pairs of key and value."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        value = write_entry(entry)
        if batch and size + len(value) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((str(entry.tp).encode(), value))
        size += len(value)
    if batch:
        yield batch
