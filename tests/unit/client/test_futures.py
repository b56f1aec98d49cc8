"""Waiting for what was sent."""

from __future__ import annotations

import threading

import pytest

from broker_lite.client.futures import BatchFuture, Outcome, RecordFuture
from broker_lite.errors import MessageTooLargeError, RequestTimedOutError


def make() -> tuple[Outcome, list[Outcome]]:
    urged: list[Outcome] = []
    return Outcome("t", threading.Condition(), urged.append), urged


def test_waiting_ends_the_linger_and_gives_up_in_time() -> None:
    outcome, urged = make()
    future = RecordFuture(outcome, 0)
    assert not future.done()
    with pytest.raises(RequestTimedOutError):
        future.result(0.01)
    assert urged == [outcome]


def test_a_waiter_is_woken() -> None:
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


def test_callbacks_run_once_done_or_at_once() -> None:
    outcome, _ = make()
    future, called = RecordFuture(outcome, 0), []
    future.add_done_callback(called.append)
    assert called == []
    outcome.finish(None)
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_the_first_error_of_many_rows() -> None:
    good, _ = make()
    bad, _ = make()
    good.finish(None)
    bad.finish(MessageTooLargeError("large"))
    future = BatchFuture([good, bad])
    assert future.done()
    assert isinstance(future.exception(1), MessageTooLargeError)
    assert BatchFuture([]).result(0) == []
