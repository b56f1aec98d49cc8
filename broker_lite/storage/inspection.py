"""What is wrong in a data directory, read without its lock and without changing a byte.

The scanner, the checkpoints and the decoders are those of a start; so is the judgement, but for
what follows from it: nothing is set aside or made anew here. Beside a running broker the end of a
segment may be seen half written, and files that go meanwhile are passed over. On any thread of a
process of its own: it reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker_lite.storage import leader_epochs, offset_index, paths, producer_state, time_index
from broker_lite.storage.checkpoint import (
    CorruptCheckpoint,
    decode_lines,
    read_offsets,
    read_whole,
)
from broker_lite.storage.files import Files
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.offset_index import CorruptIndex
from broker_lite.storage.producer_state import CorruptSnapshot
from broker_lite.storage.scan import inspect_file

UNKNOWN = -1


class FileCheck(NamedTuple):
    """One file's content and what is wrong with it.

    Counts are of a segment's sound batches. ``is_made_again``: a start makes the file again from
    the log, so nothing is lost.
    """

    path: str
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    end_offset: int = UNKNOWN
    problems: tuple[str, ...] = ()
    is_made_again: bool = False


def check_segment(files: Files, path: str, epochs: LeaderEpochs | None = None) -> FileCheck:
    """Every batch of one ``.log`` file: checksum, chain, length, and epoch where ``epochs`` know.

    Raises OSError, and ValueError for a name that is not a segment's.
    """
    batches = records = size = 0
    end_offset, problems = UNKNOWN, []
    for found in inspect_file(files, path):
        header, problem = found.header, found.problem
        if problem:
            problems.append(f"position {found.position}: {problem}")
            continue
        known = epochs.epoch_at(header.base_offset) if epochs is not None else UNKNOWN
        if known not in (UNKNOWN, header.leader_epoch):
            problems.append(
                f"position {found.position}: leader epoch {header.leader_epoch} where {known} wrote"
            )
        batches, records = batches + 1, records + header.record_count
        size, end_offset = size + header.size_bytes, header.next_offset
    return FileCheck(path, batches, records, size, end_offset, tuple(problems))


def check_partition(
    files: Files, directory: str, *, log_start: int = UNKNOWN, recovery_point: int = UNKNOWN
) -> Iterator[FileCheck]:
    """All segments of a partition's directory, and those of its small files that are damaged.

    The segments must follow one another from ``log_start`` on, and reach ``recovery_point``.
    """
    names = files.list_dir(directory)
    epochs = leader_epochs.load(files, directory)
    expected = log_start
    parsed = [found for found in map(paths.parse_segment_file, names) if found is not None]
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
            problems.insert(0, f"begins at {base}, where {expected} was to come next")
        if base == bases[-1] and end < recovery_point:
            problems.append(f"ends at {end}, where {recovery_point} was on disk")
        yield check._replace(end_offset=end, problems=tuple(problems))
        expected = end
    if not bases and recovery_point > max(log_start, 0):
        yield FileCheck(directory, problems=(f"no segment, where {recovery_point} were on disk",))
    yield from _damaged_small_files(files, directory, names, has_epochs=epochs is not None)


def _damaged_small_files(
    files: Files, directory: str, names: list[str], *, has_epochs: bool
) -> Iterator[FileCheck]:
    """What a start makes again from the log, where it does not add up."""
    if paths.LEADER_EPOCHS in names and not has_epochs:
        path = f"{directory}/{paths.LEADER_EPOCHS}"
        yield FileCheck(path, problems=("is damaged",), is_made_again=True)
    decoders: dict[str, Callable[[bytes], object]] = {
        paths.INDEX: offset_index.decode,
        paths.TIME_INDEX: time_index.decode,
        paths.SNAPSHOT: producer_state.decode,
    }
    for name in names:
        found = paths.parse_segment_file(name)
        decode = decoders.get(found[1]) if found is not None else None
        data = read_whole(files, f"{directory}/{name}") if decode is not None else None
        if decode is None or data is None:
            continue
        try:
            decode(data)
        except (CorruptIndex, CorruptSnapshot) as error:
            problem = str(error)
            yield FileCheck(f"{directory}/{name}", problems=(problem,), is_made_again=True)


def check_directory(files: Files, path: str) -> Iterator[FileCheck]:
    """A whole data directory (``log.dir``): its identity, its checkpoints, every partition."""
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
