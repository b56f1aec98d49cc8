"""Tests of ``RefusedBatches``: a broker also refuses the producer's next batches."""

from __future__ import annotations

import pytest
from support.stored import KEY, batch

from broker_lite import errors
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader, read_header
from broker_lite.storage import refused_batches
from broker_lite.storage.refused_batches import RefusedBatches

FULL = errors.StorageError("full")


def header(producer: int = 7, sequence: int = 3, epoch: int = 0) -> BatchHeader:
    return read_header(batch(producer=(producer, epoch, sequence)))


def test_refused_batch_is_found_only_for_its_producer_epoch_and_partition() -> None:
    refused = RefusedBatches()
    refused.note(KEY, header(), FULL)
    found = refused.find(KEY, header(sequence=9))
    assert found is not None and found.base_sequence == 3
    assert (type(found.error), found.error.message) == (errors.StorageError, "full")
    assert found.error.__traceback__ is None
    assert refused.find(KEY, header(producer=8)) is None
    assert refused.find(KEY, header(epoch=1)) is None
    assert refused.find(PartitionKey(KEY.topic_id, 0), header()) is None


@pytest.mark.parametrize(
    ("producer", "error"), [(-1, FULL), (7, errors.InvalidRecordError("no records"))]
)
def test_refused_batch_that_its_producer_will_not_resend_is_not_remembered(
    producer: int, error: errors.LogbusError
) -> None:
    refused = RefusedBatches()
    refused.note(KEY, header(producer), error)
    assert not refused


def test_oldest_refused_batch_is_forgotten_when_too_many_producers_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused_batches, "PRODUCERS_MAX", 2)
    refused = RefusedBatches()
    for producer in (1, 2, 1, 3):
        refused.note(KEY, header(producer), FULL)
    assert len(refused) == 2
    assert [refused.find(KEY, header(producer)) is None for producer in (1, 2, 3)] == [
        False, True, False,
    ]  # fmt: skip
