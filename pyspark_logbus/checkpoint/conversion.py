"""Copy a query's checkpoint and replace Kafka's offsets by logbus's.

A restarted query needs only the last two batches of Spark's offset log. The query has completed the
first of them. It repeats the second one, unless Spark's commit log has an entry for it. So only the
offsets of these two batches are converted. Older batches, state, watermarks and the offsets of
other sources are copied unchanged. The old folder is only read, so the old query can start again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker_lite.errors import InvalidConfigError
from pyspark_logbus.checkpoint import offset_log
from pyspark_logbus.checkpoint.offset_log import KafkaOffsets, MicroBatch
from pyspark_logbus.offsets import SourceOffset

ConvertOffsets = Callable[[KafkaOffsets], SourceOffset]
"""A function that converts Kafka offsets to offsets of the logbus cluster. It raises LogbusError
for an unknown partition."""


class ConvertedOffset(NamedTuple):
    """One partition's offset at the end of the last planned batch: in Kafka, and in logbus.

    ``source`` is the number of the Kafka source in the query, from 0.
    """

    source: int
    topic: str
    partition: int
    kafka: int
    logbus: int


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of converting a checkpoint.

    ``batch`` is the number of the last planned batch. Spark repeats that batch unless
    ``is_completed``.
    """

    batch: int
    is_completed: bool
    offsets: list[ConvertedOffset] = field(default_factory=list)


def convert(old: Path, new: Path, convert_offsets: ConvertOffsets) -> Conversion:
    """Copy the checkpoint ``old`` to the folder ``new``, which must not exist. ``new`` appears only
    when it is complete.

    Raises InvalidConfigError if ``old`` is no checkpoint of a query that reads Kafka, and
    UnsupportedVersionError for an unknown version of Spark's offset log.
    """
    if new.exists():
        raise InvalidConfigError(f"{new} exists. Name a folder that does not exist")
    numbers = _numbers(old / "offsets")
    if not numbers:
        raise InvalidConfigError(
            f"{old} is not the checkpoint of a query that has planned a batch: "
            f"{old / 'offsets'}/0 is missing. Name a local copy of the query's checkpointLocation"
        )
    last = numbers[-1]
    conversion = Conversion(last, last in _numbers(old / "commits"))
    written = {}
    for number in numbers[-2:]:
        name = old / "offsets" / str(number)
        batch = offset_log.read_batch(str(name), name.read_text("utf-8"))
        written[number] = _converted(old, number, batch, convert_offsets, conversion)
    if not conversion.offsets:
        raise InvalidConfigError(
            f"{old} has no Kafka source, so nothing needs conversion. Use a checkpoint of "
            'format("logbus") as it is'
        )
    part = new.with_name(f"{new.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        # Do not copy Hadoop's checksum files (.crc) of the offset log entries that change: they
        # would not match.
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
    return conversion


def _converted(
    old: Path,
    number: int,
    batch: MicroBatch,
    convert_offsets: ConvertOffsets,
    conversion: Conversion,
) -> MicroBatch:
    """Return ``batch`` with logbus's offsets in place of Kafka's. If it is the last planned batch,
    append each partition's offsets to ``conversion.offsets``."""
    ends = []
    for source, line in enumerate(batch.ends):
        kafka = offset_log.kafka_offsets(line)
        if kafka is None:
            ends.append(line)
            continue
        end = convert_offsets(kafka)
        if number == conversion.batch == 0 and not conversion.is_completed:
            end = _with_begin(old, source, end, convert_offsets)
        ends.append(offset_log.line(end))
        if number == conversion.batch:
            conversion.offsets.extend(
                ConvertedOffset(source, tp.topic, tp.partition,
                      kafka[tp.topic][str(tp.partition)], at.offset)
                for tp, at in sorted(end.partitions().items())
            )  # fmt: skip
    return batch._replace(ends=tuple(ends))


def _with_begin(
    old: Path, source: int, end: SourceOffset, convert_offsets: ConvertOffsets
) -> SourceOffset:
    """Add the start offsets of the query's first batch to ``end``, the batch's end offset, because
    Spark repeats that batch.

    Spark's offset log has no start offsets, so the end offset of logbus's source must contain them.
    """
    file = old / "sources" / str(source) / "0"
    begin = offset_log.initial_offsets(file.read_bytes()) if file.exists() else None
    if begin is None:
        raise InvalidConfigError(
            f"no batch of {old} was completed, and {file} does not hold its start offsets. "
            "Start the query with a new checkpointLocation and its startingOffsets"
        )
    return SourceOffset(end.cluster_id, end.topics, convert_offsets(begin).topics)


def _numbers(folder: Path) -> list[int]:
    """Return the batch numbers in a folder of Spark's offset log or commit log, in
    ascending order."""
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
