"""Tests of checkpoint files, which hold an offset of each partition.

A damaged file is refused, and a write replaces the file atomically.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from support.memory_files import MemFiles, PowerCut

from broker_lite.model import PartitionKey
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.checkpoint import (
    CorruptCheckpoint,
    decode_lines,
    encode_lines,
    read_offsets,
    write_atomic,
    write_offsets,
)

KEY = PartitionKey("a" * 22, 3)


@pytest.fixture
def files() -> MemFiles:
    made = MemFiles()
    made.make_dir("/d")
    made.sync_dir("/")
    return made


def test_checkpointed_offsets_round_trip(files: MemFiles) -> None:
    assert read_offsets(files, "/d", "points") == {}
    offsets = {KEY: 12, PartitionKey("b" * 22, 0): 0}
    write_offsets(files, "/d", "points", offsets)
    assert read_offsets(files, "/d", "points") == offsets


def test_checkpoint_with_a_truncation_or_a_flipped_byte_is_refused() -> None:
    data = encode_lines(["a 1", "b 2"])
    assert decode_lines(data) == ["a 1", "b 2"]
    for i in range(len(data)):
        broken = bytearray(data)
        broken[i] ^= 1
        with pytest.raises(CorruptCheckpoint):
            decode_lines(bytes(broken))
        with pytest.raises(CorruptCheckpoint):
            decode_lines(data[:i])


@pytest.mark.parametrize("lines", [["x"], ["a b c d"], [f"{KEY.topic_id} zero 1"]])
def test_checkpoint_lines_that_are_not_offsets_are_refused(
    files: MemFiles, lines: list[str]
) -> None:
    write_atomic(files, "/d", "points", encode_lines(lines))
    with pytest.raises(CorruptCheckpoint):
        read_offsets(files, "/d", "points")


def test_checkpoint_of_another_version_is_refused() -> None:
    body = b"2\n0\n"
    with pytest.raises(CorruptCheckpoint, match="version"):
        decode_lines(body + b"crc32c %08x\n" % crc32c(body))


def test_power_cut_during_a_write_leaves_the_old_or_the_new_checkpoint() -> None:
    seen = set()
    for stop in range(7):
        for seed in range(20):
            made = MemFiles()
            made.make_dir("/d")
            made.sync_dir("/")
            write_offsets(made, "/d", "points", {KEY: 1})
            made.stop_at = made.operations + stop
            with contextlib.suppress(PowerCut):
                write_offsets(made, "/d", "points", {KEY: 2})
            made.crash(Random(seed))
            seen.add(read_offsets(made, "/d", "points")[KEY])
    assert seen == {1, 2}
