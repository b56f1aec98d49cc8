"""Small files that change as a whole: tmp, fsync, rename, fsync of the directory.

Text, so that people can read them: a version, a count, one line an entry, and the CRC-32C of all
before it. A file that does not add up is refused whole (CorruptCheckpoint), never half believed.
Called on disk threads, and on the loop thread while a broker starts.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence

from broker_lite.model import PartitionKey
from broker_lite.record.crc32c import crc32c
from broker_lite.storage import paths
from broker_lite.storage.files import Files

VERSION = 1
CHECKPOINT_BYTES_MAX = 64 << 20


class CorruptCheckpoint(Exception):
    """Version, count or checksum is wrong; callers decide what to do without the file."""


def write_atomic(
    files: Files, directory: str, name: str, data: bytes, *, sync: bool = True
) -> None:
    """Replace ``directory/name``. ``sync=False`` is for files that are rebuilt when they lie."""
    temporary = f"{directory}/{name}{paths.TEMPORARY}"
    with contextlib.suppress(FileNotFoundError):
        files.remove(temporary)
    file = files.create(temporary)
    file.append([data])
    if sync:
        file.datasync()
    files.rename(temporary, f"{directory}/{name}")
    if sync:
        sync_names(files, directory)


def sync_names(files: Files, directory: str) -> None:
    """Put the names in a directory on disk. What fails is never taken for a full disk, and tried
    again: nobody knows which names the disk has then."""
    try:
        files.sync_dir(directory)
    except OSError as error:
        raise OSError(errno.EIO, f"its names could not be synced: {error}", directory) from error


def read_whole(files: Files, path: str) -> bytes | None:
    """All bytes of a small file, or None if there is none."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    return file.pread(0, min(file.size, CHECKPOINT_BYTES_MAX))


def encode_lines(lines: Sequence[str]) -> bytes:
    body = "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()
    return body + b"crc32c %08x\n" % crc32c(body)


def decode_lines(data: bytes) -> list[str]:
    """The entries; raises CorruptCheckpoint unless version, count and checksum agree."""
    at = data.rfind(b"crc32c ")
    if at < 0 or data[at:] != b"crc32c %08x\n" % crc32c(data[:at]):
        raise CorruptCheckpoint("the checksum is wrong")
    version, count, *lines = data[:at].decode().split("\n")[:-1]
    if version != str(VERSION) or count != str(len(lines)):
        raise CorruptCheckpoint(f"version {version} or count {count} is wrong")
    return lines


def write_offsets(
    files: Files, directory: str, name: str, offsets: Mapping[PartitionKey, int]
) -> None:
    lines = [f"{key.topic_id} {key.partition} {offset}" for key, offset in offsets.items()]
    write_atomic(files, directory, name, encode_lines(lines))


def read_offsets(files: Files, directory: str, name: str) -> dict[PartitionKey, int]:
    """An offset per partition; empty without a file. Raises CorruptCheckpoint."""
    data = read_whole(files, f"{directory}/{name}")
    if data is None:
        return {}
    try:
        rows = [line.split(" ") for line in decode_lines(data)]
        return {PartitionKey(row[0], int(row[1])): int(row[2]) for row in rows}
    except (ValueError, IndexError) as error:
        raise CorruptCheckpoint(f"{directory}/{name}: {error}") from None
