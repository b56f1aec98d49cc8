"""Handle ListTransactions 0-2: list the transactional ids that this broker coordinates.

A client sends the request to every broker. Filters select by state, producer id, age of the open
transaction (KIP-994), and a regular expression for the whole id (KIP-1152). Each task attempt of a
Spark query with the exactly-once sink has a row until it is committed or aborted, with the sink's
transactional id and the attempt's producer id.

The leader of a partition sends the request with a tagged field of logbus, to learn the outcomes of
transactions that may hang in its log (``transactions/hanging.py``)."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidRegularExpressionError,
    LogbusError,
    wire_code,
)
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.records import TransactionState
from broker_lite.wire.calls.transaction_search import (
    FoundTransaction,
    FoundTransactions,
    SearchedPartition,
)
from broker_lite.wire.tables import ListTransactionsResponse as Response
from broker_lite.wire.tables import build, own_tag

_State = Response.TransactionState
_LABELS = {state.label for state in TransactionState}
"""Kafka's names of all transaction states."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """List the transactional ids that pass all filters. An empty filter passes every id."""
    if own_tag(message) and request.may_be_broker:
        request.access.check_cluster(Operation.CLUSTER_ACTION)
        return await _find(parts, message)
    states = set(message.state_filters)
    unknown = sorted(states - _LABELS)
    ids = set(message.producer_id_filters)
    begun_by_ms = parts.clock.now_ms() - message.duration_filter
    rows, kind = [], ResourceKind.TRANSACTIONAL_ID
    # Check a permission before anything else: the dispatcher drops the answer of a handler that
    # has checked none, even an error answer.
    request.access.visible(kind, ())
    try:
        parts.transactions.check_loaded()
        async for view in parts.transactions.views():
            record = view.record
            is_old = record.is_open and record.start_ms < begun_by_ms
            if (
                (not states or view.state.label in states)
                and (not ids or record.producer_id in ids)
                and (message.duration_filter < 0 or is_old)
            ):
                rows.append(view)
        visible = frozenset(request.access.visible(kind, [view.name for view in rows]))
        rows = [view for view in rows if view.name in visible]
        names = _matching([view.name for view in rows], message.transactional_id_pattern)
    except LogbusError as error:
        return Response(
            error_code=wire_code(error), unknown_state_filters=unknown, transaction_states=[]
        )
    return Response(
        unknown_state_filters=unknown,
        transaction_states=[
            build(
                _State,
                transactional_id=view.name,
                producer_id=view.record.producer_id,
                transaction_state=view.state.label,
            )
            for view in rows
            if view.name in names
        ],
    )


async def _find(parts: BrokerContext, message: Any) -> FoundTransactions:
    """Return the last transactions of the given producers, to the leader of a partition.

    The answer has all of them: the leader aborts a transaction that no coordinator knows, so no
    permission may hide one."""
    found = await parts.transactions.find(frozenset(message.producer_id_filters))
    rows = [
        FoundTransaction(view.name, producer_id, view.state.label, epoch)
        for view in found.views
        for producer_id, epoch in (view.record.written_by,)
    ]
    searched = tuple(SearchedPartition(*each) for each in found.leader_epochs.items())
    return FoundTransactions(NO_ERROR, (), tuple(rows), searched)


def _matching(names: list[str], pattern: str | None) -> set[str]:
    """Return the names that the regular expression ``pattern`` matches as a whole.

    RE2 needs time linear in a name's length, so no pattern can block the broker. Raises
    InvalidRegularExpressionError if RE2 does not accept the pattern."""
    if not pattern or not names:
        return set(names)
    # Import pyarrow only for a pattern. It has RE2, which Kafka uses for these patterns too.
    import pyarrow as pa
    import pyarrow.compute as pc

    from broker_lite.client.arrays import binary_of

    array = binary_of([name.encode() for name in names], pa.string())
    try:
        matches = pc.match_substring_regex(array, pattern=f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise InvalidRegularExpressionError(
            f"transactional id pattern {pattern!r} is not a regular expression of RE2: {error}; "
            "correct the pattern"
        ) from None
    return set(array.filter(matches).to_pylist())
