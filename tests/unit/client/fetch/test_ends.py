"""Tests of ``EndOffsetsWatch``, which keeps end offsets current with long polls. The test answers
all requests."""

from __future__ import annotations

from typing import Any

import pytest
from support.client_world import ONE, TOPIC_ID, Asked, World

from broker_lite.client.fetch import ends
from broker_lite.client.fetch.ends import REFRESH_MS, EndOffsetsWatch
from broker_lite.client.operations import cluster
from broker_lite.config.client_security import NO_SECURITY
from broker_lite.errors import (
    ClosedError,
    FencedLeaderEpochError,
    InvalidConfigError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.cluster import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from broker_lite.wire.calls.offsets import ListedPartition, ListedTopic, ListOffsetsResponse
from broker_lite.wire.fetch import PartitionAnswer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Reactor(World):
    """Stands for the thread and connections of an ``EndOffsetsWatch``. ``open`` has the connections
    that the watch has opened and not closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: set[tuple[Endpoint, str]] = set()

    def start(self, on_crash: Any) -> None:
        """Start no thread: the test itself runs the reactor."""

    def request(self, send: Any, on_answer: Any) -> None:
        self.open.add((send.endpoint, send.lane))
        super().request(send, on_answer)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        self.open.discard((endpoint, lane))
        super().disconnect(endpoint, lane)


class Bench:
    """A watch of the end offsets of topic ``t``.

    The test answers the long polls of the watch. All other requests are answered at once, except
    ListOffsets while ``holds_lookups`` is set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refresh_ms: float = REFRESH_MS) -> None:
        self.reactor = reactor = Reactor()
        self.names, self.partitions, self.holds_lookups = ["t"], 1, False
        self.epoch = 5
        monkeypatch.setattr(ends, "Reactor", lambda *_: reactor)
        monkeypatch.setattr(cluster, "monotonic_ms", reactor.now_ms)
        reactor.automatic[ApiKey.METADATA] = self.metadata
        reactor.automatic[ApiKey.LIST_OFFSETS] = self.list_offsets
        reactor.automatic[ApiKey.FETCH] = self.fetch
        self.watch = EndOffsetsWatch("one:1", ["t"], refresh_ms=refresh_ms)
        reactor.run()

    def metadata(self, asked: Asked) -> None:
        rows = tuple(
            MetadataPartition(0, n, 1, self.epoch, (1,), (1,), ()) for n in range(self.partitions)
        )
        topics = tuple(
            MetadataTopic(0, name, TOPIC_ID, False, rows)
            for name in self.names
            if name in asked.message.topics
        )
        brokers = (MetadataBroker(1, "one", 1, None),)
        self.reply(asked, MetadataResponse(0, brokers, "c", 1, topics))

    def list_offsets(self, asked: Asked) -> None:
        if not self.holds_lookups:
            self.reply(asked, self.listed(asked))

    def listed(self, asked: Asked) -> ListOffsetsResponse:
        topics = tuple(
            ListedTopic(
                topic.name,
                tuple(
                    ListedPartition(row.partition_index, 0, -1, 7, 5) for row in topic.partitions
                ),
            )
            for topic in asked.message.topics
        )
        return ListOffsetsResponse(0, topics)

    def fetch(self, asked: Asked) -> None:
        if asked.message.max_wait_ms == 0:
            answers = [
                PartitionAnswer(row.partition, 0, 7, 7)
                for topic in asked.message.topics
                for row in topic.partitions
            ]
            self.reactor.call_soon(lambda: asked.fetched(answers))

    def reply(self, asked: Asked, answer: Any) -> None:
        self.reactor.asked.remove(asked)
        self.reactor.call_soon(lambda: asked.on_answer(answer))

    def poll(self) -> Asked:
        return self.reactor.the(ApiKey.FETCH)


def test_end_offsets_stay_current_after_an_out_of_range_error_during_a_metadata_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the refresh raised KeyError and ended the watch's thread. End offsets then never
    changed again, and a Spark query stood still."""
    bench = Bench(monkeypatch)
    assert bench.watch.snapshot().ends[T0].offset == 7
    bench.partitions, bench.holds_lookups = 2, True
    bench.reactor.run(REFRESH_MS)
    lookup = bench.reactor.the(ApiKey.LIST_OFFSETS)
    bench.poll().fetched([PartitionAnswer(0, OffsetOutOfRangeError.code)])
    assert T0 not in bench.watch.snapshot().ends
    bench.holds_lookups = False
    bench.reply(lookup, bench.listed(lookup))
    bench.reactor.run(1000)
    assert {tp: end.offset for tp, end in bench.watch.snapshot().ends.items()} == {T0: 7, T1: 7}


def test_end_offsets_watch_closes_the_connection_of_a_long_poll_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: every poll that a leader refused left an open connection behind, because the next
    poll used another connection.
    """
    bench = Bench(monkeypatch)
    for _ in range(5):
        bench.poll().fetched([PartitionAnswer(0, NotLeaderError.code)])
        bench.reactor.run(2000)
    assert bench.watch.error is None
    # One connection is for metadata and lookups, the other for the poll.
    assert len(bench.reactor.open) == 2
    assert {endpoint for endpoint, _ in bench.reactor.open} == {ONE}


def test_end_offsets_watch_repeats_a_refresh_during_which_a_poll_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a poll failed because the partitions had changed, but the watch saw the change
    only at the next periodic refresh."""
    bench = Bench(monkeypatch, refresh_ms=1000)
    bench.partitions, bench.holds_lookups = 2, True
    bench.reactor.run(1000)
    bench.partitions = 3
    bench.poll().fetched([PartitionAnswer(0, NotLeaderError.code)])
    bench.reactor.run(100)
    bench.holds_lookups = False
    lookup = bench.reactor.the(ApiKey.LIST_OFFSETS)
    bench.reply(lookup, bench.listed(lookup))
    bench.reactor.run(100)
    assert len(bench.watch.snapshot().ends) == 3


def test_end_offset_is_stored_with_the_leader_epoch_in_which_it_was_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the leader began epoch 6 between the metadata response and the fetch. The
    client stored the end offset with epoch 5. A Spark query found records of epoch 6 below it,
    and failed with a data loss error, as if the log had been truncated and rewritten."""

    def fetch(bench: Bench, asked: Asked) -> None:
        bench.epoch = 6
        [row] = asked.message.topics[0].partitions
        is_fenced = 0 <= row.current_leader_epoch < 6
        answer = PartitionAnswer(0, FencedLeaderEpochError.code if is_fenced else 0, 12, 12)
        if asked.message.max_wait_ms == 0:
            bench.reactor.call_soon(lambda: asked.fetched([answer]))

    monkeypatch.setattr(Bench, "fetch", fetch)
    bench = Bench(monkeypatch)
    bench.reactor.run(1000)
    assert bench.watch.snapshot().ends[T0][:2] == (12, 6)


def test_end_offsets_watch_checks_the_address_before_it_opens_file_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: an invalid address left three file descriptors open."""

    def opened(*_: Any) -> Any:
        raise AssertionError("the reactor was created before the address was checked")

    monkeypatch.setattr(ends, "Reactor", opened)
    with pytest.raises(InvalidConfigError):
        EndOffsetsWatch("host:port", ["t"], security=NO_SECURITY)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_end_offsets_watch_raises_an_error_after_its_thread_has_ended() -> None:
    """Regression: a watch whose thread had ended returned its last snapshot as if it were current,
    and a Spark query waited for records without an error."""

    def fail() -> None:
        raise RuntimeError("planted")

    watch = EndOffsetsWatch("127.0.0.1:1", ["t"])
    watch._reactor.call_soon(fail)
    watch._reactor._thread.join(30)
    assert isinstance(watch.error, ClosedError)
    assert "planted" in watch.error.message
