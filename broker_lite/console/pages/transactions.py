"""The data of the page about transactions: transactional ids, and open transactions that hold back
readers of committed records."""

from __future__ import annotations

import time
from typing import Any

from broker_lite.client.administration import transactions as found
from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.errors import LogbusError

IDS = (
    Column("name", "Transactional id"),
    Column("state", "State"),
    Column("producer", "Producer id", "id"),
    Column("coordinator", "Coordinator", "id"),
)
OPEN_MAX = 100
"""Maximum open transactions that the page lists, the longest open first."""


def transactions(request: PageRequest) -> Data:
    admin = request.admin
    rows = [
        {
            "name": row.transactional_id,
            "state": row.state,
            "producer": row.producer_id,
            "coordinator": row.coordinator,
        }
        for row in admin.run(found.list_transactions)
    ]
    opened, refusal = _open(request)
    return {
        "transactions": listing(rows, IDS, request.query, sort="name"),
        "open": opened,
        "open_refusal": refusal,
    }


def _open(request: PageRequest) -> tuple[list[dict[str, Any]], str]:
    """Return the open transactions that hold back a partition's last stable offset, and an error
    message. If the request fails, the list is empty; otherwise the message is empty."""
    view = request.view
    tps = [tp for tp, _ in view.rows if view.leader(tp)]
    try:
        holders = request.admin.run(found.holders, tps)
    except LogbusError as error:
        return [], error.message
    now_ms = time.time() * 1000
    return [
        {
            "topic": holder.row.tp.topic,
            "partition": holder.row.tp.partition,
            "start_offset": holder.row.start_offset,
            "id": None if holder.owner is None else holder.owner.transactional_id,
            "producer": holder.row.producer_id,
            "age_s": max(0.0, now_ms - holder.since_ms) / 1000,
            # Without an owner, the transaction may also have an id that this user may not describe.
            "hangs": holder.is_hanging and (holder.owner is not None or request.sees_all),
        }
        for holder in holders[:OPEN_MAX]
    ], ""
