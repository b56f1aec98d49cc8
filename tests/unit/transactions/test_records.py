"""Tests of the keys and values in ``__transaction_state``: their exact bytes, and invalid bytes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import ProtocolError
from broker_lite.model import PartitionKey
from broker_lite.transactions.records import (
    TransactionRecord,
    TransactionState,
    changed_ms_of,
    decode_transaction,
    encode_transaction,
    transaction_key,
    transactional_id_of,
)

FIRST, SECOND = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
GOLDEN = (
    "0000" "000000000000000b" "0000000000000005" "0003" "0002" "0000000000000004"
    "ffffffffffffffff" "0000000000000007" "0000ea60" "02" "02" "0000000000000009"
    "03" "00000000000000000000000000000001" "03" "00000000" "00000002"
    "00000000000000000000000000000002" "02" "00000001" "02" "0267" "00"
)  # fmt: skip
RECORD = TransactionRecord(
    5,
    3,
    60_000,
    TransactionState.PREPARE_COMMIT,
    last_epoch=2,
    previous_id=4,
    number=7,
    partitions=frozenset({PartitionKey(FIRST, 2), PartitionKey(SECOND, 1), PartitionKey(FIRST, 0)}),
    groups=frozenset({"g"}),
    start_ms=9,
    changed_ms=11,
)


def test_transaction_record_is_encoded_to_the_expected_bytes() -> None:
    assert encode_transaction(RECORD).hex() == GOLDEN
    assert decode_transaction(bytes.fromhex(GOLDEN)) == RECORD
    assert changed_ms_of(bytes.fromhex(GOLDEN)) == 11


def test_first_byte_of_a_transaction_state_key_tells_transactional_ids_from_sinks() -> None:
    assert transaction_key("etl-1") == b"\x00etl-1"
    assert transactional_id_of(b"\x00etl-1") == "etl-1"
    assert transactional_id_of(b"\x01etl-1") is None
    assert transactional_id_of(b"") is None


def test_unknown_tagged_fields_of_a_transaction_record_are_skipped() -> None:
    assert decode_transaction(bytes.fromhex(GOLDEN)[:-1] + b"\x01\x09\x02ab") == RECORD


@pytest.mark.parametrize("cut", [0, 5, 40, 70, 100, len(GOLDEN) // 2 - 1])
def test_truncated_transaction_record_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        decode_transaction(bytes.fromhex(GOLDEN)[:cut])


def test_transaction_record_of_an_unknown_version_or_state_is_refused() -> None:
    later = b"\x00\x01" + bytes.fromhex(GOLDEN)[2:]
    with pytest.raises(ProtocolError, match="has version 1; this broker reads 0"):
        decode_transaction(later)
    data = bytearray.fromhex(GOLDEN)
    data[50] = 9
    with pytest.raises(ProtocolError, match="unknown state 9"):
        decode_transaction(bytes(data))


IDS = st.integers(-1, (1 << 63) - 1)
EPOCHS = st.integers(-1, 32767)
PARTITIONS = st.builds(PartitionKey, st.sampled_from([FIRST, SECOND]), st.integers(0, 1 << 30))
RECORDS = st.builds(
    TransactionRecord,
    IDS,
    EPOCHS,
    st.integers(0, 1 << 30),
    st.sampled_from(list(TransactionState)),
    EPOCHS,
    IDS,
    IDS,
    st.integers(0, 1 << 40),
    st.integers(1, 2),
    st.frozensets(PARTITIONS, max_size=5),
    st.frozensets(st.text(max_size=9).filter(lambda name: name.isascii()), max_size=3),
    IDS,
    IDS,
)


@given(RECORDS)
def test_every_transaction_record_round_trips(record: TransactionRecord) -> None:
    value = encode_transaction(record)
    assert decode_transaction(value) == record
    assert encode_transaction(decode_transaction(value)) == value


@pytest.mark.parametrize(
    ("state", "version", "epoch", "pair"),
    [
        (TransactionState.EMPTY, 2, 3, (-1, -1)),
        (TransactionState.ONGOING, 2, 3, (5, 3)),
        (TransactionState.PREPARE_COMMIT, 2, 3, (5, 2)),
        (TransactionState.COMPLETE_ABORT, 2, 3, (5, 2)),
        (TransactionState.COMPLETE_COMMIT, 1, 3, (5, 3)),
        # The transaction ended with the highest epoch, so producer id 5 has taken its place.
        (TransactionState.COMPLETE_COMMIT, 2, 0, (4, 2)),
    ],
)
def test_record_has_the_producer_id_and_epoch_of_the_last_transactions_batches(
    state: TransactionState, version: int, epoch: int, pair: tuple[int, int]
) -> None:
    record = dataclasses.replace(RECORD, state=state, version=version, epoch=epoch)
    assert record.written_by == pair
