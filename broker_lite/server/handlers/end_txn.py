"""Handle EndTxn 0-5: commit or abort the transaction of a transactional id.

The broker answers when the decision is committed to ``__transaction_state``, before the markers are
written. From version 5 on, the answer has the producer id and epoch for the next transaction."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError
from broker_lite.model import NO_EPOCH, NO_PRODUCER, UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.events import End
from broker_lite.wire.error_codes import code_in_version
from broker_lite.wire.tables import EndTxnResponse as Response

BUMPS_EPOCH_FROM = 5
"""The first version of EndTxn that raises the producer epoch at the end of a transaction
(KIP-890)."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Commit or abort the transaction. A repeated request gets the same answer."""
    version = 2 if request.api_version >= BUMPS_EPOCH_FROM else 1
    try:
        request.access.check_transactional_id(message.transactional_id)
        result = await parts.transactions.ask(
            message.transactional_id,
            End(
                UNNUMBERED,
                message.producer_id,
                message.producer_epoch,
                message.committed,
                version,
                request.session.number,
            ),
        )
        if result.error is not None:
            raise result.error
    except LogbusError as error:
        code = code_in_version(error, request.api_key, request.api_version)
        return Response(error_code=code, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
    return Response(producer_id=result.producer_id, producer_epoch=result.epoch)
