"""Tests of the partitioner: keys get the same partitions as in Kafka's Java producer."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.java_partitions import murmur2, partition_for

from broker_lite.client.arrays import binary_of
from broker_lite.client.producing.partitioner import Sticky, murmur2_column, partitions_for

# The test vectors are from UtilsTest of Kafka, as signed 32-bit numbers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN)
def test_murmur2_equals_kafkas_test_vectors(key: bytes) -> None:
    assert murmur2(key) == KNOWN[key] & 0xFFFFFFFF


def random_keys(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 15, 33, 200])) for _ in range(count)]


def test_murmur2_of_an_arrow_column_equals_the_murmur2_of_each_key() -> None:
    keys = random_keys(2000, 1)
    assert murmur2_column(binary_of(keys)).tolist() == [murmur2(key) for key in keys]


def test_number_of_numpy_calls_for_murmur2_of_a_long_key_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a key of 1 MB kept the producer's thread busy for a minute, and its batch timed
    out."""
    rng = random.Random(4)
    keys = [rng.randbytes(size) for size in (300_001, 3, 300_002, 257, 255, 256, 4 * 64 + 3)]
    rounds = 0
    search = np.searchsorted

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return search(*arguments, **options)

    monkeypatch.setattr(np, "searchsorted", counted)
    assert murmur2_column(binary_of(keys)).tolist() == [murmur2(key) for key in keys]
    assert rounds < 100


def test_murmur2_of_one_key_equals_that_of_kafka_python() -> None:
    other = pytest.importorskip("kafka.partitioner.default").murmur2
    for key in random_keys(500, 2):
        assert murmur2(key) & 0xFFFFFFFF == other(key) & 0xFFFFFFFF


def test_murmur2_of_a_slice_of_a_column_hashes_only_the_rows_of_the_slice() -> None:
    keys = random_keys(100, 3)
    column = binary_of([None, *keys, b"behind"]).slice(1, 100)
    assert partitions_for(column, 7).tolist() == [partition_for(key, 7) for key in keys]


def test_partitions_for_returns_minus_one_for_null_keys() -> None:
    found = partitions_for(binary_of([b"a", None, b"b"]), 3)
    assert found[1] == -1
    assert found[0] == partition_for(b"a", 3)


def test_partitions_for_accepts_empty_columns_and_empty_keys() -> None:
    assert len(partitions_for(binary_of([]), 3)) == 0
    assert partitions_for(binary_of([b"", b""]), 5).tolist() == [partition_for(b"", 5)] * 2


def test_sticky_partition_is_chosen_at_random_among_partitions_with_a_leader() -> None:
    sticky = Sticky(0)
    assert {sticky.choose(3, [0, 2]) for _ in range(10)} == {0, 2}
    assert {sticky.choose(3, []) for _ in range(10)} == {0, 1, 2}


def test_keys_spread_over_all_partitions() -> None:
    found = partitions_for(binary_of([b"key-%d" % i for i in range(10_000)]), 4)
    assert np.bincount(found).min() > 2000
