"""The stored state from which a copy resumes: positions in the mirror's group, and runs in its
topic. The module does no I/O.

A partition's offset in the group ``logbus-mirror-SOURCE`` on the target is the target's next
offset. The commit's metadata hold the source's offset. Positions are committed after the records. A
killed mirror thus leaves records beyond its positions. ``reconcile`` recognises copies by content,
and the copy resumes after the last one. Runs (``offset_map``) are records of the topic of the same
name, written before the positions.
"""

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
"""Maximum bytes of entries in one batch, far below any topic's max.message.bytes."""


def name_for(cluster_id: str) -> str:
    """Return the name of the group, and of the topic, in which a mirror of the source cluster
    ``cluster_id`` stores its state on the target."""
    return MIRROR_PREFIX + "".join(c if c.isalnum() or c in "._-" else "_" for c in cluster_id)


class Position(NamedTuple):
    """A stored position of one partition: the source's topic id, the next offsets at the source and
    at the target, and the last run.

    ``epoch`` is the leader epoch of the source's record before ``source_next`` (-1 if unknown).
    """

    source_id: str
    source_next: int
    target_next: int
    run: Run | None
    epoch: int = NO_EPOCH


class Signature(NamedTuple):
    """Identifies the mirror that wrote a position: the generation of its membership in the mirror's
    group, and the id and epoch of its idempotent producer."""

    generation: int
    producer_id: int
    producer_epoch: int


def commit_of(
    position: Position,
    target_id: str,
    signature: Signature | None = None,
    settings: Mapping[str, str] | None = None,
) -> CommittedOffset:
    """Return the position as a committed offset of the mirror's group. ``settings`` are the topic's
    settings from the source. Only the commit of partition 0 has them."""
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
    """Return the position in a commit. Return None if no mirror made the commit, for example after
    ``logbus groups seek``."""
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
    """Return the signature in a commit. Return None if no mirror made the commit."""
    try:
        return Signature(*map(int, json.loads(commit.metadata)["signature"]))
    except (ValueError, TypeError, KeyError):
        return None


def read_settings(commits: Mapping[TopicPartition, CommittedOffset]) -> dict[str, dict[str, str]]:
    """Return the settings that the previous mirror copied from the source, by topic."""
    settings: dict[str, dict[str, str]] = {}
    for tp, commit in commits.items():
        try:
            said = json.loads(commit.metadata)["settings"]
            settings[tp.topic] = {str(name): str(value) for name, value in said.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return settings


class CopiedEntry(NamedTuple):
    """A record of the mirror's topic, with new runs of a partition and its position. An entry
    replaces all earlier runs from its first run, or from its position, on."""

    tp: TopicPartition
    source_id: str
    target_id: str
    runs: tuple[Run, ...]
    source_next: int
    target_next: int


def write_entry(entry: CopiedEntry) -> bytes:
    """Encode an entry as the value of a record."""
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
    """Decode the value of a record. Return None if no mirror wrote the value."""
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
    """Return one partition's offset map, from its entries and its committed position.

    Ignores entries of a deleted topic of the same name. An entry replaces all earlier runs from its
    first run on, because the source had lost their records, or a mirror stored them twice.
    """
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
    """Return whether the copy has only records of a deleted source topic with the same name."""
    origins = {entry.source_id for entry in entries if entry.target_id == target_id}
    if committed is not None:
        origins.add(committed.source_id)
    return bool(origins) and source_id not in origins


def epoch_before(source_next: int, committed: Position | None, source_id: str) -> int:
    """Return the leader epoch of the source's record before ``source_next``. Return -1 if it is not
    stored."""
    if committed is None or committed.source_id != source_id:
        return NO_EPOCH
    return committed.epoch if committed.source_next == source_next else NO_EPOCH


class Reconciliation(NamedTuple):
    """The numbers of copied and of foreign records that the target has beyond the stored position,
    with the runs of the copied records."""

    copied: int
    foreign: int
    new_runs: tuple[Run, ...]


def reconcile(
    known: OffsetMap,
    at_target: Iterable[tuple[int, Content]],
    at_source: Iterator[tuple[int, Content]],
    target_end: int,
) -> Reconciliation:
    """Find the copies at the target beyond the stored position, and add them to ``known``.

    Records at the target that match the source's next records in order are copies. Other records
    are foreign and skipped.
    """
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
    """Return the last run of a map, which ``commit_of`` stores. Return None for an empty map."""
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
    """Yield the entries for new runs and the position, each with at most RUNS_PER_ENTRY runs. With
    ``is_cut`` (the source lost records), yield an entry even without runs."""
    for start in range(0, len(runs) or int(is_cut), RUNS_PER_ENTRY):
        part = tuple(runs[start : start + RUNS_PER_ENTRY])
        yield CopiedEntry(tp, source_id, target_id, part, known.source_next, known.target_next)


def in_batches(entries: Iterable[CopiedEntry]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield lists of keys and values of entries, each of at most BATCH_BYTES."""
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
