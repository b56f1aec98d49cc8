"""Choose the partition of a record: by Kafka's murmur2 hash of the key, or the sticky partition.

The hash equals that of Kafka's Java client, so both clients send a key to the same partition. Each
call hashes a whole column with numpy, not key by key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.record.arrays import nulls_of

_SEED = 0x9747B28C
_M = 0x5BD1E995
_SHORT_WORDS = 64
_FEW_KEYS = 256
"""All keys are hashed together, by four-byte word. After ``_SHORT_WORDS`` words, once at most
``_FEW_KEYS`` keys are longer, the rest of each of these is hashed by itself.

A numpy call over all keys for each word would take a minute for a key of 1 MB."""


def murmur2_column(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return Kafka's 32-bit hash of every key of a binary column; meaningless for a null key."""
    count = len(keys)
    if count == 0:
        return np.zeros(0, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    starts = offsets[:-1].astype(np.int64)
    sizes = np.diff(offsets).astype(np.int64)
    # Sort the keys by length, the longest first. In each round, the keys that still have a
    # four-byte word to hash are then the first ones.
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = starts[order], sizes[order]
    h = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    m, words = np.uint32(_M), sizes >> 2
    for word in range(int(words[0])):
        active = int(np.searchsorted(-words, -word, side="left"))
        if word >= _SHORT_WORDS and active <= _FEW_KEYS:
            for row in range(active):
                begin, left = int(starts[row]) + 4 * word, int(words[row]) - word
                h[row] = _hash_words(int(h[row]), np.frombuffer(data, "<u4", left, begin))
            break
        at = starts[:active] + 4 * word
        k = data[at].astype(np.uint32)
        for byte in (1, 2, 3):
            k |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        k *= m
        k ^= k >> np.uint32(24)
        k *= m
        h[:active] *= m
        h[:active] ^= k
    rest = sizes & 3
    for byte in (2, 1, 0):
        rows = np.flatnonzero(rest > byte)
        if len(rows):
            at = starts[rows] + (sizes[rows] & ~3) + byte
            h[rows] ^= data[at].astype(np.uint32) << np.uint32(8 * byte)
    h[rest > 0] *= m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    hashes = np.empty(count, np.uint32)
    hashes[order] = h
    return hashes


def _hash_words(h: int, words: npt.NDArray[np.uint32]) -> int:
    """Continue the hash ``h`` of one key over ``words``, its next four-byte words."""
    k = words * np.uint32(_M)
    k ^= k >> np.uint32(24)
    k *= np.uint32(_M)
    for mixed in k.tolist():
        h = (h * _M & 0xFFFFFFFF) ^ mixed
    return h


def partitions_for(keys: pa.Array, partition_count: int) -> npt.NDArray[np.int32]:
    """Return the partition of every key of a binary column; -1 for a null key."""
    hashes = murmur2_column(keys) & np.uint32(0x7FFFFFFF)
    partitions: npt.NDArray[np.int32] = (hashes % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[nulls_of(keys)] = -1
    return partitions


class Sticky:
    """Chooses the sticky partition, to which all records without a key go until the next batch
    begins.

    The batches go in turn to the partitions that have a leader, or to all partitions if none has a
    leader."""

    __slots__ = ("_turn",)

    def __init__(self, turn: int) -> None:
        self._turn = turn

    def choose(self, partition_count: int, available: Sequence[int]) -> int:
        """Return the partition of the next batch. ``available`` are the partitions with a
        leader."""
        self._turn += 1
        if available:
            return available[self._turn % len(available)]
        return self._turn % partition_count
