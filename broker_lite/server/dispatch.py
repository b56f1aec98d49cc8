"""Route each request to its handler, and turn exceptions into error responses.

The handlers of Produce and Fetch answer by callback; the others are coroutines, with one task for
each request. A request of an unsupported version gets UNSUPPORTED_VERSION in the format of that
version. ApiVersions gets it in the format of version 0, so that a newer client can choose a lower
version. A request that cannot be decoded cannot be answered; the broker logs it and closes the
connection."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    ClusterAuthorizationError,
    InvalidRequestError,
    LogbusError,
    ProtocolError,
    UnknownServerError,
    UnsupportedVersionError,
    wire_code,
)
from broker_lite.server.audit import CHANGES
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_batch,
    end_group_offsets,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_batch,
    join_group,
    keep_batch,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    offsets_for_bytes,
    produce,
    record_times,
    replace_configs,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from broker_lite.server.network.access import FORWARDED
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import NO_HEADER, RequestContext
from broker_lite.server.network.login_queue import LoginQueue
from broker_lite.server.network.quotas import timed
from broker_lite.server.task_set import TaskSet
from broker_lite.wire import refusals, tables
from broker_lite.wire.api import (
    VERSIONS,
    ApiKey,
    is_served,
    why_too_long,
)
from broker_lite.wire.calls.envelope import EnvelopeRequest, EnvelopeResponse
from broker_lite.wire.refused_tables import CURES

logger = logging.getLogger("logbus.dispatch")

Handler = Callable[[BrokerContext, RequestContext, Any], Awaitable[Any]]

HANDLERS: dict[int, Handler] = {
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.OFFSET_COMMIT: offset_commit.handle,
    ApiKey.OFFSET_FETCH: offset_fetch.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.FIND_COORDINATOR: find_coordinator.handle,
    ApiKey.JOIN_GROUP: join_group.handle,
    ApiKey.SYNC_GROUP: sync_group.handle,
    ApiKey.HEARTBEAT: heartbeat.handle,
    ApiKey.LEAVE_GROUP: leave_group.handle,
    ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
    ApiKey.LIST_GROUPS: list_groups.handle,
    ApiKey.DELETE_GROUPS: delete_groups.handle,
    ApiKey.OFFSET_DELETE: offset_delete.handle,
    ApiKey.API_VERSIONS: api_versions.handle,
    ApiKey.SASL_HANDSHAKE: sasl_handshake.handle,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate.handle,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials.handle,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit.handle,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.handle,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.handle,
    ApiKey.END_TXN: end_txn.handle,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions.handle,
    ApiKey.LIST_TRANSACTIONS: list_transactions.handle,
    ApiKey.DESCRIBE_ACLS: describe_acls.handle,
    ApiKey.CREATE_ACLS: create_acls.handle,
    ApiKey.DELETE_ACLS: delete_acls.handle,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas.handle,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas.handle,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.ALTER_CONFIGS: replace_configs.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.handle,
    ApiKey.ELECT_LEADERS: elect_leaders.handle,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
    ApiKey.UNREGISTER_BROKER: unregister_broker.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
    ApiKey.UPDATE_FEATURES: update_features.handle,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers.handle,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.handle,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
    ApiKey.OFFSETS_FOR_BYTES: offsets_for_bytes.handle,
    ApiKey.RECORD_TIMES: record_times.handle,
    ApiKey.END_GROUP_OFFSETS: end_group_offsets.handle,
    ApiKey.JOIN_BATCH: join_batch.handle,
    ApiKey.END_BATCH: end_batch.handle,
    ApiKey.KEEP_BATCH: keep_batch.handle,
}
"""The handlers by API key, except those of Produce and Fetch, which are no coroutines, and of
Envelope (``_unpack``)."""


LABELS: dict[int, str] = {key: key.name.lower() for key in ApiKey}
"""The label of each API key in metrics. A lookup here is ten times as fast as building the
label."""

TIMED = frozenset({
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT, ApiKey.CREATE_TOPICS, ApiKey.INIT_PRODUCER_ID,
})  # fmt: skip
"""APIs with a metric of their own for request durations; the others share ``OTHER_APIS``."""
OTHER_APIS = "other"

UNCHECKED = "the handler has not checked the client's permissions, so its answer is dropped"
LOGGED_VERSIONS_MAX = 1000
"""Maximum number of combinations of API, unsupported version and client id that are logged."""


class Dispatcher:
    """The dispatcher of one broker. Connections pass each received frame to ``begin``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, parts: BrokerContext) -> None:
        self._parts = parts
        self._tasks = TaskSet()
        self._logins = LoginQueue(loop, self._start)
        self._logged_versions: set[tuple[int, int, str | None]] = set()
        meters = {
            label: (
                parts.metrics.counter("requests", label),
                parts.metrics.histogram("request_duration_seconds", label),
            )
            for label in (*(LABELS[key] for key in TIMED), OTHER_APIS)
        }
        self._meters = {
            key: meters[label if key in TIMED else OTHER_APIS] for key, label in LABELS.items()
        }

    def begin(self, frame: memoryview, reply: ResponseSlot) -> None:
        """Start to answer the request in a frame. Raises ProtocolError if the frame is no
        request."""
        read = RequestContext.read_token if reply.session.sends_tokens else RequestContext.read
        request = read(frame, reply.session, reply.arrived_ms, self._parts.authorizer)
        key = request.api_key
        if request.session.ends_ms:
            self._parts.logins.expire(request.session)
        if request.session.needs_login and (
            why := self._parts.logins.why_refused(request.session, key, len(frame))
        ):
            reply.refuse(why)
            return
        if key == ApiKey.SASL_AUTHENTICATE:
            self._parts.logins.watch(request.session, reply.connection)
        is_known = is_served(key, request.api_version) or request.api_version == NO_HEADER
        if not is_known and key != ApiKey.API_VERSIONS:
            self._refuse(request, frame, reply, UnsupportedVersionError(_unsupported(request)))
            return
        if too_long := why_too_long(key, len(frame)):
            self._refuse(request, frame, reply, InvalidRequestError(too_long))
            return
        if _changes_framing(request):
            reply.hold()
        requests, reply.duration = self._meters[key]
        requests.n += 1
        if self._parts.quotas.is_on:
            request = request._replace(quota=self._parts.quotas.of(request))
            if request.quota is not None and request.quota.limits_time:
                began = time.perf_counter()
                self._start(request, frame, reply)
                request.quota.spend_time(time.perf_counter() - began)
                return
        if request.session.needs_login:
            self._logins.add(request, frame, reply)
        else:
            self._start(request, frame, reply)

    def _start(self, request: RequestContext, frame: memoryview, reply: ResponseSlot) -> None:
        key = request.api_key
        try:
            access = request.access
            if access.is_checked and access.row.cluster:
                access.check_cluster(*access.row.cluster)
            if key == ApiKey.PRODUCE:
                produce.handle(self._parts, request, frame, reply)
            elif key == ApiKey.FETCH:
                fetch.handle(self._parts, request, frame, reply)
            else:
                if request.api_version == NO_HEADER:
                    message: Any = sasl_authenticate.Token(bytes(frame))
                else:
                    message = tables.decode(key, request.api_version, frame, request.body_at)
                self._tasks.start(self._answer(request, message, frame, reply))
                return
            if not access.has_checked:
                logger.error("%s: %s: %s", request, _name(request), UNCHECKED)
                reply.refuse(UNCHECKED)
        except ClusterAuthorizationError as denial:
            self._fail(request, frame, reply, denial)
        except LogbusError:
            raise
        except Exception:
            logger.exception("%s: unexpected error in %s", request, _name(request))
            self._fail(request, frame, reply, UnknownServerError())

    def _refuse(
        self, request: RequestContext, frame: memoryview, reply: ResponseSlot, error: LogbusError
    ) -> None:
        """Answer a request with an error, because its version is unsupported or its frame is too
        large."""
        label = LABELS.get(request.api_key, "unknown")
        self._parts.metrics.count("request_errors", label, error.name)
        reason = error.message
        refusal = _refusal(request, frame, wire_code(error), reason)
        if refusal is None:
            reply.refuse(f"client {request.shown_client_id!r}: {reason}")
            return
        unsupported = request.api_key, request.api_version, request.shown_client_id
        if (
            unsupported not in self._logged_versions
            and len(self._logged_versions) < LOGGED_VERSIONS_MAX
        ):
            self._logged_versions.add(unsupported)
            logger.warning("%s: %s", request, reason)
        reply.answer((refusal,))

    def _fail(
        self, request: RequestContext, frame: memoryview, reply: ResponseSlot, error: LogbusError
    ) -> None:
        """Answer a request with the error that its handler raised, in the API's format."""
        self._parts.metrics.count("request_errors", LABELS[request.api_key], error.name)
        refusal = _refusal(request, frame, wire_code(error), error.message)
        if refusal is None:
            reply.refuse(f"{_name(request)}: {wire_code(error)} {error.message}")
        else:
            reply.answer((refusal,))

    async def _answer(
        self, request: RequestContext, message: Any, frame: memoryview, reply: ResponseSlot
    ) -> None:
        quota = request.quota
        work = self._encoded(request, message, reply)
        try:
            if quota is None:
                data = await work
            else:
                data = await timed(work, time.perf_counter, quota.spend_time)
        except LogbusError as error:
            self._fail(request, frame, reply, error)
        except Exception:
            logger.exception("%s: unexpected error in %s", request, _name(request))
            self._fail(request, frame, reply, UnknownServerError())
        else:
            if request.api_key == ApiKey.SASL_AUTHENTICATE and request.session.closes:
                reply.close_after(request.session.closes)
            reply.answer((data,) if data else ())
        if _changes_framing(request) and reply.is_open and not reply.closes:
            reply.go_on()

    async def _encoded(
        self, request: RequestContext, message: Any, reply: ResponseSlot | None = None
    ) -> bytes:
        """Return a request's answer from its handler, as an encoded frame.

        If the client is over its quota, throttle its connection through ``reply``."""
        key = request.api_key
        handler = self._unpack if key == ApiKey.ENVELOPE else HANDLERS[key]
        before = self._parts.registry.snapshot if self._audits(request) else None
        response = await handler(self._parts, request, message)
        if before is not None:
            self._parts.audit.changed(
                key,
                message,
                response,
                before,
                user=request.session.principal,
                host=request.session.host,
                client_id=request.client_id,
            )
        if not request.access.is_answerable(message):
            logger.error("%s: %s: %s", request, _name(request), UNCHECKED)
            raise UnknownServerError()
        if request.quota is not None:
            wait_ms = request.quota.answered()
            if wait_ms and reply is not None:
                tables.set_throttle(response, wait_ms)
                reply.throttle(wait_ms)
        if request.api_version == NO_HEADER:
            return sasl_authenticate.token_frame(response)
        return tables.encode(key, request.api_version, request.correlation_id, response)

    def _audits(self, request: RequestContext) -> bool:
        """Return whether this broker's audit log has to record the request. Requests that brokers
        forward to the controller are recorded only there."""
        parts, key = self._parts, request.api_key
        if not parts.audit.is_on or key not in CHANGES:
            return False
        if key == ApiKey.WRITE_TXN_MARKERS and request.is_broker:
            # Do not record a transaction coordinator's markers. An administrator sends this request
            # to abort a hanging transaction.
            return False
        return key not in FORWARDED or parts.registry.is_controller

    async def _unpack(
        self, parts: BrokerContext, request: RequestContext, envelope: EnvelopeRequest
    ) -> EnvelopeResponse:
        """Answer a request that another broker forwarded for a client in an Envelope.

        The client's permissions apply. The other broker has charged the client's quotas."""
        if not request.is_broker:
            raise ClusterAuthorizationError("only brokers may forward requests in an Envelope")
        session = dataclasses.replace(
            request.session,
            peer=f"{envelope.host}:0",
            principal=envelope.principal,
            is_forwarded=True,
        )
        frame = memoryview(envelope.request)
        inner = RequestContext.read(frame, session, request.arrived_ms, parts.authorizer)
        if inner.api_key not in FORWARDED or not is_served(inner.api_key, inner.api_version):
            raise InvalidRequestError(f"{_name(inner)} must not be forwarded in an Envelope")
        message = tables.decode(inner.api_key, inner.api_version, frame, inner.body_at)
        data: bytes | None
        try:
            if inner.access.is_checked and inner.access.row.cluster:
                inner.access.check_cluster(*inner.access.row.cluster)
            data = await self._encoded(inner, message)
        except LogbusError as error:
            data = _refusal(inner, frame, wire_code(error), error.message)
        code = NO_ERROR if data is not None else UnknownServerError.code
        return EnvelopeResponse(None if data is None else data[4:], code)

    def close(self) -> None:
        """Cancel all requests that wait, because the broker stops."""
        self._tasks.cancel()


def _changes_framing(request: RequestContext) -> bool:
    """Return whether the answer to this request decides if the next frame is a bare SASL message,
    without a header."""
    return request.api_key == ApiKey.SASL_HANDSHAKE or request.api_version == NO_HEADER


def _name(request: RequestContext) -> str:
    try:
        name = ApiKey(request.api_key).name
    except ValueError:
        name = refusals.name_of(request.api_key) or f"API {request.api_key}"
    return f"{name} version {request.api_version}"


def _refusal(request: RequestContext, frame: memoryview, code: int, reason: str) -> bytes | None:
    """Return an error response in the format of the request's API and version.

    Return None if the broker knows no format that the client could decode."""
    try:
        return refusals.refused(request.header, frame, code, reason)
    except ProtocolError:
        return None
    except Exception:
        logger.exception("%s: unexpected error in %s", request, _name(request))
        return None


def _unsupported(request: RequestContext) -> str:
    reason = f"{_name(request)} is not supported"
    if request.api_key in VERSIONS:
        first, last = VERSIONS[request.api_key]
        return f"{reason}; this broker supports versions {first} to {last}"
    cure = CURES.get(request.api_key)
    return f"{reason}: {cure}" if cure else reason
