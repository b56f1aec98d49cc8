"""Tests of the keep-alive requests by which a task attempt of Spark's sink keeps its transaction
open."""

from __future__ import annotations

import pytest

from broker_lite.client.transactions.attempt import AttemptProducer
from broker_lite.config import ProducerConfig
from broker_lite.errors import NetworkError, ProducerFencedError
from broker_lite.wire.calls.sinks import KeepBatchRequest

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("is_present", "error", "fails"),
    [
        (True, ProducerFencedError("another run"), True),
        (True, NetworkError("unreachable"), False),
        (False, ProducerFencedError("batch 0 is decided"), False),
    ],
)
def test_task_attempt_fails_only_if_its_current_keep_alive_request_is_fenced(
    is_present: bool, error: Exception, fails: bool
) -> None:
    producer = AttemptProducer(NOBODY, ProducerConfig(transactional_id="sink", max_block_ms=50))
    former, present = KeepBatchRequest("sink", "run", 0), KeepBatchRequest("sink", "run", 1)
    producer._keep_alive, producer._shut = present, None
    producer._answered(present if is_present else former, error)  # type: ignore[arg-type]
    assert (producer._sender.delivery.failure is error) is fails
    producer.close(0)
