"""Where a copy goes on: what is committed with the mirror's group, what its log of runs says, and
how both are squared with what the target holds.

Each partition's offset in the group ``logbus-mirror-SOURCE`` on the target is the target's next
offset; its metadata say which offset of the source that is. They are committed after the records,
so a mirror that is killed finds records behind them: ``square`` tells which of those are copies
already, by their content, and the copy goes on behind the last. Runs (``offset_map``) are records
of the topic of the same name, written before the group's offsets. Pure.
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
"""Of entries that are written together: far less than any topic takes at once."""


def name_for(cluster_id: str) -> str:
    """The group and the topic, on the target, of what was copied of this cluster."""
    return MIRROR_PREFIX + "".join(c if c.isalnum() or c in "._-" else "_" for c in cluster_id)


class Position(NamedTuple):
    """Up to where a partition was copied, of which topic, the run that goes on there, and the
    leader epoch of the source's record before it (-1: not known)."""

    source_id: str
    source_next: int
    target_next: int
    run: Run | None
    epoch: int = NO_EPOCH


class Signature(NamedTuple):
    """As whom a mirror writes: its claim's generation, and its idempotent producer."""

    generation: int
    producer_id: int
    producer_epoch: int


def commit_of(
    position: Position,
    target_id: str,
    signature: Signature | None = None,
    settings: Mapping[str, str] | None = None,
) -> CommittedOffset:
    """The position as an offset of the mirror's group. ``settings``: those that the copy has from
    its source; the first partition says them."""
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
    """None where somebody else's commit stands, as after ``logbus groups seek``."""
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
    """Who wrote it; None of what no mirror wrote."""
    try:
        return Signature(*map(int, json.loads(commit.metadata)["signature"]))
    except (ValueError, TypeError, KeyError):
        return None


def read_settings(commits: Mapping[TopicPartition, CommittedOffset]) -> dict[str, dict[str, str]]:
    """The settings that each topic's copy has from its source, by the mirror before."""
    found: dict[str, dict[str, str]] = {}
    for where, commit in commits.items():
        try:
            said = json.loads(commit.metadata)["settings"]
            found[where.topic] = {str(name): str(value) for name, value in said.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


class Entry(NamedTuple):
    """One record of the mirror's topic: runs of a partition, and its position then. Without runs:
    those that begin at the position or behind it are over."""

    where: TopicPartition
    source_id: str
    target_id: str
    runs: tuple[Run, ...]
    source_next: int
    target_next: int


def write_entry(entry: Entry) -> bytes:
    """A record's value."""
    return json.dumps(
        {
            "version": VERSION,
            "topic": entry.where.topic,
            "partition": entry.where.partition,
            "source_topic_id": entry.source_id,
            "target_topic_id": entry.target_id,
            "runs": entry.runs,
            "source_offset": entry.source_next,
            "target_offset": entry.target_next,
        }
    ).encode()


def read_entry(value: bytes | None) -> Entry | None:
    """None for what no mirror wrote."""
    try:
        said: dict[str, Any] = json.loads(value or b"")
        return Entry(
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
    entries: Iterable[Entry], committed: Position | None, source_id: str, target_id: str
) -> OffsetMap:
    """The map of one partition as it was stored last; what other topics of that name left behind
    is passed over. An entry takes the place of runs from its own beginning on: the source had lost
    what they were of, or they were noted twice."""
    found = OffsetMap()
    for entry in entries:
        if entry.source_id == source_id and entry.target_id == target_id:
            found.cut_source(entry.runs[0].source if entry.runs else entry.source_next)
            found.runs.extend(entry.runs)
            found.source_next, found.target_next = entry.source_next, entry.target_next
    if committed is not None and committed.source_id == source_id:
        if committed.run is not None:
            found.runs.append(committed.run)
        if committed.source_next >= found.source_next:
            found.source_next, found.target_next = committed.source_next, committed.target_next
    return OffsetMap(found.runs, found.source_next, found.target_next)


def is_of_another(
    entries: Iterable[Entry], committed: Position | None, source_id: str, target_id: str
) -> bool:
    """Whether this copy was made of another topic, which had the name before."""
    origins = {entry.source_id for entry in entries if entry.target_id == target_id}
    if committed is not None:
        origins.add(committed.source_id)
    return bool(origins) and source_id not in origins


def epoch_before(source_next: int, committed: Position | None, source_id: str) -> int:
    """The source's leader epoch of the record before an offset, if that was noted; else -1."""
    if committed is None or committed.source_id != source_id:
        return NO_EPOCH
    return committed.epoch if committed.source_next == source_next else NO_EPOCH


class Squared(NamedTuple):
    """What the target held behind the position: copies, and records of somebody else."""

    copied: int
    foreign: int
    new_runs: tuple[Run, ...]


def square(
    known: OffsetMap,
    at_target: Iterable[tuple[int, Content]],
    at_source: Iterator[tuple[int, Content]],
    target_end: int,
) -> Squared:
    """Take into ``known`` what was copied behind it and not noted: the records at the target that
    are the source's next ones, in their order. Others are somebody else's, and passed over."""
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
    return Squared(copied, foreign, tuple(known.runs[runs:]))


def last_run(known: OffsetMap) -> Run | None:
    """The run that goes on, for the group's metadata."""
    return known.runs[-1] if known.runs else None


def entries_of(
    where: TopicPartition,
    source_id: str,
    target_id: str,
    known: OffsetMap,
    runs: Sequence[Run],
    *,
    is_cut: bool = False,
) -> Iterator[Entry]:
    """Records for the mirror's topic: these new runs, so many at a time as a record holds well, and
    the position; where the source lost records (``is_cut``) also without a run."""
    for start in range(0, len(runs) or int(is_cut), RUNS_PER_ENTRY):
        part = tuple(runs[start : start + RUNS_PER_ENTRY])
        yield Entry(where, source_id, target_id, part, known.source_next, known.target_next)


def in_batches(entries: Iterable[Entry]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Keys and values of entries, so many together as a batch holds well."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        value = write_entry(entry)
        if batch and size + len(value) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((str(entry.where).encode(), value))
        size += len(value)
    if batch:
        yield batch
