"""Tests of walks over a segment's batches, and of *resync*: the search for the next valid batch."""

from __future__ import annotations

import pytest
from support.memory_files import MemFile, MemFiles
from support.stored import batch

from broker_lite.record import format as fmt
from broker_lite.record.walker import BadBatch
from broker_lite.storage.scan import resync, walk_batches, walk_headers


def file_of(*batches: bytes) -> MemFile:
    file = MemFiles().create("/a")
    file.append([bytes(b) for b in batches])
    return file


def chain(count: int, size: int = 120, fill: int = 0x55) -> list[bytearray]:
    made = []
    for i in range(count):
        data = batch(size=size, fill=fill)
        fmt.STAMP.pack_into(data, 0, i, size - 12, 1)
        made.append(data)
    return made


@pytest.mark.parametrize("size", [61, 120, 5000, 300_000, 5_000_000])
@pytest.mark.parametrize("walk", [walk_headers, walk_batches])
def test_iteration_over_a_segment_yields_every_batch(walk: object, size: int) -> None:
    count = 3 if size > 10_000 else 200
    file = file_of(*chain(count, size))
    found = list(walk(file, 0, file.size, 0))  # type: ignore[operator]
    assert [f.header.base_offset for f in found] == list(range(count))
    assert [f.position for f in found] == [i * size for i in range(count)]


def test_iteration_over_a_segment_finds_a_wrong_crc_only_if_it_checks_crcs() -> None:
    batches = chain(3)
    batches[1][100] ^= 1
    file = file_of(*batches)
    assert len(list(walk_headers(file, 0, file.size, 0))) == 3
    with pytest.raises(BadBatch) as caught:
        list(walk_batches(file, 0, file.size, 0))
    assert (caught.value.offset, caught.value.position) == (1, 120)
    assert caught.value.header is not None


def test_iteration_over_a_segment_checks_offset_length_epoch_and_magic_of_each_batch() -> None:
    for position, value in ((7, 9), (8, 0x7F), (11, 200), (15, 0), (16, 1)):
        batches = chain(3)
        batches[1][position] = value
        file = file_of(*batches)
        with pytest.raises(BadBatch) as caught:
            list(walk_batches(file, 0, file.size, 0))
        assert caught.value.offset == 1


def test_search_for_a_valid_batch_also_checks_the_base_offset_of_the_next_batch() -> None:
    batches = chain(5)
    file = file_of(b"garbage" * 9, *batches[2:])
    found = resync(file, 0, file.size, 1)
    assert found is not None
    assert (found.position, found.header.base_offset) == (63, 2)
    assert resync(file, 0, file.size, 3) is not None
    assert resync(file, 0, file.size, 5) is None


def test_search_for_a_valid_batch_ignores_an_encoded_batch_inside_a_record() -> None:
    inner = batch()
    fmt.STAMP.pack_into(inner, 0, 3, 108, 1)
    outer = bytearray(b"broken" + bytes(inner) + b"more of the record")
    real = chain(5)[4]
    file = file_of(outer, real)
    found = resync(file, 0, file.size, 1)
    assert found is not None and found.header.base_offset == 4
