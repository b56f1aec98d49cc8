"""``FetchEngine``: prefetches the records of all partitions of a consumer.

It runs on one thread, that of a *shell* (the consumer's background thread, or its event loop). Each
leader has several connections, so that an idle partition never delays a busy one:

- ``fetch`` is for partitions with records before the high watermark. The leader answers at once.
- ``tail`` is a long poll for partitions that the consumer has read up to the high watermark.
- A third connection serves partitions whose records must come over the network, while other
  partitions of this leader are read from its files on this machine.

The engine puts batches into the queue ``fetched``. The consumer's reader, on its own thread, takes
them, checks their CRCs and decodes them. Each seek gives a partition a new generation number, and
the reader ignores batches with an older one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from broker_lite.client.discovery import join
from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.fetch.position import Corrupt, Failed, FetchPosition, Retry, Stored
from broker_lite.client.in_place.partitions import AHEAD_BYTES, LOCAL_BYTES_MIN, InPlace
from broker_lite.client.operations import offset_requests, requests
from broker_lite.client.operations.cluster import (
    Cluster,
    ClusterView,
    backoff_ms,
    deleted_topic,
    made_again,
)
from broker_lite.client.operations.overdue import OverdueRequests
from broker_lite.client.operations.silence import Silence
from broker_lite.client.operations.throttles import Throttles
from broker_lite.client.received import WalkResult
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import FetchExchange, Send, Shell, spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_EPOCH, NULL_TOPIC_ID, Endpoint, TopicPartition
from broker_lite.record.walker import LogBatch
from broker_lite.wire.fetch import NO_FILES, FetchedPartition, FetchPartition, FetchResponse

logger = logging.getLogger("logbus.consumer")

REFRESH_MS = 30_000
"""Milliseconds between two metadata refreshes that look for new partitions."""
BUFFERED_FETCHES = 2
"""Maximum number of full fetch responses that are buffered.

A partition is not fetched while it has ``BUFFERED_FETCHES * partition_fetch_bytes`` buffered, nor
while all partitions together have ``BUFFERED_FETCHES * fetch_max_bytes`` buffered."""
NO_EPOCHS: Mapping[TopicPartition, int] = MappingProxyType({})
DELETED_AFTER_REFRESHES = 3
"""Number of metadata refreshes in a row that lack a topic, after which it counts as deleted."""


class FetchedBatches(NamedTuple):
    """An entry of the queue ``fetched``: batches of one partition, an error, or a skipped range.

    ``error`` is why the engine stopped fetching the partition. ``skipped`` is a corrupt offset
    range that ``on_corrupt="skip"`` skipped. Each seek raises the partition's ``generation``; the
    reader ignores entries with an older generation."""

    tp: TopicPartition
    generation: int
    batches: list[LogBatch]
    size_bytes: int
    error: LogbusError | None
    skipped: tuple[int, int] | None = None


class _FetchedSource:
    """One partition of a ``FetchEngine``: its position, its fetch in flight and its buffered
    bytes."""

    __slots__ = (
        "buffered_bytes",
        "generation",
        "high_watermark",
        "is_paused",
        "is_stopped",
        "lane",
        "position",
        "retry_at_ms",
    )

    def __init__(self, position: FetchPosition, generation: int) -> None:
        self.position = position
        self.is_paused = False
        self.lane = ""
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """Reset the partition's state after a seek, which raises ``generation``."""
        self.generation = generation
        self.buffered_bytes = 0
        self.is_stopped = False
        self.retry_at_ms = 0.0
        self.high_watermark = -1


class FetchEngine:
    """The fetches of one consumer, for all its partitions.

    ``fetched`` is the queue of batches for the reader. ``on_fetched`` is called after each append
    to it, ``on_view`` after each metadata refresh. ``in_place`` reads the segment files of brokers
    on this machine, which blocks the engine's thread during disk I/O; None disables it."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        on_fetched: Callable[[], None],
        on_view: Callable[[ClusterView], None],
        in_place: InPlace | None = None,
    ) -> None:
        self.fetched: deque[FetchedBatches] = deque()
        self._shell = shell
        self._cluster = cluster
        self._config = config
        self._isolation_level = offset_requests.isolation_code(config.isolation_level)
        self._on_fetched = on_fetched
        self._on_view = on_view
        self._in_place = in_place or InPlace(lambda endpoint, lane: False)
        self.topic_ids: dict[str, str] = {}
        """The id that each topic had when the consumer first read it.

        A recreated topic's id differs, and the consumer's offsets are meaningless in it."""
        self._sources: dict[TopicPartition, _FetchedSource] = {}
        self._polls: dict[tuple[Endpoint, str], dict[TopicPartition, int]] = {}
        """The fetch in flight on each connection (leader, and name of one of several connections to
        it): its partitions, each with its generation (raised by each seek) then.

        A fetch whose dict is no longer here was cancelled."""
        self._overdue: OverdueRequests[str] = OverdueRequests(
            shell, cluster, lambda tps: self._renew()
        )
        self._buffer_bytes = BUFFERED_FETCHES * config.partition_fetch_bytes
        self._total_bytes_max = BUFFERED_FETCHES * config.fetch_max_bytes
        self._total_bytes = 0
        self._consumed: deque[tuple[TopicPartition, int, int]] = deque()
        """Partition, generation (raised by each seek) and bytes of each fetch result that the
        reader took since the last ``pump``."""
        self._is_held = False
        """Whether some partition is not fetched because too many bytes are buffered."""
        self._throttles = Throttles()
        self._is_renewing = False
        self._silence = Silence(join(cluster.bootstrap), "consumer", shell.now_ms, logger)
        self._missing: dict[str, int] = {}
        self._timer = ResettableTimer(shell.later, self.pump)
        self._refresh_timer = ResettableTimer(shell.later, self._refresh)
        self._is_closed = False

    # Methods that the reader uses. They must run on the thread of the network I/O (see ``post``),
    # unless a docstring says otherwise.

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the thread of the network I/O. Any thread may call this."""
        self._shell.call_soon(callback)

    def pin(self, topic: str) -> str:
        """Return the id that the topic had when the consumer first read it. Any thread may call
        this."""
        topic_id = self.topic_ids.get(topic) or self._cluster.view.topic_id(topic)
        return topic_id if topic_id == NULL_TOPIC_ID else self.topic_ids.setdefault(topic, topic_id)

    def refetch_corrupt(self, tp: TopicPartition, offset: int, generation: int) -> None:
        """Fetch the corrupt batch at ``offset`` again, also from a new leader.

        These fetches make the leader verify the batch, and repair it with another replica's
        copy."""
        self._in_place.refuse(tp)
        self.begin({tp: (offset, generation)}, is_repair=True)

    def begin(
        self,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
        *,
        is_repair: bool = False,
    ) -> None:
        """Fetch partitions from new offsets on. ``offsets`` has the offset and the generation of
        each.

        Each seek raises a partition's generation number. ``epochs`` holds the leader epoch of the
        record before each offset, if known. The leader compares it with its log, to detect a
        truncation (KIP-320). With ``is_repair``, the leader repairs the batches at the offsets."""
        if self._is_closed:
            return
        for tp, (offset, generation) in offsets.items():
            source, epoch = self._sources.get(tp), epochs.get(tp, NO_EPOCH)
            if source is None:
                position = FetchPosition(tp, self.pin(tp.topic), offset, last_epoch=epoch)
                self._sources[tp] = _FetchedSource(position, generation)
            else:
                self._total_bytes -= source.buffered_bytes
                source.position.seek(offset, epoch)
                if is_repair:
                    source.position.begin_repair(self._shell.now_ms())
                source.begin(generation)
                self._abandon(tp, source)
        if not self._refresh_timer.is_set:
            self._refresh_timer.set(REFRESH_MS)
        self.pump()

    def end(self, tp: TopicPartition) -> None:
        """Stop fetching a partition and discard its state."""
        source = self._sources.get(tp)
        if source is not None:
            self._total_bytes -= source.buffered_bytes
            # ``_abandon`` closes a connection, and the closing runs ``pump``. Set ``is_stopped``
            # first, or ``pump`` fetches the partition again.
            source.is_stopped = True
            self._abandon(tp, source)
            self._in_place.end(tp)
            del self._sources[tp]
            self.pump()

    def close(self) -> None:
        """Stop fetching, and close the segment files that are open for local reads.

        Call it after the I/O thread has ended, or, on an event loop, after the brokers'
        connections were closed."""
        self._is_closed = True
        self._overdue.close()
        self._timer.cancel()
        self._refresh_timer.cancel()
        self._sources.clear()
        self._polls.clear()
        self._in_place.close_all()

    def pause(self, tps: Iterable[TopicPartition], is_paused: bool) -> None:
        """Pause or resume the fetches of these partitions."""
        for tp in tps:
            if tp in self._sources:
                self._sources[tp].is_paused = is_paused
                if is_paused:
                    # Close the log file from which the partition is read in place: while the file
                    # is open, the file system does not free the space of a deleted segment.
                    self._in_place.close(tp)
        self.pump()

    def consumed(self, fetched: FetchedBatches) -> None:
        """Record that the reader took ``fetched`` from the queue, which makes space for more.
        Thread-safe."""
        # Wake the I/O thread only if a partition waits for free buffer space: each wake-up takes
        # the interpreter lock from the reader. No wake-up is missed: ``consumed`` appends before it
        # reads ``_is_held``, and ``pump`` sets ``_is_held`` before it reads ``_consumed``.
        self._consumed.append((fetched.tp, fetched.generation, fetched.size_bytes))
        if self._is_held:
            self.post(self.pump)

    def _subtract_consumed(self) -> None:
        while self._consumed:
            tp, generation, size_bytes = self._consumed.popleft()
            source = self._sources.get(tp)
            if source is not None and source.generation == generation:
                source.buffered_bytes -= size_bytes
                self._total_bytes -= size_bytes

    def _abandon(self, tp: TopicPartition, source: _FetchedSource) -> None:
        """Cancel the partition's fetch in flight, whose records are no longer needed."""
        self._in_place.close(tp)
        for (endpoint, lane), tps in list(self._polls.items()):
            if tp in tps and source.lane == lane:
                # Close the connection instead of waiting for the response, which could take half a
                # second. ``pump`` fetches the other partitions of this request again.
                self._hang_up(endpoint, lane)

    def _hang_up(self, endpoint: Endpoint, lane: str) -> None:
        self._end_poll(endpoint, lane)
        self._shell.disconnect(endpoint, lane)

    # Methods that send fetches and handle the responses.

    def pump(self) -> None:
        """Send a fetch on every connection that has none in flight, for partitions that need
        records.

        Also read the next batches from segment files that are open for local reads."""
        self._is_held = False
        self._subtract_consumed()
        now_ms = self._shell.now_ms()
        self._throttles.forget(now_ms)
        plan: dict[tuple[Endpoint, str], list[TopicPartition]] = {}
        due_ms = float("inf")
        for tp, source in self._sources.items():
            if source.lane or source.is_paused or source.is_stopped:
                continue
            if tp in self._in_place:
                self._read_on(tp, source)
                if tp in self._in_place:
                    self._is_held = True
                    continue
            if (
                source.buffered_bytes >= self._buffer_bytes
                or self._total_bytes >= self._total_bytes_max
            ):
                self._is_held = True
                continue
            if source.retry_at_ms > now_ms:
                due_ms = min(due_ms, source.retry_at_ms)
                continue
            leader = self._cluster.view.leader(tp)
            if leader is None:
                self._renew()
                continue
            if self._throttles.until_ms(leader) > now_ms:
                due_ms = min(due_ms, self._throttles.until_ms(leader))
                continue
            is_behind = source.high_watermark < 0 or source.position.offset < source.high_watermark
            plan.setdefault((leader, "fetch" if is_behind else "tail"), []).append(tp)
        for (leader, group), tps in plan.items():
            for lane, part in self._in_place.lanes(leader, group, tps):
                if (leader, lane) not in self._polls:
                    self._fetch(leader, lane, part)
        if due_ms == float("inf"):
            self._timer.cancel()
        else:
            self._timer.set(due_ms - now_ms)
        if self._is_held and self._consumed:
            self.post(self.pump)

    def _fetch(self, leader: Endpoint, lane: str, tps: list[TopicPartition]) -> None:
        config, view = self._config, self._cluster.view
        rows: list[tuple[str, FetchPartition]] = []
        generations: dict[TopicPartition, int] = {}
        is_repair = False
        for tp in tps:
            source = self._sources[tp]
            source.lane = lane
            generations[tp] = source.generation
            epoch = view.leader_epoch(tp)
            rows.append(source.position.request(epoch, config.partition_fetch_bytes))
            is_repair = is_repair or source.position.repair_until_ms > 0
        self._polls[leader, lane] = generations
        is_tail = lane == "tail"
        wait_ms = config.fetch_max_wait_ms if is_tail or config.fetch_min_bytes > 1 else 0
        self._overdue.sent(leader, lane, tps, wait_ms)
        may_read_files = (
            not (is_tail or is_repair) and config.partition_fetch_bytes >= LOCAL_BYTES_MIN
        )
        request = fetch_request(
            rows,
            wait_ms,
            self._isolation_level,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            is_repair=is_repair,
            files=self._in_place.offer(leader, lane, tps) if may_read_files else NO_FILES,
        )
        timeout_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        self._shell.request(
            Send(leader, FetchExchange(request), timeout_ms, lane),
            lambda answer: self._fetched(leader, lane, generations, answer),
        )

    def _fetched(
        self,
        leader: Endpoint,
        lane: str,
        generations: dict[TopicPartition, int],
        answer: FetchResponse | LogbusError,
    ) -> None:
        live = [tp for tp, row in generations.items() if self._is_live(tp, row, lane)]
        if self._polls.get((leader, lane)) is generations:
            self._end_poll(leader, lane)
        if isinstance(answer, FetchResponse):
            self._throttles.note(leader, answer.throttle_time_ms, self._shell.now_ms())
        topic_ids = {tp: self._sources[tp].position.topic_id for tp in live}
        for tp, row in answers_of(answer, topic_ids, self._cluster.user).items():
            self._take(tp, row)
        self.pump()

    def _end_poll(self, leader: Endpoint, lane: str) -> None:
        self._overdue.answered(leader, lane)
        for tp in self._polls.pop((leader, lane)):
            self._sources[tp].lane = ""

    def _is_live(self, tp: TopicPartition, generation: int, lane: str) -> bool:
        source = self._sources.get(tp)
        return source is not None and source.generation == generation and source.lane == lane

    def _take(self, tp: TopicPartition, row: FetchedPartition | LogbusError) -> None:
        source = self._sources[tp]
        evaluation = source.position.evaluate(row)
        if not isinstance(row, LogbusError) and row.diverging is None:
            source.high_watermark = row.high_watermark
        match evaluation:
            case WalkResult():
                if evaluation.batches:
                    self._add(tp, source, evaluation)
                else:
                    # The leader has no records after this position yet. Lower the known high
                    # watermark, so that the next fetch of the partition uses the ``tail``
                    # connection, on which fetches wait for new records.
                    source.high_watermark = min(source.high_watermark, source.position.offset)
            case Stored(stored, walker):
                if not source.is_paused:  # A paused partition is fetched again on resume.
                    self._in_place.open(tp, stored, walker)
            case Corrupt(error):
                self._damaged(tp, error)
            case Failed(error):
                self._stop(tp, error)
            case Retry(LogbusError(), attempt):
                self._retry(source, attempt)

    def _read_on(self, tp: TopicPartition, source: _FetchedSource) -> None:
        """Read batches of the partition from the leader's open segment file, until AHEAD_BYTES of
        them wait for the reader."""
        while source.buffered_bytes < AHEAD_BYTES and self._total_bytes < self._total_bytes_max:
            read = self._in_place.read(tp)
            if read is not None:
                source.position.advance(read)
                self._add(tp, source, read)
            if tp not in self._in_place:
                return

    def _add(self, tp: TopicPartition, source: _FetchedSource, walked: WalkResult) -> None:
        size_bytes = sum(batch.header.size_bytes for batch in walked.batches)
        source.buffered_bytes += size_bytes
        self._total_bytes += size_bytes
        self._queue(FetchedBatches(tp, source.generation, walked.batches, size_bytes, None))

    def _queue(self, fetched: FetchedBatches) -> None:
        self.fetched.append(fetched)
        self._on_fetched()

    def _stop(self, tp: TopicPartition, error: LogbusError) -> None:
        """Report an error to the reader, and stop fetching the partition until the reader seeks."""
        source = self._sources[tp]
        source.is_stopped = True
        self._in_place.close(tp)
        self._queue(FetchedBatches(tp, source.generation, [], 0, error))

    def _retry(self, source: _FetchedSource, attempt: int) -> None:
        """Refresh the metadata, and fetch the partition again after a backoff."""
        pause_ms = backoff_ms(attempt, self._config.retry_backoff_ms)
        source.retry_at_ms = self._shell.now_ms() + pause_ms
        if not self._is_renewing:
            self._cluster.ask_another()
        self._renew()

    def may_be_intact(self, tp: TopicPartition) -> bool:
        """Return whether a second fetch of a corrupt batch may return an intact copy: the batch was
        read from a local file, or other replicas exist. Any thread may call it."""
        return self._in_place.was_read(tp) or self._cluster.view.has_copies(tp)

    def _damaged(self, tp: TopicPartition, error: CorruptMessageError) -> None:
        source = self._sources[tp]
        position, has_copies = source.position, self._cluster.view.has_copies(tp)
        if position.awaits_repair(self._shell.now_ms(), has_copies):
            self._retry(source, position.failures - 1)
            return
        if self._config.on_corrupt != "skip":
            message = f"{position.located(error).message}; to skip it, set on_corrupt='skip'"
            self._stop(tp, CorruptMessageError(message))
            return
        generation, offset = source.generation, position.offset
        source.retry_at_ms = float("inf")

        def passed(found: int | LogbusError) -> None:
            if self._sources.get(tp) is not source or source.generation != generation:
                return
            source.retry_at_ms = 0.0
            if isinstance(found, LogbusError):
                self._stop(tp, found)
            else:
                position.skip_to(found)
                self._queue(FetchedBatches(tp, generation, [], 0, None, (offset, found)))
            self.pump()

        deadline_ms = self._shell.now_ms() + self._config.request_timeout_ms
        operation = offset_requests.offset_after_corrupt(
            self._cluster, tp, offset, position.topic_id, deadline_ms
        )
        spawn(self._shell, operation, passed)

    # Methods that refresh the metadata and detect deposed leaders.

    def _give_up_deposed(self) -> None:
        """Cancel overdue fetches of partitions that have a new leader in the metadata. The next
        ``pump`` fetches from that leader."""
        for leader, lane in self._overdue.deposed():
            self._hang_up(leader, lane)

    def _refresh(self) -> None:
        self._refresh_timer.set(REFRESH_MS)
        self._renew()

    def _renew(self) -> None:
        if self._is_renewing:
            return
        self._is_renewing = True
        names = tuple({tp.topic: None for tp in self._sources})
        spawn(self._shell, requests.refresh_once(self._cluster, names), self._renewed)

    def _renewed(self, view: ClusterView | LogbusError) -> None:
        problem = view if isinstance(view, LogbusError) else None
        self._silence.check(problem, is_known=self._cluster.has_answered)
        if isinstance(view, ClusterView):
            topics = {tp.topic for tp in self._sources}
            others = {topic for topic in topics if not self._check_identity(topic, view)}
            if others:
                rest = {name: row for name, row in view.topics.items() if name not in others}
                view = replace(view, topics=rest)
            self._on_view(view)
            self._give_up_deposed()

        def go_on() -> None:
            self._is_renewing = False
            self.pump()

        failures = max((source.position.failures for source in self._sources.values()), default=0)
        self._shell.later(backoff_ms(failures, self._config.retry_backoff_ms), go_on)

    def _check_identity(self, topic: str, view: ClusterView) -> bool:
        """Return whether the topic is still the one that the consumer began to read.

        If it was deleted or recreated, report an error for each of its partitions."""
        known = view.topics.get(topic)
        error: LogbusError | None = None
        tps = [tp for tp in self._sources if tp.topic == topic]
        if known is None or isinstance(known.error, UnknownTopicOrPartitionError):
            self._missing[topic] = self._missing.get(topic, 0) + 1
            if self._missing[topic] >= DELETED_AFTER_REFRESHES:
                error = deleted_topic(topic)
        else:
            self._missing.pop(topic, None)
            if known.error is None and known.topic_id != self._sources[tps[0]].position.topic_id:
                error = made_again(topic)
        for tp in tps:
            if error is not None and not self._sources[tp].is_stopped:
                self._stop(tp, error)
        return error is None
