"""Create topics that a Metadata request names and that do not exist.

Both ``auto.create.topics.enable`` and the request (Metadata 4 and later) must allow it. The
controller creates them with ``num.partitions`` and ``default.replication.factor``. In logbus the
answer waits for the topics; Kafka 4 answers UNKNOWN_TOPIC_OR_PARTITION at once, and clients
retry."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker_lite.errors import (
    NO_ERROR,
    LeaderNotAvailableError,
    LogbusError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    error_for,
    wire_code,
)
from broker_lite.model import INTERNAL_PREFIX, is_valid_name
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.handlers.deadline import within
from broker_lite.server.handlers.forwarding import ask_controller
from broker_lite.server.log_events import log_event
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.topics import DEFAULT_COUNT, CreatableTopic, CreateTopicsRequest

CREATED_MAX = 100
"""Maximum number of topics that one request creates; for further topics, clients have to retry."""
CREATION_WAIT_MS = 5000
"""Milliseconds after which a client gets LEADER_NOT_AVAILABLE for topics that do not exist yet."""

logger = logging.getLogger("logbus.topics")


async def create_missing(
    parts: BrokerContext, request: RequestContext, names: Sequence[str]
) -> dict[str, int]:
    """Create topics with default settings, and wait until this broker's metadata have them.

    Return the error codes of the topics that could not be created."""
    # Do not create internal topics: tools would take an empty ``__consumer_offsets`` for a cluster
    # without consumer groups.
    missing = [n for n in names if is_valid_name(n) and not n.startswith(INTERNAL_PREFIX)]
    missing = list(dict.fromkeys(missing))[:CREATED_MAX]
    quota, partitions = request.quota, parts.config.num_partitions
    denied = {}
    for name in missing:
        try:
            request.access.check_creation(name)
            if quota is not None:
                quota.mutate(partitions, is_strict=True)
        except TopicAuthorizationError as error:
            denied[name] = error.code
        except ThrottlingQuotaExceededError:
            # Replace THROTTLING_QUOTA_EXCEEDED, as Kafka does: clients of older API versions do not
            # know this error.
            denied[name] = UnknownTopicOrPartitionError.code
    missing = [name for name in missing if name not in denied]
    if not missing:
        return denied
    try:
        codes = await within(CREATION_WAIT_MS, _create(parts, request, missing))
    except LogbusError as error:
        # ZooKeeper or the controller is unavailable. Answer with an error after which clients
        # retry.
        logger.debug("topics %s cannot be created now: %s", missing, error.message)
        if quota is not None:
            quota.refund(partitions * len(missing), error)
        return denied | dict.fromkeys(missing, LeaderNotAvailableError.code)
    for code in codes.values():
        if quota is not None and code:
            quota.refund(partitions, error_for(code))
    return denied | {
        name: code for name, code in codes.items() if code not in (0, TopicExistsError.code)
    }


async def _create(
    parts: BrokerContext, request: RequestContext, names: Sequence[str]
) -> dict[str, int]:
    registry = parts.registry
    if registry.is_controller:
        rows = [NewTopic(name, DEFAULT_COUNT, DEFAULT_COUNT, None, {}) for name in names]
        results = await registry.administration.create_topics(rows)
        codes = {result.name: wire_code(result.error) for result in results}
        for result in results:
            parts.audit.write(
                "changed",
                api="metadata",
                object=f"topic {result.name}",
                after={"partitions": result.partitions, "replicas": result.replication_factor},
                error=None if result.error is None else result.error.name,
                user=request.session.principal,
                host=request.session.host,
                client_id=request.client_id,
            )
    else:
        topics = tuple(CreatableTopic(name) for name in names)
        answer = await ask_controller(parts, CreateTopicsRequest(topics, CREATION_WAIT_MS), request)
        codes = {row.name: row.error_code for row in answer.topics}
    created = [name for name, code in codes.items() if code == NO_ERROR]
    if created:
        logger.info(
            "created topics %s, which a client requested",
            created,
            extra=log_event("topics_created"),
        )
    await registry.administration.wait_topics(
        [n for n, c in codes.items() if c in (0, TopicExistsError.code)]
    )
    return codes
