"""Tests of the futures of sent records: waits, callbacks and errors."""

from __future__ import annotations

import threading

import pytest

from broker_lite.client.producing.futures import BatchFuture, Outcome, RecordFuture
from broker_lite.errors import MessageTooLargeError, RequestTimedOutError


def make() -> tuple[Outcome, list[Outcome]]:
    urged: list[Outcome] = []
    return Outcome("t", threading.Condition(), urged.append), urged


def test_waiting_for_the_future_of_a_record_ends_the_linger_of_its_batch() -> None:
    outcome, urged = make()
    future = RecordFuture(outcome, 0)
    assert not future.done()
    with pytest.raises(RequestTimedOutError):
        future.result(0.01)
    assert urged == [outcome]


def test_waiter_of_a_future_wakes_when_the_batch_completes() -> None:
    outcome, _ = make()
    seen: list[BaseException | None] = []
    waiting = threading.Thread(target=lambda: seen.append(RecordFuture(outcome, 0).exception(30)))
    waiting.start()
    error = MessageTooLargeError("large")
    outcome.finish(error)
    with outcome.waking:
        outcome.waking.notify_all()
    waiting.join(30)
    assert seen == [error]
    assert outcome.seen


def test_callback_runs_when_the_future_completes_or_at_once_if_it_is_complete() -> None:
    outcome, _ = make()
    future, called = RecordFuture(outcome, 0), []
    future.add_done_callback(called.append)
    assert called == []
    outcome.finish(None)
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_callbacks_of_one_record_run_in_order() -> None:
    outcome, _ = make()
    first, second, called = RecordFuture(outcome, 0), RecordFuture(outcome, 1), []
    first.add_done_callback(lambda future: called.append(("a", future)))
    second.add_done_callback(lambda future: called.append(("b", future)))
    second.add_done_callback(lambda future: called.append(("c", future)))
    outcome.finish(None)
    assert called == [("a", first), ("b", second), ("c", second)]


def test_shared_callback_of_many_records_does_not_store_their_futures() -> None:
    """Storing a future for each record would slow down garbage collection."""
    outcome, _ = make()
    called: list[RecordFuture] = []

    class Heard:
        def delivered(self, future: RecordFuture) -> None:
            called.append(future)

    heard, futures = Heard(), [RecordFuture(outcome, index) for index in range(4)]
    for future in futures:
        future.add_done_callback(heard.delivered)
    futures[2].add_done_callback(Heard().delivered)
    assert outcome.callbacks is not None
    assert list(outcome.callbacks)[1:4] == [1, 2, 3]
    outcome.finish(None)
    assert called == [*futures, futures[2]]
    waiting = dict.fromkeys(futures, "under way")
    assert [waiting.pop(future) for future in called[:4]] == ["under way"] * 4
    other, _ = make()
    assert RecordFuture(other, 0) != futures[0] != futures[1]


def test_callback_that_raises_does_not_prevent_other_callbacks_of_the_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome, _ = make()
    called: list[RecordFuture] = []

    def fails(_: RecordFuture) -> None:
        raise ValueError("mine")

    futures = [RecordFuture(outcome, index) for index in range(2)]
    futures[0].add_done_callback(fails)
    futures[1].add_done_callback(called.append)
    outcome.finish(None)
    assert called == [futures[1]]
    assert "a callback of a sent record failed" in caplog.text


def test_callback_that_is_added_while_the_record_completes_runs_once() -> None:
    """``add_done_callback`` takes no lock, so the sender's thread may complete the record
    meanwhile."""
    for _ in range(200):
        outcome, _ = make()
        called: list[RecordFuture] = []
        futures = [RecordFuture(outcome, index) for index in range(100)]
        ending = threading.Thread(target=outcome.finish, args=(None,))
        for future in futures[:50]:
            future.add_done_callback(called.append)
        ending.start()
        for future in futures[50:]:
            future.add_done_callback(called.append)
        ending.join(30)
        assert sorted(called, key=id) == sorted(futures, key=id)


def test_batch_future_raises_the_first_error_of_its_rows() -> None:
    good, _ = make()
    bad, _ = make()
    good.finish(None)
    bad.finish(MessageTooLargeError("large"))
    future = BatchFuture([good, bad])
    assert future.done()
    assert isinstance(future.exception(1), MessageTooLargeError)
    assert BatchFuture([]).result(0) == []
