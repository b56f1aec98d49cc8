"""Replace an error code in an answer by an older one, if the client's API version does not define
the code.

Clients of such a version would treat PRODUCER_FENCED and TRANSACTION_ABORTABLE as unknown
failures."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogbusError,
    ProducerFencedError,
    TransactionAbortableError,
    wire_code,
)

_PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS, _END_TXN = 0, 22, 24, 25, 26
_TXN_OFFSET_COMMIT = 28

_OLDER: Mapping[int, int] = {
    ProducerFencedError.code: InvalidProducerEpochError.code,
    TransactionAbortableError.code: InvalidTxnStateError.code,
}
"""The code that replaces each newer error code in older API versions."""

_KNOWN_FROM: Mapping[int, Mapping[int, int]] = {
    ProducerFencedError.code: {
        _INIT_PRODUCER_ID: 4,
        _ADD_PARTITIONS: 2,
        _ADD_OFFSETS: 2,
        _END_TXN: 2,
    },
    TransactionAbortableError.code: {
        _PRODUCE: 11,
        _INIT_PRODUCER_ID: 5,
        _ADD_PARTITIONS: 5,
        _ADD_OFFSETS: 4,
        _END_TXN: 4,
        _TXN_OFFSET_COMMIT: 4,
    },
}
"""For each newer error code and API key, the first version whose clients handle the code.

APIs without an entry for a code never get the code."""


def code_in_version(error: LogbusError, key: int, version: int) -> int:
    """Return the error code of ``error`` in an answer of API ``key`` in this version."""
    code = wire_code(error)
    known_from = _KNOWN_FROM.get(code)
    if known_from is not None and version < known_from.get(key, 1 << 15):
        return _OLDER[code]
    return code
