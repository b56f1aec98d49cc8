"""Tests of ``KeyedState``: the last value of each key in one partition of an internal topic.

The tests compare it with a dictionary. The topic has no compaction by key. Instead, a *copy*
writes all values again in several batches, after which older records can be deleted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from support.row_codec import decode_rows

from broker_lite.errors import CorruptMessageError, MessageTooLargeError, NotEnoughReplicasError
from broker_lite.record.batch import BatchHeader, read_header, stamp
from broker_lite.transactions import keyed_state
from broker_lite.transactions.keyed_state import (
    AppendState,
    DeleteBefore,
    KeyedState,
    Replay,
    UpsertsSettled,
)

REFUSED = NotEnoughReplicasError("refused")


@dataclass
class Stored:
    """A batch as the log stores it: its header has the assigned offset."""

    header: BatchHeader
    buffer: memoryview


class Log:
    """A log of batches with a high watermark, and the ``KeyedState`` whose batches it stores."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.start = self.end = self.high_watermark = 0
        self.queue: list[AppendState] = []
        """Batches that the state wrote and the log has not appended yet, in order."""
        self.state = KeyedState()
        self.token = 0
        self.settled: dict[int, bool] = {}
        self.puts: dict[int, tuple[bytes, bytes | None]] = {}
        self.model: dict[bytes, bytes] = {}
        """The expected value of each key, from the puts reported as committed."""

    def put(self, key: bytes, value: bytes | None, flags: int = 0) -> int:
        self.token += 1
        self.puts[self.token] = key, value
        self.state.put(self.token, key, value, flags)
        return self.token

    def turn(self) -> list[AppendState]:
        writes = self.state.turn(0)
        self.queue += writes
        return writes

    def take(self) -> None:
        """Append the oldest batch in ``queue`` to the log."""
        write = self.queue.pop(0)
        base = self.end
        header = stamp(write.batch, read_header(write.batch), base, 3)
        self.batches.append(Stored(header, memoryview(write.batch)))
        self.end = header.next_offset
        self.state.appended(write.number, base, self.end)

    def refuse(self) -> None:
        self._note(self.state.refused(self.queue.pop(0).number, REFUSED))

    def commit(self, offset: int | None = None) -> None:
        self.high_watermark = self.end if offset is None else offset
        self._note(self.state.advanced(self.high_watermark))

    def _note(self, effects: list[keyed_state.Effect]) -> None:
        for effect in effects:
            match effect:
                case UpsertsSettled(tokens, error):
                    for token in tokens:
                        assert token not in self.settled
                        self.settled[token] = error is None
                        if error is None:
                            key, value = self.puts[token]
                            self.model.pop(key, None)
                            self.model |= {} if value is None else {key: value}
                case DeleteBefore(offset):
                    self.start = max(self.start, offset)

    def run(self) -> None:
        """Append and commit all batches that the ``KeyedState`` still has to write."""
        while self.turn() or self.queue:
            while self.queue:
                self.take()
            self.commit()

    def load(self, end: int | None = None) -> Replay:
        end = self.high_watermark if end is None else end
        replay = Replay(self.start)
        for one in self.batches:
            if self.start <= one.header.base_offset < end:
                replay.batch(one.buffer, one.header)
        return replay


@pytest.fixture
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_state, "COPY_BYTES_MIN", 500)
    monkeypatch.setattr(keyed_state, "BATCH_BYTES", 20)


@pytest.mark.usefixtures("small_copies")
@pytest.mark.parametrize("seed", range(12))
def test_coordinator_state_loaded_from_the_log_equals_the_committed_values_at_every_step(
    seed: int,
) -> None:
    rng = random.Random(seed)
    log = Log()
    keys = [b"k%d" % number for number in range(rng.choice((2, 6, 20)))]
    lost = 0
    for _ in range(200):
        step = rng.random()
        if step < 0.4:
            key = rng.choice(keys)
            value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(8))
            flags = rng.choice((0, 0, 1))
            log.put(key, value, flags)
        elif step < 0.6:
            log.turn()
        elif step < 0.8 and log.queue:
            if rng.random() < 0.15:
                log.refuse()
            else:
                log.take()
        elif log.batches:
            ends = [one.header.next_offset for one in log.batches]
            ahead = [end for end in ends if end >= log.high_watermark]
            log.commit(rng.choice(ahead))
        loaded = log.load().state()
        assert loaded.values == log.state.values == log.model
        assert loaded.flags == log.state.flags
        if rng.random() < 0.01:
            # A new leader loads the log. Queued appends are lost.
            log.queue.clear()
            log.commit()
            log.state, lost = log.load().state(), log.token
    log.run()
    assert set(range(lost + 1, log.token + 1)) <= set(log.settled)
    assert log.load().state().values == log.state.values == log.model
    assert log.state.live_bytes == sum(len(k) + len(v) for k, v in log.state.values.items())


@pytest.mark.usefixtures("small_copies")
def test_state_log_keeps_the_last_value_of_each_key_after_old_records_are_deleted() -> None:
    log = Log()
    for number in range(200):
        log.put(b"k%d" % (number % 7), b"%d" % number)
        log.run()
    assert log.load().state().values == {b"k%d" % (n % 7): b"%d" % n for n in range(193, 200)}
    assert log.start > 0


@pytest.mark.usefixtures("small_copies")
def test_full_copy_of_the_keyed_state_omits_a_key_with_a_pending_append() -> None:
    log = begun_copy([(b"a", b"1"), (b"b", b"1")])
    log.put(b"a", b"2")
    upsert, a_slice = log.turn()
    assert b"2" in bytes(upsert.batch)
    assert b"a" not in [key for key, _ in rows_of(a_slice)]
    log.take()
    log.take()
    log.commit()
    assert rows_of(log.turn()[0])[0][0] is None, (
        "the record that ends the copy follows, as a=2 is in the log"
    )


@pytest.mark.usefixtures("small_copies")
def test_copy_of_the_state_includes_a_key_whose_append_was_refused() -> None:
    log = begun_copy([(b"a", b"1"), (b"b", b"1")])
    log.put(b"a", b"2")
    log.turn()
    log.refuse()
    log.take()
    log.commit()
    (later,) = log.turn()
    assert rows_of(later) == [(b"a", b"\x001")]


@pytest.mark.usefixtures("small_copies")
def test_older_state_records_are_deleted_only_once_a_full_copy_of_the_state_is_committed() -> None:
    log = begun_copy([(b"a", b"1"), (b"b", b"1")])
    for _ in range(4):
        log.turn()
        while log.queue:
            log.take()
            assert log.start == 0
        before = log.high_watermark
        log.commit()
        if log.start:
            assert before < log.end
            break
    assert log.start > 0
    assert log.load().state().values == {b"a": b"1", b"b": b"1"}


@pytest.mark.usefixtures("small_copies")
def test_refused_write_of_a_state_copy_is_repeated_after_the_next_commit() -> None:
    log = begun_copy([(b"a", b"1"), (b"b", b"1")])
    (a_slice,) = log.turn()
    log.refuse()
    assert log.turn() == []
    log.put(b"c", b"1")
    log.turn()
    log.take()
    log.commit()
    assert rows_of(log.turn()[0]) == rows_of(a_slice)


@pytest.mark.usefixtures("small_copies")
def test_new_leader_deletes_state_records_that_a_full_copy_of_the_state_replaces() -> None:
    log = begun_copy([(b"a", b"1")])
    log.run()
    begun, log.start = log.start, 0
    assert begun > 0
    assert log.load().delete_before == begun
    assert log.load(log.batches[-1].header.base_offset).delete_before is None


def test_load_refuses_a_full_copy_of_the_state_with_missing_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed_state, "COPY_BYTES_MIN", 500)
    log = begun_copy([(b"a", b"1"), (b"b", b"1")])
    log.run()
    del log.batches[-2]  # Delete the only slice, which precedes the record that ends the copy.
    with pytest.raises(CorruptMessageError, match="declares 2 keys, but has only"):
        log.load()


def test_values_written_in_one_event_loop_iteration_share_a_batch() -> None:
    log = Log()
    for number in range(100):
        log.put(b"%d" % number, b"v")
    (write,) = log.turn()
    assert read_header(write.batch).record_count == 100


def test_many_small_batches_in_the_state_log_trigger_a_full_copy_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed_state, "COPY_BATCHES", 10)
    log = Log()
    for number in range(30):
        log.put(b"k", b"%d" % number)
        log.run()
    assert log.start > 0
    assert log.load().state().values == {b"k": b"29"}


def test_value_put_into_the_state_stays_pending_until_its_record_is_committed() -> None:
    log = Log()
    token = log.put(b"a", b"1")
    log.turn()
    log.take()
    assert log.state.advanced(0) == []
    assert log.state.values == {}
    log.commit()
    assert log.settled == {token: True}


def test_value_above_the_size_limit_of_the_state_is_refused() -> None:
    with pytest.raises(MessageTooLargeError, match="at most"):
        KeyedState().put(1, b"k", bytes(keyed_state.VALUE_BYTES_MAX))


def begun_copy(rows: list[tuple[bytes, bytes]]) -> Log:
    """Return a state log that has begun to copy all its values; the next call of ``turn`` returns
    the first batch of the copy.
    """
    log = Log()
    for key, value in rows:
        log.put(key, value)
    for _ in range(200):
        writes = log.turn()
        while log.queue:
            log.take()
        log.commit()
        if any(key is None for write in writes for key, _ in rows_of(write)):
            return log
        log.put(b"filler", bytes(15))
        log.put(b"filler", None)
    raise AssertionError("no copy began")


def rows_of(write: AppendState) -> list[tuple[bytes | None, bytes | None]]:
    return [(row.key, row.value) for row in decode_rows(write.batch, read_header(write.batch))]
