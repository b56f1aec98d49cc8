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
from broker_lite.wire.api import ApiKey

_OLDER: Mapping[int, int] = {
    ProducerFencedError.code: InvalidProducerEpochError.code,
    TransactionAbortableError.code: InvalidTxnStateError.code,
}
"""The code that replaces each newer error code in older API versions."""

_KNOWN_FROM: Mapping[int, Mapping[int, int]] = {
    ProducerFencedError.code: {
        ApiKey.INIT_PRODUCER_ID: 4,
        ApiKey.ADD_PARTITIONS_TO_TXN: 2,
        ApiKey.ADD_OFFSETS_TO_TXN: 2,
        ApiKey.END_TXN: 2,
    },
    TransactionAbortableError.code: {
        ApiKey.PRODUCE: 11,
        ApiKey.INIT_PRODUCER_ID: 5,
        ApiKey.ADD_PARTITIONS_TO_TXN: 5,
        ApiKey.ADD_OFFSETS_TO_TXN: 4,
        ApiKey.END_TXN: 4,
        ApiKey.TXN_OFFSET_COMMIT: 4,
    },
}
"""For each newer error code and API key, the first version whose clients handle the code.

APIs without an entry for a code never get the code."""


def code_in_version(error: LogbusError | None, key: int, version: int) -> int:
    """Return the code of ``error`` in an answer of API ``key`` in this version; 0 for None."""
    code = wire_code(error)
    known_from = _KNOWN_FROM.get(code)
    if known_from is not None and version < known_from.get(key, 1 << 15):
        return _OLDER[code]
    return code
