"""Tests of Ctrl-C in ``logbus produce``: while it waits for input and while it sends a record."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from broker_lite.cli.interruption import Interruption


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _is_in_the_foreground() -> Iterator[None]:
    """Make SIGINT interrupt the test even if a shell started the test run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_interrupts_a_wait_for_input_but_lets_a_send_finish() -> None:
    def source() -> Iterator[int]:
        yield 1
        press()  # Ctrl-C arrives while the command waits for the next item.
        raise AssertionError("the read continued after Ctrl-C")

    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        reading = source()
        assert interruption.next_of(reading) == 1
        assert interruption.next_of(reading) is None
        assert interruption.is_set
        assert interruption.next_of(iter([2])) is None
    with Interruption() as interruption:
        press()  # Ctrl-C arrives during a send.
        assert interruption.is_set and interruption.next_of(iter([2])) is None
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is before


def test_sigint_that_the_process_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            press()
            assert not interruption.is_set
    finally:
        signal.signal(signal.SIGINT, before)
