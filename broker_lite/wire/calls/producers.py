"""The client's request InitProducerId v4, which returns the id and epoch of a producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_PRODUCER
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16, Int32, Int64


class InitProducerIdResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64
    producer_epoch: Int16


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(DeclaredCall[InitProducerIdResponse]):
    """Request a producer id and epoch. Without a transactional id, each answer has a new producer
    id with epoch 0."""

    API_KEY: ClassVar[int] = ApiKey.INIT_PRODUCER_ID
    VERSION: ClassVar[int] = 4

    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = 60_000
    producer_id: Int64 = NO_PRODUCER
    producer_epoch: Int16 = NO_EPOCH
