"""Encode and decode many of Kafka's zigzag varints together, with numpy. A varint is an integer in
one to ten bytes; numbers near zero take fewer.

``decode`` never reads outside of the body (the bytes of a batch after its header). For a position
past the end it reads the body's last byte and returns a position past the end, which callers must
check."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from broker_lite.errors import CorruptMessageError

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_ONE_BYTE: Final = np.array([(raw >> 1) ^ -(raw & 1) for raw in range(128)], np.int64)


def decode(body: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """Decode the varints that begin at the positions ``at``. Return their values, and the positions
    after them. Raises CorruptMessageError for a varint longer than 64 bits."""
    first = body.take(at, mode="clip")
    after = at + 1
    more = first > 127
    if not more.any():
        return _ONE_BYTE.take(first), after
    raw = (first & 0x7F).astype(np.uint64)
    active = np.flatnonzero(more)
    shift = 7
    while active.size:
        if shift > 63:
            raise CorruptMessageError("a varint is longer than 64 bits")
        if active.size == at.size:
            byte = body.take(after, mode="clip")
            raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after += 1
        else:
            byte = body.take(after[active], mode="clip")
            raw[active] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[active] += 1
        if shift == 63 and byte.max() > 1:
            raise CorruptMessageError("a varint is longer than 64 bits")
        active = active[byte > 127]
        shift += 7
    return _from_zigzag(raw), after


def encode(values: Positions) -> tuple[Bytes, Positions]:
    """Encode each value as a varint. Return a matrix whose rows have the bytes of one varint each,
    and the number of used bytes of each row."""
    raw = ((values << 1) ^ (values >> 63)).view(np.uint64)
    widths = np.ones(len(values), np.int64)
    columns = [raw & np.uint64(0x7F)]
    rest = raw >> np.uint64(7)
    while rest.any():
        more = rest != 0
        widths += more
        columns[-1] |= more.astype(np.uint64) << np.uint64(7)
        columns.append(rest & np.uint64(0x7F))
        rest = rest >> np.uint64(7)
    matrix = np.empty((len(values), len(columns)), np.uint8)
    for index, column in enumerate(columns):
        matrix[:, index] = column
    return matrix, widths


def _from_zigzag(raw: npt.NDArray[np.uint64]) -> Positions:
    half = (raw >> np.uint64(1)).view(np.int64)
    return half ^ -(raw & np.uint64(1)).view(np.int64)
