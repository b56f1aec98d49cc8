"""Checkpoints: small text files that are replaced atomically.

A replacement writes a temporary file, syncs it, renames it, and syncs the directory. A checkpoint
holds a version, an entry count, one line for each entry, and the CRC-32C of all bytes before it. If
version, count or CRC is wrong, readers reject the file (CorruptCheckpoint). Disk threads call this
module; at a broker's start, so does the event loop's thread."""

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
    """A checkpoint whose version, count or checksum is wrong.

    The caller may continue as if the file were missing."""


def write_atomic(
    files: Files, directory: str, name: str, data: bytes, *, sync: bool = True
) -> None:
    """Replace the file ``directory/name`` atomically by one that contains ``data``.

    ``sync=False`` omits the syncs of file and directory, for files that the next broker start can
    rebuild from the log."""
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
    """Sync a directory, so that its file names survive a crash.

    Raises OSError with EIO for every failure, which callers treat as fatal. Never retry: which file
    names are on disk is then unknown."""
    try:
        files.sync_dir(directory)
    except OSError as error:
        raise OSError(
            errno.EIO, f"the directory's file names could not be synced: {error}", directory
        ) from error


def read_whole(files: Files, path: str) -> bytes | None:
    """Return a small file's bytes, at most ``CHECKPOINT_BYTES_MAX``; None if it does not exist."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    return file.pread(0, min(file.size, CHECKPOINT_BYTES_MAX))


def encode_lines(lines: Sequence[str]) -> bytes:
    """Return the bytes of a checkpoint file that has an entry for each of ``lines``."""
    body = "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()
    return body + b"crc32c %08x\n" % crc32c(body)


def decode_lines(data: bytes) -> list[str]:
    """Return the entries of a checkpoint file, one line each.

    Raises CorruptCheckpoint if version, count or checksum is wrong."""
    at = data.rfind(b"crc32c ")
    if at < 0 or data[at:] != b"crc32c %08x\n" % crc32c(data[:at]):
        raise CorruptCheckpoint("the file has a wrong checksum (CRC-32C)")
    version, count, *lines = data[:at].decode().split("\n")[:-1]
    if version != str(VERSION) or count != str(len(lines)):
        raise CorruptCheckpoint(
            f"the header declares version {version} and {count} entries, but the file has "
            f"{len(lines)} entries and logbus reads version {VERSION}"
        )
    return lines


def write_offsets(
    files: Files, directory: str, name: str, offsets: Mapping[PartitionKey, int]
) -> None:
    lines = [f"{key.topic_id} {key.partition} {offset}" for key, offset in offsets.items()]
    write_atomic(files, directory, name, encode_lines(lines))


def read_offsets(files: Files, directory: str, name: str) -> dict[PartitionKey, int]:
    """Return the offset of each partition in a checkpoint file; {} if the file does not exist.

    Raises CorruptCheckpoint."""
    data = read_whole(files, f"{directory}/{name}")
    if data is None:
        return {}
    try:
        rows = [line.split(" ") for line in decode_lines(data)]
        return {PartitionKey(row[0], int(row[1])): int(row[2]) for row in rows}
    except (ValueError, IndexError) as error:
        raise CorruptCheckpoint(f"{directory}/{name}: {error}") from None
