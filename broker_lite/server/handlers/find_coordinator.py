"""Handle FindCoordinator 0-4: return the broker that coordinates a group or a transactional id.

Every broker computes a group's coordinator from the live brokers, with the same result. When a
broker joins or leaves, only the groups that it coordinates move. A transactional id's coordinator
leads its partition of ``__transaction_state``, a topic that the controller creates at the first
request.

While a broker of the cluster does not support transactions, requests for transactional ids fail
with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only error that all clients treat as fatal;
librdkafka retries after every other error until its timeout."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    InvalidRequestError,
    LogbusError,
    NotControllerError,
    TopicExistsError,
    TransactionalIdAuthorizationError,
)
from broker_lite.model import NO_BROKER, TRANSACTION_STATE, BrokerView, Endpoint
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.coordinators.state_log import leader_of
from broker_lite.server.handlers.deadline import within
from broker_lite.server.handlers.forwarding import ask_controller
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.groups import (
    KEY_TYPE_GROUP,
    KEY_TYPE_TRANSACTION,
    FindCoordinatorRequest,
)
from broker_lite.wire.tables import FindCoordinatorResponse as Response
from broker_lite.wire.tables import build

BATCHED_FROM = 4
"""The first version of FindCoordinator whose requests name several groups or transactional ids."""
STATE_PARTITIONS = 6
"""Number of partitions of ``__transaction_state``.

More would spread the coordination over more brokers; with fewer, more transactions share each
flush."""
STATE_CONFIG = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "unclean.leader.election.enable": "false",
    "segment.bytes": str(32 << 20),
}
"""Topic settings of ``__transaction_state``.

To compact the topic, the broker appends a copy of all values to the log and deletes the
segments that end before the copy. With small segments, it can delete more of the log."""
CREATION_WAIT_MS = 5000
"""Maximum time (ms) for which a request waits for the creation of ``__transaction_state``."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot. Only the creation of ``__transaction_state`` needs
    ZooKeeper."""
    batched = request.api_version >= BATCHED_FROM
    rows = []
    for key in message.coordinator_keys if batched else [message.key]:
        fields: dict[str, Any]
        try:
            if message.key_type == KEY_TYPE_TRANSACTION:
                request.access.check_transactional_id(key)
                broker_id, host, port = await _transaction_coordinator(parts, request, key)
            else:
                request.access.check_group(key)
                broker_id, host, port = _coordinator(parts, request, key, message.key_type)
            fields = {"node_id": broker_id, "host": host, "port": port}
        except LogbusError as error:
            fields = {"node_id": NO_BROKER, "host": "", "port": -1}
            fields |= {"error_code": error.code, "error_message": error.message}
        rows.append((key, fields))
    if not batched:
        return Response(**rows[0][1])
    return Response(
        coordinators=[build(Response.Coordinator, key=key, **fields) for key, fields in rows]
    )


def _coordinator(
    parts: BrokerContext, request: RequestContext, key: str, key_type: int
) -> tuple[int, str, int]:
    if key_type != KEY_TYPE_GROUP:
        raise InvalidRequestError(
            f"coordinator type {key_type} is not supported; give 0 (group) or 1 (transaction)"
        )
    if not key:
        raise InvalidGroupIdError("the group id is empty; set group.id in the client")
    chosen = parts.groups.coordinator_of(key)
    if chosen is None:
        raise CoordinatorNotAvailableError("no broker is registered at present; try again")
    return chosen.broker_id, *_address(chosen, request)


def _address(broker: BrokerView, request: RequestContext) -> Endpoint:
    """Return the broker's address on the listener to which the client has connected."""
    endpoint = broker.at(request.session.listener)
    if endpoint is None:
        raise CoordinatorNotAvailableError(
            f"the coordinator, broker {broker.broker_id}, lacks this connection's listener "
            f"{request.session.listener}; add it to the broker's listeners"
        )
    return endpoint


async def _transaction_coordinator(
    parts: BrokerContext, request: RequestContext, key: str
) -> tuple[int, str, int]:
    registry = parts.registry
    if not registry.snapshot.has_transactions:
        raise TransactionalIdAuthorizationError(
            "a broker of the cluster does not support transactions; upgrade it, or use a producer "
            "without transactional.id"
        )
    if not key:
        raise InvalidRequestError(
            "the transactional id is empty; set transactional.id in the producer"
        )
    if TRANSACTION_STATE not in registry.snapshot.topics:
        try:
            await within(CREATION_WAIT_MS, _create_state_topic(parts, request, key))
        except LogbusError as error:
            raise CoordinatorNotAvailableError(
                f"topic {TRANSACTION_STATE!r} cannot be created at present: {error.message}"
            ) from None
    await registry.wait_elections(
        lambda now: [now.topics[TRANSACTION_STATE]] if TRANSACTION_STATE in now.topics else ()
    )
    leader = leader_of(registry.snapshot, TRANSACTION_STATE, key.encode())
    return leader.broker_id, *_address(leader, request)


async def _create_state_topic(parts: BrokerContext, request: RequestContext, key: str) -> None:
    registry = parts.registry
    if registry.is_controller:
        topic = NewTopic(TRANSACTION_STATE, STATE_PARTITIONS, config=STATE_CONFIG)
        (result,) = await registry.administration.create_topics([topic])
        if result.error is not None and not isinstance(result.error, TopicExistsError):
            raise result.error
    elif request.is_forwarded:
        raise NotControllerError()
    else:
        await ask_controller(parts, FindCoordinatorRequest((key,), key_type=KEY_TYPE_TRANSACTION))
    await registry.administration.wait_topics([TRANSACTION_STATE])
