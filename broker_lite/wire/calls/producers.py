"""The client's request InitProducerId v4, which returns the id and epoch of a producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_PRODUCER
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer


class InitProducerIdResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Request a producer id and epoch. Without a transactional id, each answer has a new producer
    id with epoch 0."""

    API_KEY: ClassVar[int] = ApiKey.INIT_PRODUCER_ID
    VERSION: ClassVar[int] = 4

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH

    def encode(self, writer: Writer) -> None:
        writer.nullable_string(self.transactional_id)
        writer.i32(self.transaction_timeout_ms)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> InitProducerIdResponse:
        return reader.ended(
            InitProducerIdResponse(reader.i32(), reader.i16(), reader.i64(), reader.i16())
        )
