"""The change that ends a hanging transaction in one partition, without its coordinator."""

from __future__ import annotations

from broker_lite.client.administration import transactions as found
from broker_lite.console.changes.change import ChangePlan, Field, Form
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import InvalidRequestError, InvalidTxnStateError
from broker_lite.model import TopicPartition


def fields(request: PageRequest) -> tuple[Field, ...]:
    names = (("topic", "Topic"), ("partition", "Partition"), ("start_offset", "Start offset"))
    return tuple(
        Field(name, label, value=request.query.get(name, ""), required=True)
        for name, label in names
    )


def abort(request: PageRequest, form: Form) -> ChangePlan:
    numbers = (form.get("partition", ""), form.get("start_offset", ""))
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in numbers):
        raise InvalidRequestError("give the partition and the start offset as numbers")
    partition, start_offset = map(int, numbers)
    tp = TopicPartition(form.get("topic", ""), partition)
    admin = request.bus.admin
    holder = admin.run(found.open_at, tp, start_offset)
    owner = holder.owner
    if owner is not None and not holder.is_hanging:
        raise InvalidTxnStateError(
            f"the transaction of id {owner.transactional_id!r} does not hang: its coordinator ends "
            f"it after {owner.timeout_ms} ms. Stop its producer, or wait"
        )

    def apply() -> str:
        admin.run(found.end, holder)
        return "/transactions"

    effect = (
        "become visible, because the coordinator has committed the transaction"
        if holder.is_commit
        else "become invisible for ever"
    )
    steps = (
        f"Writes the {holder.outcome} marker to {tp} for producer {holder.row.producer_id}.",
        f"The records of the transaction in this partition {effect}.",
    )
    command = (
        *("transactions", "abort", tp.topic, str(tp.partition)),
        *("--start-offset", str(start_offset), "--yes"),
    )
    return ChangePlan(steps, apply, str(tp), command)
