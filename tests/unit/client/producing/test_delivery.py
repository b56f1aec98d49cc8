"""Tests of ``Delivery``, which decides when a producer sends, resends and fails its batches.

It keeps their order, sequences and deadlines. There is no network.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from support.client_world import ONE, TOPIC_ID, TWO, view
from support.row_codec import decode_rows

from broker_lite.client.arrays import binary_of
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.client.producing.batches import Outgoing, ProducerBatch, ProducerIdentity
from broker_lite.client.producing.delivery import Delivery
from broker_lite.client.producing.futures import Outcome
from broker_lite.errors import (
    DeliveryTimedOutError,
    InvalidTopicError,
    LogbusError,
    MessageTooLargeError,
    NetworkError,
    ProtocolError,
    StorageError,
)
from broker_lite.record.arrow import Columns, decode
from broker_lite.record.batch import check_crc, read_header
from broker_lite.wire.produce import ProducedPartition, ProducedTopic, ProduceResponse

NOT_LEADER, OUT_OF_ORDER, DUPLICATE, TOO_LARGE, UNKNOWN_PRODUCER = 6, 45, 46, 10, 59
CORRUPT, INVALID_RECORD, UNKNOWN_ERROR, NOT_ENOUGH_REPLICAS = 2, 87, -1, 19


def make(rows: int = 1, partition: int = 0, deadline_ms: float = 1e9) -> ProducerBatch:
    outcome = Outcome("t", threading.Condition(), lambda _: None)
    batch = ProducerBatch(
        "t",
        partition,
        Columns(rows, None, binary_of([b"value-%d" % row for row in range(rows)])),
        timestamp_ms=77,
        size_bytes=100 * rows,
        deadline_ms=deadline_ms,
        outcome=outcome,
    )
    outcome.expect([batch], None)
    return batch


class Bench:
    """The ``Delivery`` of a producer, with metadata of the cluster and a clock that the test sets.

    Unless ``new`` is set, the broker has already acknowledged a batch of 2^31 rows in t-0 and
    t-1, so the next sequence of each partition has wrapped to 0.
    """

    def __init__(
        self, *, idempotent: bool = True, max_in_flight: int = 5, new: bool = False
    ) -> None:
        self.delivery = Delivery(
            idempotent=idempotent,
            max_in_flight=max_in_flight,
            retry_backoff_ms=50,
            compression="none",
            delivery_timeout_ms=500,
        )
        self.view: ClusterView = view()
        self.now = 0.0
        self.identities = 0
        self.identify()
        if idempotent and not new:
            self.write_all_numbers()

    def write_all_numbers(self) -> None:
        before = [make(partition=partition) for partition in (0, 1)]
        for batch in before:
            batch.row_count = 1 << 31
        self.add(*before)
        for sent in self.send():
            self.answer(sent)
        self.delivery.done.clear()

    def identify(self) -> None:
        if self.delivery.idempotent:
            self.identities += 1
            self.delivery.set_identity(ProducerIdentity(1000 + self.identities, 0))

    def add(self, *batches: ProducerBatch) -> None:
        self.delivery.add(batches)

    def send(self) -> list[Outgoing]:
        found = []
        while more := self.delivery.requests(self.now, self.view):
            found += more
        return found

    def answer(
        self,
        sent: Outgoing,
        error: int = 0,
        base: int = 0,
        message: str = "",
        throttle_ms: int = 0,
    ) -> None:
        rows = [
            ProducedPartition(batch.partition, error, base, error_message=message)
            for batch in sent.batches
        ]
        response = ProduceResponse([ProducedTopic("", TOPIC_ID, rows)], throttle_ms)
        self.delivery.answered(sent, response, self.now)

    def fail(self, sent: Outgoing, error: LogbusError | None = None) -> None:
        self.delivery.failed(sent, error or NetworkError("gone"), self.now)

    def later(self, passing_ms: float = 1000.0) -> list[Outgoing]:
        self.now += passing_ms
        return self.send()


def sequences(sent: Sequence[Outgoing]) -> list[tuple[int, int]]:
    """Return the producer id and the base sequence in the header of each sent batch."""
    found = []
    for outgoing in sent:
        for batch in outgoing.batches:
            assert batch.encoded is not None
            header = read_header(batch.encoded)
            check_crc(batch.encoded, header)
            assert decode(batch.encoded, header).row_count == batch.row_count
            found.append((header.producer_id, header.base_sequence))
    return found


def test_sequence_numbers_count_the_records_of_each_partition() -> None:
    bench = Bench()
    bench.add(make(3), make(2), make(4, partition=1))
    sent = bench.send()
    assert sorted(sequences(sent)) == [(1001, 0), (1001, 0), (1001, 3)]


def test_partitions_of_one_leader_share_a_request() -> None:
    bench = Bench()
    bench.add(make(), make(partition=1))
    assert [(each.endpoint, len(each.batches)) for each in bench.send()] == [(ONE, 2)]
    bench = Bench()
    bench.view = view(leaders=(1, 2))
    bench.add(make(), make(partition=1))
    assert sorted((each.endpoint, len(each.batches)) for each in bench.send()) == [
        (ONE, 1),
        (TWO, 1),
    ]


def test_arrow_batch_that_a_broker_cannot_read_is_resent_as_a_kafka_record_batch() -> None:
    bench = Bench()
    bench.add(make(3), make(2))
    for sent in bench.send():
        bench.answer(sent, CORRUPT, message="Invalid magic found in record: 65")
    again = bench.send()
    headers = [read_header(batch.encoded) for sent in again for batch in sent.batches]  # type: ignore[arg-type]
    assert [(header.is_columns, header.base_sequence) for header in headers] == [
        (False, 0),
        (False, 3),
    ]
    for sent, header in zip(again, headers, strict=True):
        (batch,) = sent.batches
        assert batch.encoded is not None
        check_crc(batch.encoded, header)
        assert decode_rows(batch.encoded, header)[0].value == b"value-0"
        bench.answer(sent)
    bench.add(make())
    (later,) = bench.send()
    assert not read_header(later.batches[0].encoded).is_columns  # type: ignore[arg-type]


def test_at_most_five_batches_per_partition_are_in_flight() -> None:
    bench = Bench()
    bench.add(*[make() for _ in range(7)])
    sent = bench.send()
    assert len(sent) == 5
    bench.answer(sent[0], base=0)
    assert sequences(bench.send()) == [(1001, 5)]


def test_first_batch_of_a_producer_is_acknowledged_before_the_second_is_sent() -> None:
    """A log with deleted records accepts any first sequence from an unknown producer.

    With two batches in flight, a broker that refused the first could therefore append the second
    before it.
    """
    bench = Bench(new=True)
    bench.add(make(4), make(1), make(1, partition=1))
    (both,) = bench.send()
    assert sequences([both]) == [(1001, 0), (1001, 0)]
    rows = [ProducedPartition(0, TOO_LARGE), ProducedPartition(1, 0, 0)]
    bench.delivery.answered(both, ProduceResponse([ProducedTopic("", TOPIC_ID, rows)]), 0.0)
    (half,) = bench.later()
    assert sequences([half]) == [(1001, 0)]
    bench.answer(half)
    assert sequences(bench.send()) == [(1001, 2), (1001, 4)]


def test_producer_sends_at_most_four_batches_after_an_unacknowledged_batch() -> None:
    """The first batch hangs at a deposed leader, while the next leader appends the later batches.

    A leader recognises a retry of the first only among a producer's last five batches."""
    bench = Bench()
    bench.add(*(make() for _ in range(9)))
    first, *rest = bench.send()
    assert len(rest) == 4
    for sent in rest:
        bench.answer(sent)
    assert bench.send() == []
    bench.fail(first)
    again = bench.later()
    assert sequences(again[:1]) == [(1001, 0)]
    bench.answer(again[0], DUPLICATE)
    assert [sequence for _, sequence in sequences([*again[1:], *bench.later()])] == [5, 6, 7, 8]


def test_idempotent_batches_wait_until_the_producer_id_is_known() -> None:
    bench = Bench()
    bench.delivery.identity = None
    assert not bench.delivery.wants_identity
    bench.add(make())
    assert bench.delivery.wants_identity
    assert bench.send() == []
    bench.identify()
    assert sequences(bench.send()) == [(1002, 0)]


def test_non_idempotent_batches_have_no_sequences() -> None:
    bench = Bench(idempotent=False)
    bench.add(make(), make())
    assert sequences(bench.send()) == [(-1, -1), (-1, -1)]


def test_batches_without_a_response_are_resent_unchanged_and_in_order() -> None:
    bench = Bench()
    batches = [make(2), make(2), make(2)]
    bench.add(*batches)
    first, second, third = bench.send()
    bench.fail(first)
    assert bench.later() == [], "batches are resent only once all in flight have failed"
    bench.fail(second)
    bench.fail(third)
    bench.add(make(2))
    again = bench.later()
    assert sequences(again) == [(1001, 0), (1001, 2), (1001, 4), (1001, 6)]
    assert [each.batches[0] for each in again[:3]] == batches
    assert "t" in bench.delivery.stale


def test_batch_is_retried_after_the_backoff() -> None:
    bench = Bench()
    bench.add(make())
    bench.answer(bench.send()[0], NOT_LEADER)
    assert bench.send() == []
    assert bench.delivery.next_due_ms(bench.now) == 50
    assert len(bench.later(51)) == 1


def test_no_batch_is_sent_to_a_broker_while_it_throttles_the_producer() -> None:
    """Regression: the producer did not pause. If the throttle exceeded ``request.timeout.ms``, the
    producer connected again, and the broker served the first request of each new connection."""
    bench = Bench()
    bench.view = view(leaders=(1, 2))
    bench.add(make(), make(), make(partition=1))
    first, other, second = bench.send()
    assert [sent.endpoint for sent in (first, other, second)] == [ONE, TWO, ONE]
    bench.answer(first, throttle_ms=100_000)
    bench.answer(other)
    bench.fail(second)
    bench.add(make(partition=1))
    (unthrottled,) = bench.later(60_000)
    assert unthrottled.endpoint == TWO
    bench.answer(unthrottled)
    assert bench.delivery.next_due_ms(bench.now) == 100_000
    assert bench.later(39_999) == []
    (resent,) = bench.later(1)
    assert resent.batches == second.batches


def test_timeout_error_after_the_end_of_a_throttle_does_not_name_the_quota() -> None:
    bench = Bench()
    bench.add(make())
    bench.answer(bench.send()[0], throttle_ms=100)
    late = make(deadline_ms=500)
    bench.add(late)
    bench.delivery.expire(500)
    assert "it waited behind other batches" in str(late.error)


def test_timeout_error_of_a_throttled_producer_names_its_quota() -> None:
    bench = Bench()
    bench.add(make())
    bench.answer(bench.send()[0], throttle_ms=1_000)
    late = make(deadline_ms=500)
    bench.add(late)
    assert bench.send() == []
    bench.delivery.expire(500)
    assert "it is over its quota. Send less, raise the quota (logbus quota)" in str(late.error)


def test_duplicate_sequence_error_counts_as_an_acknowledgement() -> None:
    bench = Bench()
    bench.add(make())
    bench.fail(bench.send()[0])
    bench.answer(bench.later()[0], DUPLICATE)
    (batch,) = bench.delivery.done
    assert batch.error is None


def test_batch_refused_as_out_of_order_is_resent_with_its_sequence() -> None:
    bench = Bench()
    bench.add(make(), make())
    first, second = bench.send()
    bench.answer(first, CORRUPT)
    bench.answer(second, OUT_OF_ORDER)
    assert sequences(bench.later()) == [(1001, 0), (1001, 1)]


def test_refused_batch_frees_its_sequence_for_the_next_batch() -> None:
    bench = Bench()
    refused, following = make(3), make(2)
    bench.add(make(), refused, following)
    first, second, third = bench.send()
    bench.answer(first, base=0)
    bench.answer(second, INVALID_RECORD)
    bench.answer(third, OUT_OF_ORDER)
    assert sequences(bench.later()) == [(1001, 1)]
    assert refused.error is not None
    assert following.error is None


def test_next_sequence_continues_after_an_accepted_batch_despite_an_earlier_refusal() -> None:
    bench = Bench()
    bench.add(make(3), make(2))
    first, second = bench.send()
    bench.answer(first, INVALID_RECORD)
    bench.answer(second, base=0)  # Some logs let an unknown producer begin at any sequence.
    bench.add(make())
    assert sequences(bench.later()) == [(1001, 5)]


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN_PRODUCER, 47])
def test_sequence_error_of_the_first_batch_in_flight_requests_a_new_producer_id(
    code: int,
) -> None:
    bench = Bench()
    bench.add(make(2))
    bench.answer(bench.send()[0], base=0)
    bench.add(make(2), make(2))
    first, second = bench.send()
    bench.answer(first, code)
    bench.answer(second, code)
    assert bench.delivery.wants_identity
    bench.identify()
    (again,) = bench.later()
    assert sequences([again]) == [(1002, 0)]
    bench.answer(again)
    assert sequences(bench.send()) == [(1002, 2)]


def test_batch_that_may_be_in_the_log_is_resent_with_its_sequence() -> None:
    bench = Bench()
    batch = make(2)
    bench.add(batch)
    bench.fail(bench.send()[0])
    bench.answer(bench.later()[0], OUT_OF_ORDER)
    assert sequences(bench.later()) == [(1001, 0)]


def test_sequence_error_of_a_deposed_leader_does_not_fail_the_batch() -> None:
    """The client retries the batch, because a deposed leader's log may lack earlier ones."""
    bench = Bench()
    acked, batch = make(2), make(2, deadline_ms=60_000)
    bench.add(acked)
    bench.answer(bench.send()[0])
    bench.add(batch)
    bench.fail(bench.send()[0])
    bench.answer(bench.later()[0], OUT_OF_ORDER)
    bench.view = view(leaders=(2, 2), leader_epoch=9)
    again = bench.send()
    assert [each.endpoint for each in again] == [TWO]
    assert sequences(again) == [(1001, 2)]
    bench.answer(again[0], OUT_OF_ORDER)
    bench.now = 60_000.0
    bench.delivery.expire(bench.now)
    assert isinstance(batch.error, DeliveryTimedOutError)
    assert "it may be in the log; the last error: " in str(batch.error)
    bench.add(make(2))
    bench.identify()
    assert sequences(bench.later()) == [(1002, 0)]


def test_sequences_of_a_timed_out_batch_are_not_given_to_later_batches() -> None:
    bench = Bench()
    lost, following = make(2, deadline_ms=500), make(2)
    bench.add(lost)
    bench.fail(bench.send()[0])
    bench.add(following)
    bench.now = 600
    bench.delivery.expire(bench.now)
    assert isinstance(lost.error, DeliveryTimedOutError)
    assert "may be in the log" in str(lost.error)
    assert bench.delivery.wants_identity
    bench.identify()
    assert sequences(bench.later()) == [(1002, 0)]


def test_batch_does_not_take_the_sequence_of_an_earlier_batch_that_will_be_retried() -> None:
    """If two batches had the same sequence, the leader would drop the second as a duplicate."""
    bench = Bench()
    asked_again, too_large, following = make(), make(), make()
    bench.add(asked_again, too_large, following)
    first, second, third = bench.send()
    bench.answer(first, NOT_LEADER)
    bench.answer(second, TOO_LARGE)
    bench.answer(third, OUT_OF_ORDER)
    assert too_large.error is not None
    again = bench.later()
    assert [each.batches[0] for each in again] == [asked_again, following]
    assert sequences(again) == [(1001, 0), (1001, 1)]


def test_duplicate_error_for_an_earlier_batch_does_not_lower_the_next_sequence() -> None:
    """The first batch hung at a deposed leader, while the next leader appended the second batch.
    The retry of the first gets DUPLICATE_SEQUENCE_NUMBER."""
    bench = Bench()
    bench.add(make(), make())
    first, second = bench.send()
    bench.answer(second)
    bench.fail(first)
    (again,) = bench.later()
    bench.add(make())
    (refused,) = bench.send()
    bench.answer(again, DUPLICATE)
    bench.answer(refused, TOO_LARGE)
    bench.add(make())
    assert sequences(bench.later()) == [(1001, 2)]


@pytest.mark.parametrize("is_answered", [True, False])
def test_sequences_are_not_reused_after_an_error_that_leaves_the_outcome_unknown(
    is_answered: bool,
) -> None:
    """If the broker appended the failed batch, it would drop the next batch with this sequence
    as a duplicate."""
    bench = Bench()
    batch = make()
    bench.add(batch)
    (sent,) = bench.send()
    if is_answered:
        bench.answer(sent, UNKNOWN_ERROR)
    else:
        bench.fail(sent, ProtocolError("an answer that ends in the middle"))
    assert isinstance(batch.error, LogbusError)
    bench.add(make())
    assert bench.delivery.wants_identity
    bench.identify()
    assert sequences(bench.later()) == [(1002, 0)]


def test_batch_that_may_be_in_the_log_is_not_split_in_two() -> None:
    """The first attempt may have been appended before the topic's size limit was lowered.

    The halves would have other sequences, so the leader would append the records a second time.
    """
    bench = Bench()
    batch = make(2)
    bench.add(batch)
    bench.fail(bench.send()[0])
    bench.answer(bench.later()[0], TOO_LARGE)
    assert isinstance(batch.error, MessageTooLargeError)
    assert "may be in the log" in batch.error.message
    assert bench.later() == []


def test_producer_keeps_its_id_after_a_batch_that_was_never_sent_times_out() -> None:
    bench = Bench()
    bench.view = ClusterView()
    lost = make(deadline_ms=500)
    bench.add(lost)
    assert bench.send() == []
    assert bench.delivery.next_due_ms(bench.now) == 500
    bench.delivery.expire(500)
    assert isinstance(lost.error, DeliveryTimedOutError)
    assert "may be" not in str(lost.error)
    assert "delivery.timeout.ms=500" in str(lost.error)
    bench.view = view()
    bench.add(make())
    assert sequences(bench.later()) == [(1001, 0)]


def test_partition_keeps_the_old_producer_id_until_its_batches_in_flight_are_answered() -> None:
    bench = Bench()
    bench.add(make(), make(partition=1))
    (both,) = bench.send()
    bench.add(make(partition=1))
    (ahead,) = bench.send()
    rows = [ProducedPartition(0, OUT_OF_ORDER), ProducedPartition(1, 0, 0)]
    bench.delivery.answered(both, ProduceResponse([ProducedTopic("", TOPIC_ID, rows)]), 0.0)
    bench.identify()
    bench.add(make(partition=1))
    assert sequences(bench.later()) == [(1002, 0)]
    bench.answer(ahead, base=1)
    assert sequences(bench.later()) == [(1002, 0)]


def test_batch_refused_as_too_large_is_resent_as_two_halves_with_its_sequences() -> None:
    bench = Bench()
    batch, following = make(5), make(1)
    bench.add(batch, following)
    first, second = bench.send()
    bench.answer(first, TOO_LARGE)
    bench.answer(second, OUT_OF_ORDER)
    sent = bench.later()
    assert sequences(sent) == [(1001, 0), (1001, 2), (1001, 5)]
    assert [each.batches[0].row_count for each in sent] == [2, 3, 1]
    bench.answer(sent[0], base=10)
    bench.answer(sent[1], base=12)
    for each in bench.delivery.done:
        each.outcome.batch_done(each.error)
    assert batch.outcome.done
    found = [batch.outcome.find(row) for row in range(5)]
    assert [each.base_offset + at for each, at in found if each] == [10, 11, 12, 13, 14]


def test_batch_refused_as_too_large_halves_the_batch_size_limit_of_its_topic() -> None:
    bench = Bench()
    batch = make(8)
    batch.size_bytes = 8000
    bench.add(batch)
    (sent,) = bench.send()
    bench.answer(sent, TOO_LARGE)
    assert bench.delivery.limits_bytes == {batch.topic: 4000}
    for each in bench.later():
        bench.answer(each, TOO_LARGE)
    assert bench.delivery.limits_bytes == {batch.topic: 2000}


def test_too_large_batch_of_one_record_fails_but_the_following_batch_does_not() -> None:
    bench = Bench()
    batch, following = make(1), make(1)
    bench.add(batch, following)
    first, second = bench.send()
    bench.answer(first, TOO_LARGE)
    bench.answer(second, OUT_OF_ORDER)
    assert isinstance(batch.error, MessageTooLargeError)
    assert sequences(bench.later()) == [(1001, 0)]


def test_batch_missing_in_a_produce_response_fails() -> None:
    bench = Bench()
    batch = make()
    bench.add(batch)
    bench.delivery.answered(bench.send()[0], ProduceResponse([]), 0.0)
    assert batch.error is not None


def test_batch_with_acks_0_completes_without_a_response() -> None:
    bench = Bench(idempotent=False)
    batch = make()
    bench.add(batch)
    bench.delivery.answered(bench.send()[0], None, 0.0)
    assert bench.delivery.done == [batch]
    assert (batch.error, batch.base_offset) == (None, -1)


def test_batch_for_a_partition_without_a_leader_waits_and_requests_metadata() -> None:
    bench = Bench()
    bench.view = view(leaders=(1, 9))
    bench.add(make(), make(partition=1))
    assert [len(each.batches) for each in bench.send()] == [1]
    assert bench.delivery.stale == {"t"}
    assert bench.delivery.is_backlogged("t")
    bench.view = view()
    assert len(bench.send()) == 1


def test_timeout_error_names_the_last_broker_error_and_the_remedy() -> None:
    bench = Bench()
    first, second = make(deadline_ms=500), make(deadline_ms=500)
    bench.add(first, second)
    for sent in bench.send():
        bench.fail(sent, StorageError("t-0: no space left on device"))
    bench.delivery.expire(500)
    for batch in (first, second):
        assert str(batch.error) == (
            "[LOGBUS_DELIVERY_TIMED_OUT] t-0: not acknowledged within "
            "delivery.timeout.ms=500 (failures: 1); it may be in the log; the last error: "
            "[LOGBUS_KAFKA_STORAGE_ERROR] t-0: no space left on device. Repair that broker's "
            "disk, or free space on it (a shorter retention.ms), or raise delivery.timeout.ms to "
            "wait longer"
        )


def test_timeout_error_without_a_leader_names_the_broker_that_is_down() -> None:
    bench = Bench()
    bench.view = view(leaders=(9,))
    lost = make(deadline_ms=500)
    bench.add(lost)
    assert bench.send() == []
    bench.delivery.expire(500)
    assert "broker 9, which led it, is down (alive: 1, 2)" in str(lost.error)


def test_batch_is_retried_at_the_partitions_new_leader() -> None:
    bench = Bench()
    bench.add(make())
    bench.answer(bench.send()[0], NOT_LEADER)
    bench.view = view(leaders=(2,))
    assert [each.endpoint for each in bench.later()] == [TWO]


def test_batches_that_fail_together_raise_the_backoff_once() -> None:
    """Regression: when five batches failed together, the backoff doubled five times, to 1.6 s."""
    bench = Bench()
    bench.add(*(make() for _ in range(5)))
    for sent in bench.send():
        bench.fail(sent)
    assert bench.delivery.next_due_ms(bench.now) == 50
    for sent in bench.later(50):
        bench.fail(sent)
    assert bench.delivery.next_due_ms(bench.now) == 150


def test_batch_is_retried_without_backoff_at_a_newer_leader() -> None:
    bench = Bench()
    bench.add(make())
    bench.fail(bench.send()[0])
    assert bench.delivery.without_leader(bench.now, bench.view) == {"t"}
    bench.view = view(leaders=(2,), leader_epoch=6)
    assert bench.delivery.without_leader(bench.now, bench.view) == set()
    assert [each.endpoint for each in bench.send()] == [TWO]


def test_new_leader_resets_the_retry_backoff_to_the_minimum() -> None:
    """A new leader may refuse batches for a short time, until a second replica is in sync."""
    bench = Bench()
    bench.add(make())
    bench.fail(bench.send()[0])
    for _ in range(5):
        bench.fail(bench.later()[0])
    bench.view = view(leaders=(2,), leader_epoch=6)
    bench.answer(bench.send()[0], NOT_ENOUGH_REPLICAS)
    assert bench.delivery.next_due_ms(bench.now) == bench.now + 50
    bench.answer(bench.later(50)[0], NOT_ENOUGH_REPLICAS)
    assert bench.delivery.next_due_ms(bench.now) == bench.now + 100


def test_deleted_topic_fails_its_queued_batches() -> None:
    bench = Bench()
    bench.view = ClusterView()
    batch = make()
    bench.add(batch)
    bench.send()
    bench.delivery.fail_topic("t", InvalidTopicError("gone"))
    assert isinstance(batch.error, InvalidTopicError)
    assert not bench.delivery.topics()


def test_fail_all_fails_batches_that_were_sent_and_batches_that_wait() -> None:
    bench = Bench(max_in_flight=1)
    batches = [make(), make()]
    bench.add(*batches)
    bench.send()
    bench.delivery.fail_all(InvalidTopicError("end"))
    assert all(batch.error is not None for batch in batches)
    assert bench.delivery.next_due_ms(0) == float("inf")


def test_batches_beyond_the_size_limit_of_a_request_are_sent_in_a_further_request() -> None:
    bench = Bench()
    large = [make(partition=0), make(partition=1)]
    for batch in large:
        batch.size_bytes = 12 << 20
    bench.add(*large)
    assert [len(each.batches) for each in bench.send()] == [1, 1]


def test_sequence_numbers_of_a_producer_wrap_after_2_to_the_31() -> None:
    bench = Bench()
    bench.add(make())
    bench.answer(bench.send()[0], base=0)
    part = next(iter(bench.delivery._partitions.values()))
    part.next_sequence = (1 << 31) - 2
    bench.add(make(5), make(1))
    assert sequences(bench.send()) == [(1001, (1 << 31) - 2), (1001, 3)]
