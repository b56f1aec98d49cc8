"""Tests of ``MirrorTarget``, which writes encoded batches to the target cluster. The test answers
its requests."""

from __future__ import annotations

from typing import Any

import pytest
from support.client_world import OTHER_ID, TOPIC_ID, view
from support.row_codec import Row, encode_rows

from broker_lite.errors import RequestTimedOutError
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.wire.produce import ProducedPartition, ProducedTopic, ProduceResponse

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Broker:
    """Stands for the connection pool of the target cluster and its only connection. It returns each
    of ``responses`` once.
    """

    def __init__(self, *responses: ProduceResponse) -> None:
        self.responses = list(responses)

    def borrow(self, *_: Any) -> Broker:
        return self

    def send(self, *_: Any) -> None:
        """Do nothing: ``receive`` returns the prepared ``responses``."""

    def receive(self, _: float) -> ProduceResponse:
        return self.responses.pop(0)

    def release(self, _: Any) -> None:
        """Do nothing, because there is only one connection."""

    close = release


def piece() -> RewrittenBatch:
    buffer = encode_rows([Row(0, 5, b"k", b"v")])
    return RewrittenBatch(buffer, read_header(buffer), ())


@pytest.mark.parametrize("topic_id", [TOPIC_ID, OTHER_ID])
def test_outcome_of_a_batch_that_the_produce_response_lacks_is_unknown(topic_id: str) -> None:
    """Regression: the mirror resent the missing batch without end and without a pause, or took the
    offset of a later batch for that of the missing batch. A response with another topic's id raised
    KeyError."""
    target = MirrorTarget("127.0.0.1:1", "test")
    written: list[tuple[TopicPartition, int]] = []
    rows = [ProducedPartition(0, 0, 7)]
    target._pool = Broker(ProduceResponse([ProducedTopic("", topic_id, rows)]))  # type: ignore[assignment]
    target._cluster.view = view()
    target._identity = (1, 0)
    with pytest.raises(RequestTimedOutError, match="lacks a batch"):
        target.write(
            {T0: [piece()], T1: [piece()]}, lambda tp, _, offset: written.append((tp, offset))
        )
    assert written == ([(T0, 7)] if topic_id == TOPIC_ID else [])
