"""Tests of ``logbus mirror`` with a source that has unreadable partitions or does not answer."""

from __future__ import annotations

import signal
from threading import Event

import pytest

from broker_lite.cli.main import run
from broker_lite.errors import (
    CorruptMessageError,
    LeaderNotAvailableError,
    LogbusError,
    SourceUnreachableError,
)
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.mirror import Mirror
from broker_lite.mirror.offset_map import OffsetMap
from broker_lite.model import TopicPartition
from broker_lite.wire.fetch import FetchedPartition

WHERE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
EMPTY = FetchedPartition(1, 0, 7, 7, 0, memoryview(b""), None, None, -1, -1)


def test_unreadable_source_partition_fails_a_mirror_only_with_the_option_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    mirror = Mirror("127.0.0.1:1", "127.0.0.1:1", tell=said.append)
    for tp in (WHERE, OTHER):
        mirror.copies[tp] = Copy(tp, "s", "t", OffsetMap())
    fetched = {WHERE: LeaderNotAvailableError("nobody leads it"), OTHER: EMPTY}
    # A missing leader is reported only after REFUSED_MS, because an election is usually short.
    records = mirror._record_sync
    assert list(records.advance(fetched, once=False)) == [OTHER] and not said
    monkeypatch.setattr("broker_lite.mirror.record_sync.REFUSED_MS", 0)
    for _ in range(2):
        records.advance(fetched, once=False)
    records.advance({WHERE: CorruptMessageError("offset 7 is damaged")}, once=False)
    assert said == [
        "t-0: the next records cannot be fetched: nobody leads it; trying again",
        "t-0: the next records cannot be fetched: offset 7 is damaged; trying again",
    ]
    with pytest.raises(LeaderNotAvailableError, match=r"t-0: the next records .* nobody leads it"):
        records.advance(fetched, once=True)
    mirror.close()


def test_mirror_that_is_interrupted_before_the_source_answered_exits_as_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C, exit code 0 would mean that records were copied."""
    monkeypatch.setattr("broker_lite.client.operations.requests.FIRST_CONTACT_MS", 1)
    waited: list[LogbusError | None] = []

    def press(mirror: Mirror, stop: Event) -> bool:
        try:
            return opened(mirror, stop)
        finally:
            waited.append(mirror.hindrance)
            if len(waited) > 1:
                signal.raise_signal(signal.SIGINT)

    opened = Mirror.open
    monkeypatch.setattr(Mirror, "open", press)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run(["mirror", "--from", "127.0.0.1:1", "-b", "127.0.0.1:2"]) == 3
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert [type(error) for error in waited] == [type(None), SourceUnreachableError]
    said = capsys.readouterr()
    assert "trying again" in said.err and said.err.endswith("stopped before anything was copied\n")
    assert said.out == ""
