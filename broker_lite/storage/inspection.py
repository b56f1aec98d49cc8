"""Inspection and verification of the files in a data directory, without taking its lock and without
writing.

``logbus storage inspect`` and ``logbus storage verify`` run this module, not the broker. It shares
the code by which a broker reads its files at a start, but moves and rebuilds nothing. If a broker
runs on the directory meanwhile, the last batch of a segment may look half written, and files that
it deletes are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader
from broker_lite.record.walker import BadBatch
from broker_lite.storage import (
    leader_epochs,
    offset_index,
    paths,
    producer_state,
    time_index,
    transaction_index,
)
from broker_lite.storage.checkpoint import CorruptCheckpoint, decode_lines, read_offsets, read_whole
from broker_lite.storage.files import File, Files
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.offset_index import CorruptIndex
from broker_lite.storage.producer_state import CorruptSnapshot
from broker_lite.storage.scan import resync, walk_batches

UNKNOWN = -1


class InspectedBatch(NamedTuple):
    """A stored batch in ``logbus storage inspect``; ``problem`` is empty for a valid one."""

    segment_base: int
    position: int
    header: BatchHeader
    problem: str


def inspect_file(files: Files, path: str) -> Iterator[InspectedBatch]:
    """Yield every batch of a ``.log`` file; ``problem`` says what is wrong with a bad one. Takes no
    lock.

    Raises OSError, and ValueError if the file is not named as a segment."""
    named = paths.parse_segment_file(path.rpartition("/")[2])
    if named is None or named[1] != paths.LOG:
        raise ValueError(f"{path} is not a segment: its name must be 20 digits and .log")
    base_offset = named[0]
    file = files.open(path)
    end = file.size
    position, expected, epoch = 0, base_offset, NO_EPOCH
    while position < end:
        try:
            for batch in walk_batches(file, position, end, expected, epoch):
                yield InspectedBatch(base_offset, batch.position, batch.header, "")
                expected, epoch = batch.header.next_offset, batch.header.leader_epoch
            return
        except BadBatch as bad:
            yield InspectedBatch(base_offset, bad.position, _raw_header(file, bad), bad.reason)
            found_next = resync(file, bad.position + 1, end, expected)
        if found_next is None:
            return
        position, expected, epoch = found_next.position, found_next.header.base_offset, NO_EPOCH


def _raw_header(file: File, bad: BadBatch) -> BatchHeader:
    data = file.pread(bad.position, fmt.HEADER_BYTES).ljust(fmt.HEADER_BYTES, b"\x00")
    return BatchHeader._make(fmt.HEADER.unpack(data))


class FileCheck(NamedTuple):
    """The summary of one checked file, with its problems.

    The counts, ``size_bytes`` and ``end_offset`` cover only valid batches. ``is_made_again`` marks
    a damaged file that costs no data: the next broker start rebuilds it from the log."""

    path: str
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    end_offset: int = UNKNOWN
    problems: tuple[str, ...] = ()
    is_made_again: bool = False


def check_segment(files: Files, path: str, epochs: LeaderEpochs | None = None) -> FileCheck:
    """Check every batch of a ``.log`` file: checksum, offset order, length and leader epoch.

    Leader epochs are checked only for offsets that ``epochs`` covers. Raises OSError, and
    ValueError if ``path`` is not named as a segment."""
    batches = records = size = 0
    end_offset, problems = UNKNOWN, []
    for batch in inspect_file(files, path):
        header, problem = batch.header, batch.problem
        if problem:
            problems.append(f"position {batch.position}: {problem}")
            continue
        known = epochs.epoch_at(header.base_offset) if epochs is not None else UNKNOWN
        if known not in (UNKNOWN, header.leader_epoch):
            problems.append(
                f"position {batch.position}: the batch has leader epoch {header.leader_epoch}, but "
                f"the epoch file says {known}"
            )
        batches, records = batches + 1, records + header.record_count
        size, end_offset = size + header.size_bytes, header.next_offset
    return FileCheck(path, batches, records, size, end_offset, tuple(problems))


def check_partition(
    files: Files, directory: str, *, log_start: int = UNKNOWN, recovery_point: int = UNKNOWN
) -> Iterator[FileCheck]:
    """Check the files in a partition's directory. Yield the result of each segment, and of each
    other file that is damaged.

    The segments must be contiguous from ``log_start`` to at least ``recovery_point``."""
    names = files.list_dir(directory)
    epochs = leader_epochs.load(files, directory)
    expected = log_start
    parsed = [file for file in map(paths.parse_segment_file, names) if file is not None]
    bases = [base for base, suffix in parsed if suffix == paths.LOG]
    for base in bases:
        path = paths.segment_file(directory, base, paths.LOG)
        try:
            check = check_segment(files, path, epochs)
        except FileNotFoundError:
            continue
        end = check.end_offset if check.batches else base
        problems = list(check.problems)
        is_first = base == bases[0]
        if expected != UNKNOWN and (base > expected if is_first else base != expected):
            problems.insert(0, f"the segment begins at offset {base}, not {expected}")
        if base == bases[-1] and end < recovery_point:
            problems.append(
                f"the log ends at offset {end}, below its recovery point {recovery_point}"
            )
        yield check._replace(end_offset=end, problems=tuple(problems))
        expected = end
    if not bases and recovery_point > max(log_start, 0):
        problem = f"the log has no segment, but its recovery point is {recovery_point}"
        yield FileCheck(directory, problems=(problem,))
    yield from _damaged_small_files(files, directory, names, has_epochs=epochs is not None)


def _damaged_small_files(
    files: Files, directory: str, names: list[str], *, has_epochs: bool
) -> Iterator[FileCheck]:
    """Yield a ``FileCheck`` for each damaged epoch file, index and producer snapshot.

    The next broker start rebuilds them from the log."""
    if paths.LEADER_EPOCHS in names and not has_epochs:
        path = f"{directory}/{paths.LEADER_EPOCHS}"
        yield FileCheck(
            path, problems=("wrong checksum, number of epochs or order",), is_made_again=True
        )
    decoders: dict[str, Callable[[bytes], object]] = {
        paths.INDEX: offset_index.decode,
        paths.TIME_INDEX: time_index.decode,
        paths.SNAPSHOT: producer_state.decode,
        paths.TXN_INDEX: transaction_index.decode,
    }
    for name in names:
        parsed = paths.parse_segment_file(name)
        decode = decoders.get(parsed[1]) if parsed is not None else None
        data = read_whole(files, f"{directory}/{name}") if decode is not None else None
        if decode is None or data is None:
            continue
        try:
            decode(data)
        except (CorruptIndex, CorruptSnapshot) as error:
            problem = str(error)
            yield FileCheck(f"{directory}/{name}", problems=(problem,), is_made_again=True)


def check_directory(files: Files, path: str) -> Iterator[FileCheck]:
    """Check a whole data directory (``log.dir``): identity, checkpoints and every partition."""
    meta = read_whole(files, f"{path}/{paths.META}")
    try:
        decode_lines(meta or b"")
    except (CorruptCheckpoint, ValueError) as error:
        yield FileCheck(f"{path}/{paths.META}", problems=(str(error),))
    offsets = []
    for name in (paths.LOG_STARTS, paths.RECOVERY_POINTS):
        try:
            offsets.append(read_offsets(files, path, name))
        except CorruptCheckpoint as error:
            offsets.append({})
            yield FileCheck(f"{path}/{name}", problems=(str(error),))
    starts, points = offsets
    for name in files.list_dir(path):
        key, stray = paths.parse_partition_dir(name), paths.parse_stray_dir(name)
        if key is not None:
            yield from check_partition(
                files,
                f"{path}/{name}",
                log_start=starts.get(key, 0),
                recovery_point=points.get(key, UNKNOWN),
            )
        elif stray is not None:
            yield from check_partition(files, f"{path}/{name}")
