"""Handle Produce 3-13: append one batch to each partition, and answer as ``acks`` asks.

The handler runs on the event loop's thread, without a task for each request. It parses only the
batch header; the append thread checks the batch's CRC, record count and structure. Each partition
reports its outcome by callback, and the last callback sends the answer.

A request with acks=0 has no answer. If one of its batches is refused, the broker closes the
connection, so that the client refreshes its metadata. The first batch of a transaction in a
partition waits until the coordinator confirms that the transaction includes the partition."""

from __future__ import annotations

import contextlib
import logging
from functools import partial

from broker_lite.errors import (
    CorruptMessageError,
    DuplicateSequenceError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    InvalidTxnStateError,
    LogbusError,
    MessageTooLargeError,
    NotLeaderError,
    TransactionalIdAuthorizationError,
)
from broker_lite.model import NO_OFFSET, NO_PRODUCER, TRANSACTION_STATE, PartitionKey
from broker_lite.record import newest_time
from broker_lite.record.batch import BatchHeader, read_header
from broker_lite.replication.events import Appended
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.cluster_rows import node_endpoints
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import RequestContext
from broker_lite.server.partitions.disk import AppendBatch, DiskWork
from broker_lite.server.partitions.replica import Replica
from broker_lite.wire import produce as wire
from broker_lite.wire.api import BY_TOPIC_ID, ApiKey
from broker_lite.wire.error_codes import code_in_version

logger = logging.getLogger("logbus.produce")

ACKS = (wire.ACKS_ALL, wire.ACKS_LEADER, wire.ACKS_NONE)
"""The valid values of ``acks``."""
ADDS_PARTITIONS_FROM = 12
"""The first version of Produce in which the partition leader adds the partition to the transaction
(KIP-890).

With earlier versions, the client adds it (AddPartitionsToTxn)."""
ACKS_NONE_TIMEOUT_MS = 30_000
"""Timeout (ms) of requests with acks=0, whose own timeout is ignored.

Clients send any value in its field, and the batch stays in memory until the timeout."""
_OLD_DUPLICATE = "the log already has this batch, but its offset is no longer recorded"


def handle(
    parts: BrokerContext, request: RequestContext, frame: memoryview, reply: ResponseSlot
) -> None:
    """Start the appends of all partitions. Raises ProtocolError for a malformed request."""
    message = wire.decode_request(frame, request.api_version, request.body_at)
    call = _Produce(parts, request, message, reply)
    untimed = [
        (t, p, records)
        for t, topic in enumerate(message.topics)
        for p, (_, records) in enumerate(topic.partitions)
        if records is not None and newest_time.is_left_out(records)
    ]
    if untimed:
        call.fill_in_times(untimed)
    else:
        call.start()


class _Produce:
    """One produce request from its arrival to the answer, with the result of each partition."""

    __slots__ = (
        "_denied",
        "_left",
        "_message",
        "_parts",
        "_reply",
        "_request",
        "_rows",
        "_unreadable",
        "_works",
    )

    def __init__(
        self,
        parts: BrokerContext,
        request: RequestContext,
        message: wire.ProduceRequest,
        reply: ResponseSlot,
    ) -> None:
        self._parts = parts
        self._request = request
        self._message = message
        self._reply = reply
        self._rows: list[list[wire.ProducedPartition | None]] = [
            [None] * len(topic.partitions) for topic in message.topics
        ]
        # Begin with one more than the number of appends, so that no answer is sent before all have
        # started.
        self._left = 1 + sum(len(row) for row in self._rows)
        self._authorize()
        self._unreadable: dict[tuple[int, int], LogbusError] = {}
        """Errors of batches whose maximum timestamp cannot be computed, by the indexes of topic and
        partition in the request."""
        self._works: list[DiskWork] = []
        """The work of disk threads for this request, if a quota limits the client's time."""

    def _authorize(self) -> None:
        """Find the topics of the request to which the client may not write."""
        self._denied = self._request.access.denied_topics(
            self._message.topics, self._parts.registry.snapshot.topics_by_id
        )

    def fill_in_times(self, untimed: list[tuple[int, int, memoryview]]) -> None:
        """Compute missing maximum timestamps on a read thread, then start the appends.

        ``untimed`` lists the batches without a maximum timestamp, each with its topic's and its
        partition's index in the request. The connection's later requests wait, to keep the order of
        batches."""

        def fill_in() -> dict[tuple[int, int], LogbusError]:
            errors: dict[tuple[int, int], LogbusError] = {}
            for t, p, records in untimed:
                try:
                    newest_time.fill_in(records)
                except LogbusError as error:
                    errors[t, p] = error
            return errors

        def filled(
            errors: dict[tuple[int, int], LogbusError] | None, error: BaseException | None
        ) -> None:
            self._reply.go_on()
            if errors is None:
                logger.error(
                    "%s: cannot compute the maximum timestamps of batches",
                    self._request,
                    exc_info=error,
                )
                self._reply.refuse("unexpected error in the broker; see its log")
                return
            self._unreadable = errors
            # Authorize again. While the timestamps were computed, ACLs may have changed, and a
            # topic that the request names by id may have become known.
            self._authorize()
            self.start()

        self._reply.hold()
        work = self._disk_work()
        self._parts.disk.read(fill_in if work is None else work.timed(fill_in), filled)

    def _disk_work(self) -> DiskWork | None:
        """Return a new meter of a disk thread's work; None if no quota limits the client's time."""
        quota = self._request.quota
        if quota is None or not quota.limits_time:
            return None
        self._works.append(DiskWork())
        return self._works[-1]

    def start(self) -> None:
        message, replicas = self._message, self._parts.replicas
        by_id = self._request.api_version >= BY_TOPIC_ID
        for t, topic in enumerate(message.topics):
            name = topic.topic_id if by_id else topic.name
            for p, (partition, _) in enumerate(topic.partitions):
                append = partial(self._append, t, p, name, by_id)
                if not replicas.defer(name, partition, by_id, append):
                    append()
        self._one_less()

    def _append(self, t: int, p: int, name: str, by_id: bool) -> None:
        message, replicas = self._message, self._parts.replicas
        partition, records = message.topics[t].partitions[p]
        try:
            if t in self._denied:
                raise self._denied[t]
            find = replicas.find_by_id if by_id else replicas.find
            replica = find(name, partition)
            if (t, p) in self._unreadable:
                raise self._unreadable[t, p]
            batch = self._batch(replica, records)
        except LogbusError as error:
            self._refused(t, p, partition, error)
            self._one_less()
            return
        if batch.header.is_transactional:
            self._verify(t, p, replica, batch)
        else:
            self._start(t, p, replica, batch)

    def _start(self, t: int, p: int, replica: Replica, batch: AppendBatch) -> None:
        message = self._message
        timeout_ms = message.timeout_ms if message.acks else ACKS_NONE_TIMEOUT_MS
        deadline_ms = self._request.deadline_ms(timeout_ms)
        done = partial(self._done, t, p, replica, count=batch.header.record_count)
        self._parts.replicas.append(replica, message.acks, batch, deadline_ms, done)

    def _verify(self, t: int, p: int, replica: Replica, batch: AppendBatch) -> None:
        """Append the batch once the transaction coordinator confirms that the producer's
        transaction includes the partition."""
        transactional_id = self._message.transactional_id
        assert transactional_id is not None
        header = batch.header

        def verified(error: LogbusError | None) -> None:
            if error is None:
                self._start(t, p, replica, batch)
            else:
                self._refused(t, p, replica.partition, error)
                self._one_less()

        try:
            verification = replica.participant.admit(header.producer_id, header.producer_epoch)
        except LogbusError as error:
            verified(error)
            return
        if verification is None:
            verified(None)
            return
        adds = self._request.api_version >= ADDS_PARTITIONS_FROM
        self._parts.verifier.verify(
            replica, verification, transactional_id, adds=adds, done=verified
        )

    def _batch(self, replica: Replica, records: memoryview | None) -> AppendBatch:
        message, config = self._message, replica.log.config
        if message.acks not in ACKS:
            raise InvalidRequiredAcksError(f"acks={message.acks}: give -1 (all), 1 or 0")
        if records is None or not len(records):
            raise InvalidRecordError(f"the request has no records for {replica}; send at least one")
        if replica.topic == TRANSACTION_STATE:
            raise InvalidTopicError(
                f"only brokers write to topic {replica.topic!r}; use another topic"
            )
        if len(records) > config.max_message_bytes:
            raise MessageTooLargeError(
                f"a batch for {replica} has {len(records)} bytes, but the topic's "
                f"max.message.bytes is {config.max_message_bytes}; send smaller batches, or raise "
                "max.message.bytes"
            )
        header = read_header(records)
        if header.is_transactional:
            self._check_transactional(replica, header)
        is_version_2 = header.is_transactional and self._request.api_version >= ADDS_PARTITIONS_FROM
        most = config.max_message_bytes
        return AppendBatch(records, header, most, is_version_2, self._disk_work())

    def _check_transactional(self, replica: Replica, header: BatchHeader) -> None:
        message = self._message
        if not self._parts.registry.snapshot.has_transactions:
            raise InvalidTxnStateError(
                "a broker of the cluster does not support transactions; upgrade it, or use a "
                "producer without transactional.id"
            )
        if not message.transactional_id:
            raise TransactionalIdAuthorizationError(
                f"a batch of a transaction for {replica} has no transactional id; set "
                "transactional.id in the producer"
            )
        self._request.access.check_transactional_id(message.transactional_id)
        if message.acks != wire.ACKS_ALL:
            raise InvalidRequiredAcksError(
                f"a batch of a transaction has acks={message.acks}; set acks=all in the producer"
            )
        if header.producer_id == NO_PRODUCER:
            raise InvalidRecordError(
                f"a batch of a transaction for {replica} has no producer id; request one with "
                "InitProducerId"
            )
        replica.check_leader()

    def _done(
        self,
        t: int,
        p: int,
        replica: Replica,
        appended: Appended | None,
        error: LogbusError | None,
        *,
        count: int,
    ) -> None:
        if appended is None:
            assert error is not None
            self._refused(t, p, replica.partition, error)
        elif appended.base_offset == NO_OFFSET:
            self._refused(t, p, replica.partition, DuplicateSequenceError(_OLD_DUPLICATE))
        else:
            replica.traffic.received_records.n += count
            replica.traffic.received_bytes.n += len(self._message.topics[t].partitions[p][1] or b"")
            self._rows[t][p] = wire.ProducedPartition(
                replica.partition,
                0,
                appended.base_offset,
                appended.log_append_time_ms,
                appended.log_start_offset,
            )
        self._one_less()

    def _refused(self, t: int, p: int, partition: int, error: LogbusError) -> None:
        self._parts.metrics.count("request_errors", "produce", error.name)
        self._note_refused(t, p, partition, error)
        code = code_in_version(error, ApiKey.PRODUCE, self._request.api_version)
        row = wire.ProducedPartition(partition, code, error_message=error.message)
        if isinstance(error, NotLeaderError):
            topic, snapshot = self._message.topics[t], self._parts.registry.snapshot
            leader_id, leader_epoch = snapshot.leader(topic.name, topic.topic_id, partition)
            row = row._replace(leader_id=leader_id, leader_epoch=leader_epoch)
        self._rows[t][p] = row

    def _note_refused(self, t: int, p: int, partition: int, error: LogbusError) -> None:
        """Remember that a batch failed with a retriable error, so that the producer's later batches
        in flight fail too.

        Otherwise the producer's records would be out of order after the retry."""
        topic, snapshot = self._message.topics[t], self._parts.registry.snapshot
        view = snapshot.topics_by_id.get(topic.topic_id) or snapshot.topics.get(topic.name)
        records = topic.partitions[p][1]
        if view is not None and records is not None and error.retriable:
            with contextlib.suppress(CorruptMessageError):
                key = PartitionKey(view.topic_id, partition)
                self._parts.replicas.refused.note(key, read_header(records), error)

    def _one_less(self) -> None:
        self._left -= 1
        if self._left:
            return
        reply, message = self._reply, self._message
        throttle_ms = self._throttle_ms()
        if message.acks == wire.ACKS_NONE:
            self._end_silently()
            return
        topics = [
            wire.ProducedTopic(topic.name, topic.topic_id, [row for row in rows if row is not None])
            for topic, rows in zip(message.topics, self._rows)
        ]
        request, snapshot = self._request, self._parts.registry.snapshot
        leaders = [row.leader_id for topic in topics for row in topic.partitions if row.error_code]
        nodes = node_endpoints(snapshot, request.session.listener, leaders) if leaders else ()
        response = wire.ProduceResponse(topics, throttle_ms, nodes=nodes)
        reply.answer([wire.encode_response(response, request.api_version, request.correlation_id)])

    def _throttle_ms(self) -> int:
        """Charge the request's bytes and time to the client's quotas, and return the throttle time
        (ms)."""
        quota = self._request.quota
        if quota is None:
            return 0
        for work in self._works:
            quota.spend_time(work.seconds)
        topics = self._message.topics
        size = sum(len(data or b"") for topic in topics for _, data in topic.partitions)
        wait_ms = quota.produced(size)
        self._reply.throttle(wait_ms)
        return wait_ms

    def _end_silently(self) -> None:
        for rows in self._rows:
            for row in rows:
                if row is not None and row.error_code:
                    self._reply.refuse(f"a batch with acks=0 was refused: {row.error_message}")
                    return
        self._reply.answer(())
