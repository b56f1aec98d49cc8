"""Tests of the records of Spark sinks: their exact bytes, and refusals of invalid bytes.

The *head* of a sink holds the id of its query's run, and its last committed batch. A *slot* is a
producer id with which one task attempt writes.
"""

from __future__ import annotations

import pytest

from broker_lite.errors import ProtocolError
from broker_lite.model import PartitionKey
from broker_lite.transactions.records import transactional_id_of
from broker_lite.transactions.sink_records import (
    ProducerPair,
    SinkHead,
    SinkSlot,
    SinkState,
    decode_head,
    decode_slot,
    encode_head,
    encode_slot,
    head_key,
    sink_of,
    slot_key,
    slot_of,
)

TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"
HEAD = SinkHead(
    "r2",
    ("r1",),
    batch=8,
    rows=300,
    state=SinkState.PREPARE_COMMIT,
    ends_batch=8,
    winners=frozenset({ProducerPair(9, 1), ProducerPair(5, 2)}),
    day=20_000,
)
SLOT = SinkSlot(3, "s", "r2", 9, 1, 44, 60_000, frozenset({PartitionKey(TOPIC, 2)}))
GOLDEN_HEAD = (
    "0000" "0000000000000008" "000000000000012c" "01" "0000000000000008" "00004e20"
    "037232" "02" "037231" "03" "00000000000000050002" "00000000000000090001" "00"
)  # fmt: skip
GOLDEN_SLOT = (
    "0000" "0003" "0000000000000009" "0000000000000001" "000000000000002c" "000000000000ea60"
    "0273" "037232" "02" "00000000000000000000000000000001" "02" "00000002" "00"
)  # fmt: skip


def test_record_of_a_sinks_last_committed_batch_is_encoded_to_the_expected_bytes() -> None:
    assert encode_head(HEAD).hex() == GOLDEN_HEAD
    assert decode_head(bytes.fromhex(GOLDEN_HEAD)) == HEAD


def test_state_record_of_a_spark_sinks_producer_id_has_the_expected_bytes() -> None:
    assert encode_slot(SLOT).hex() == GOLDEN_SLOT
    assert decode_slot(bytes.fromhex(GOLDEN_SLOT)) == SLOT
    free = SLOT.freed()
    assert decode_slot(encode_slot(free)) == free and free.is_free and free.epoch == 4


def test_keys_of_sink_records_distinguish_batches_from_task_attempts() -> None:
    assert (head_key("s"), slot_key(5)) == (b"\x01s", b"\x02" + bytes(7) + b"\x05")
    assert (sink_of(b"\x01s"), slot_of(slot_key(5))) == ("s", 5)
    for key in (head_key("s"), slot_key(5), b""):
        assert transactional_id_of(key) is None
    assert sink_of(slot_key(5)) is None and slot_of(head_key("s")) is None


@pytest.mark.parametrize("cut", [0, 1, 10, 31])
def test_truncated_state_records_of_a_sink_are_refused(cut: int) -> None:
    for decode, golden in ((decode_head, GOLDEN_HEAD), (decode_slot, GOLDEN_SLOT)):
        with pytest.raises(ProtocolError):
            decode(bytes.fromhex(golden)[:cut])


def test_decoding_refuses_an_unknown_version_or_state_in_a_spark_sinks_state_record() -> None:
    for decode, golden in ((decode_head, GOLDEN_HEAD), (decode_slot, GOLDEN_SLOT)):
        with pytest.raises(ProtocolError, match="version 1; this broker reads 0: upgrade"):
            decode(b"\x00\x01" + bytes.fromhex(golden)[2:])
    data = bytearray.fromhex(GOLDEN_HEAD)
    data[18] = 7
    with pytest.raises(ProtocolError, match="unknown state 7"):
        decode_head(bytes(data))
