"""Tests that damage random files of a stopped log and check all later reads and offsets."""

from __future__ import annotations

from random import Random

import pytest
from support.stored import FOLDER, SMALL, Disk, append, batch, verify

from broker_lite.errors import CorruptMessageError
from broker_lite.record.batch import BatchHeader, read_header
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.log import Log


def written(random: Random) -> tuple[Disk, dict[int, bytes]]:
    disk, batches = Disk(SMALL), {}
    for i in range(90):
        data = batch(1 + i % 3, size=random.choice((100, 200, 700)), fill=i)
        base = append(disk.log, data, epoch=1 + i // 40).base_offset
        batches[base] = bytes(data)
    disk.log.flush()
    disk.manager.checkpoint()
    return disk, batches


def damage(disk: Disk, random: Random) -> str:
    """Damage a random file of the log, as a disk or an operator might; return a description."""
    name = random.choice([n for n in disk.names() if disk.files.size(f"{FOLDER}/{n}")])
    data = bytearray(disk.content(name))
    at = random.randrange(len(data))
    what = random.choice(("flip", "zero", "cut", "grow", "remove", "repeat", "swap"))
    if what == "flip":
        data[at] ^= 1 << random.randrange(8)
    elif what == "zero":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif what == "cut":
        del data[at:]
    elif what == "grow":
        data += random.randbytes(300)
    elif what == "repeat":
        data += data[at:]
    elif what == "swap":
        data = data[at:] + data[:at]
    if what == "remove":
        disk.remove(name)
    else:
        disk.replace(name, bytes(data))
    return f"{what} {name} at {at}"


def as_reader(data: bytes, offset: int) -> BatchHeader | None:
    """Return the header of the batch with ``offset`` in it, or None if the header is unusable."""
    try:
        header = read_header(data)
    except CorruptMessageError:
        return None
    sound = header.base_offset <= offset < header.next_offset and header.size_bytes <= len(data)
    return header if sound else None


def check(log: Log, batches: dict[int, bytes]) -> set[int]:
    """Read every offset; return the offsets that cannot be read.

    Each read must return the batch that was written, or a corrupt batch that ``verify`` reports, or
    raise CorruptMessageError.
    """
    lost: set[int] = set()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            data = log.reader.read(offset, 2000, log.log_end_offset).read()
        except CorruptMessageError:
            following = log.reader.next_readable(offset)
            assert following > offset
            assert log.reader.offset_for_bytes(offset, 1, log.log_end_offset)[0] > offset
            lost |= set(range(offset, following))
            offset = following
            continue
        assert data
        begun = offset
        while data:
            header = as_reader(data, offset)
            if header is None:
                # Clients also read again from here, and get a valid batch or an error.
                assert offset > begun
                break
            whole = data[: header.size_bytes]
            epoch = log.reader.epoch_at(header.base_offset)
            if crc32c(whole[21:]) != header.crc or header.leader_epoch != epoch:
                lost |= set(range(offset, header.next_offset))
                assert verify(log, header.base_offset, header.next_offset)
            elif header.base_offset in batches:
                assert whole == batches[header.base_offset]
            assert header.next_offset > offset
            offset, data = header.next_offset, data[header.size_bytes :]
    return lost


@pytest.mark.parametrize("seed", range(60))
def test_randomly_corrupted_log_never_returns_a_wrong_record_or_reuses_an_offset(seed: int) -> None:
    random = Random(seed)
    disk, batches = written(random)
    end = disk.log.log_end_offset
    clean = random.random() < 0.5
    if clean:
        disk.manager.close_clean()
    disk.kill()
    what = [damage(disk, random) for _ in range(random.randint(1, 2))]
    disk.start()
    log = disk.log
    assert log.log_end_offset >= end, what
    lost = check(log, batches)
    touched = any(".log " in each for each in what)
    assert touched or not lost, what
    data = batch(fill=200)
    fresh = append(log, data, epoch=9).base_offset
    assert fresh >= end and fresh not in batches
    batches[fresh] = bytes(data)
    log.flush()
    disk.manager.checkpoint()
    before = check(log, batches)
    log = disk.reopen(clean=clean)
    assert check(log, batches) == before, what
    assert log.reader.read(fresh, 1000, log.log_end_offset).read() == bytes(data)
