"""A checkpoint's folder, copied, in which logbus's offsets stand where Kafka's stood.

Spark begins again from the last two batches of the offset log: one that was completed, and one that
it repeats unless that was completed too. Those are carried over; older ones stay as they are, and
so does everything else: state, batch numbers, watermarks, other sources. The old folder is only
read, so that the old query can be started again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker_lite.errors import InvalidConfigError
from pyspark_logbus.checkpoint import offset_log
from pyspark_logbus.checkpoint.offset_log import Batch, KafkaOffsets
from pyspark_logbus.offsets import SourceOffset

Place = Callable[[KafkaOffsets], SourceOffset]
"""Where these offsets of Kafka are here; raises LogbusError for what is not here."""


class Moved(NamedTuple):
    """One partition's offset at the end of the last batch."""

    source: int
    topic: str
    partition: int
    kafka: int
    logbus: int


@dataclass(frozen=True, slots=True)
class Carried:
    """``batch``: the last one that was planned; ``is_completed``: else Spark repeats it."""

    batch: int
    is_completed: bool
    offsets: list[Moved] = field(default_factory=list)


def carry(old: Path, new: Path, place: Place) -> Carried:
    """Copy ``old`` to ``new``, which must not exist and is there whole or not at all.

    Raises InvalidConfigError for what is no checkpoint of a query that reads Kafka, and
    UnsupportedVersionError for a format of Spark's that is not known here.
    """
    if new.exists():
        raise InvalidConfigError(f"{new} exists; name a folder that does not")
    numbers = _numbers(old / "offsets")
    if not numbers:
        raise InvalidConfigError(
            f"{old} is not the checkpoint of a query that has planned a batch: there is no "
            f"{old / 'offsets'}/0; name what its checkpointLocation named, copied to this machine"
        )
    last = numbers[-1]
    carried = Carried(last, last in _numbers(old / "commits"))
    written = {}
    for number in numbers[-2:]:
        name = old / "offsets" / str(number)
        batch = offset_log.read_batch(str(name), name.read_text("utf-8"))
        written[number] = _carried(old, number, batch, place, carried)
    if not carried.offsets:
        raise InvalidConfigError(
            f"no source of {old} is Kafka's, so there is nothing to carry over; a checkpoint of "
            "logbus's own is used as it is"
        )
    part = new.with_name(f"{new.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        # Without the checksums that Hadoop's file system keeps of the files that change.
        changed = {f".{number}.crc" for number in written}
        shutil.copytree(
            old,
            part,
            ignore=lambda folder, names: changed if Path(folder) == old / "offsets" else set(),
        )
        for number, batch in written.items():
            (part / "offsets" / str(number)).write_text(batch.text(), "utf-8")
        part.rename(new)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return carried


def _carried(old: Path, number: int, batch: Batch, place: Place, carried: Carried) -> Batch:
    """A batch with logbus's offsets; what moved in the last one goes to ``carried``."""
    ends = []
    for source, line in enumerate(batch.ends):
        asked = offset_log.kafka_offsets(line)
        if asked is None:
            ends.append(line)
            continue
        end = place(asked)
        if number == carried.batch == 0 and not carried.is_completed:
            end = _with_begin(old, source, end, place)
        ends.append(offset_log.line(end))
        if number == carried.batch:
            carried.offsets.extend(
                Moved(source, where.topic, where.partition,
                      asked[where.topic][str(where.partition)], at.offset)
                for where, at in sorted(end.partitions().items())
            )  # fmt: skip
    return batch._replace(ends=tuple(ends))


def _with_begin(old: Path, source: int, end: SourceOffset, place: Place) -> SourceOffset:
    """A first batch that is repeated says where it begins: Spark keeps that of no source."""
    file = old / "sources" / str(source) / "0"
    begin = offset_log.initial_offsets(file.read_bytes()) if file.exists() else None
    if begin is None:
        raise InvalidConfigError(
            f"no batch of {old} was completed, and {file} does not say where the first one begins: "
            "start the query with a new checkpointLocation and its startingOffsets"
        )
    return SourceOffset(end.cluster_id, end.topics, place(begin).topics)


def _numbers(folder: Path) -> list[int]:
    """The batches that a log of Spark's has, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
