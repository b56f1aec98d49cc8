"""Write the audit log of a broker: logins, denied requests and administrative changes.

Each line has a principal. A separate thread writes ``audit.log``, so that a slow disk delays no
request. Only the user account of the broker process can read the file, which is rotated. The broker
that carries out a request records it, so the controller records forwarded requests."""

from __future__ import annotations

import atexit
import logging
import os
import queue
from collections.abc import Callable, Hashable, Iterator, Mapping
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from typing import TYPE_CHECKING, Any, NamedTuple

from broker_lite.errors import InvalidConfigError, InvalidRequestError, error_for
from broker_lite.security.acls import acl_of
from broker_lite.security.audit import AuditLimit, line_of
from broker_lite.server.clock import Clock
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.replicas import ELECTION_UNCLEAN

if TYPE_CHECKING:
    from broker_lite.metadata.cache import MetadataSnapshot

FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 10
"""Number of rotated files that are kept besides the current one."""
QUEUE_MAX = 10_000
"""Maximum number of lines that wait to be written; further ones are dropped."""


class AuditedChange(NamedTuple):
    """A change by an administrative request: the object, its values before and after, an error
    code."""

    object: str
    before: Any
    after: Any
    code: int


class _PrivateFile(RotatingFileHandler):
    """A rotating log file that only the user account of the broker process may read."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return open(descriptor, "a", encoding="utf-8")


class AuditLog:
    """The audit log of one broker. Without a path it is off (``is_on`` is False)."""

    def __init__(self, path: str = "", clock: Clock | None = None) -> None:
        self.is_on = bool(path)
        self._clock = clock or Clock()
        self._limit = AuditLimit()
        self._listener: QueueListener | None = None
        if not path:
            return
        try:
            file = _PrivateFile(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT)
        except OSError as error:
            raise InvalidConfigError(
                f"audit.log={path}: {error.strerror}; name a file that the broker may write"
            ) from None
        waiting: queue.Queue[Any] = queue.Queue(QUEUE_MAX)
        self._queue = QueueHandler(waiting)
        self._listener = QueueListener(waiting, file)
        self._listener.start()
        self._file = file
        atexit.register(self.close)

    def close(self) -> None:
        """Write the lines that wait, then stop the writing thread."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.is_on = False
            listener.stop()
            self._file.close()
            atexit.unregister(self.close)

    def write(self, event: str, kind: Hashable | None = None, **fields: Any) -> None:
        """Write an event to the log. Of events with equal ``kind``, at most one is written in 10
        s."""
        if not self.is_on:
            return
        now_ms = self._clock.now_ms()
        counts = self._limit.counts(kind and (event, kind), now_ms)
        if counts is None:
            return
        text = line_of(now_ms, event, fields | {"repeated": counts[0], "left_out": counts[1]})
        record = logging.LogRecord("logbus.audit", logging.INFO, "", 0, text, None, None)
        self._queue.handle(record)

    def changed(
        self, key: int, message: Any, response: Any, before: MetadataSnapshot, **who: Any
    ) -> None:
        """Write the changes of an administrative request to the log. ``before`` is the metadata
        before the request, with the old values."""
        for change in CHANGES[key](message, response, before):
            error = None if not change.code else error_for(change.code).name
            self.write(
                "changed",
                api=ApiKey(key).name.lower(),
                object=change.object,
                before=change.before,
                after=change.after,
                error=error,
                **who,
            )


NO_AUDIT = AuditLog()
Changes = Callable[[Any, Any, "MetadataSnapshot"], Iterator[AuditedChange]]


def _created(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    requested = {row.name: row for row in message.topics}
    for row in response.topics:
        settings = {each.name: each.value for each in requested[row.name].configs}
        counts = {
            "partitions": requested[row.name].num_partitions,
            "replicas": requested[row.name].replication_factor,
        }
        yield AuditedChange(f"topic {row.name}", None, counts | settings, row.error_code)


def _markers_written(
    message: Any, response: Any, before: MetadataSnapshot
) -> Iterator[AuditedChange]:
    """Yield the partitions in which an administrator ended a transaction (WriteTxnMarkers)."""
    for requested, row in zip(message.markers, response.markers, strict=True):
        outcome = "commit" if requested.transaction_result else "abort"
        after = {"producer_id": requested.producer_id, "transaction": outcome}
        for topic in row.topics:
            for each in topic.partitions:
                name = f"partition {topic.name}-{each.partition_index}"
                yield AuditedChange(name, None, after, each.error_code)


def _deleted(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    for row in response.responses:
        topic = before.topics.get(row.name or "")
        count = None if topic is None else {"partitions": len(topic.partitions)}
        yield AuditedChange(f"topic {row.name}", count, None, row.error_code)


def _extended(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    counts = {row.name: row.count for row in message.topics}
    for row in response.results:
        topic = before.topics.get(row.name)
        count = None if topic is None else {"partitions": len(topic.partitions)}
        yield AuditedChange(
            f"topic {row.name}", count, {"partitions": counts[row.name]}, row.error_code
        )


def _trimmed(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    offsets = {
        (row.name, each.partition_index): each.offset
        for row in message.topics
        for each in row.partitions
    }
    for row in response.topics:
        for each in row.partitions:
            after = {"log_start_offset": offsets.get((row.name, each.partition_index))}
            name = f"partition {row.name}-{each.partition_index}"
            yield AuditedChange(name, None, after, each.error_code)


def _configured(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    for requested, row in zip(message.resources, response.responses, strict=True):
        is_topic = row.resource_type == 2
        topic = before.topics.get(row.resource_name) if is_topic else None
        if topic is not None:
            known: Mapping[str, str] = topic.config
        elif row.resource_name.isdecimal():
            known = before.broker_config(int(row.resource_name))
        else:
            known = {}
        after = {each.name: each.value for each in requested.configs}
        old = {name: known.get(name) for name in after}
        kind = "topic" if is_topic else "broker"
        yield AuditedChange(f"{kind} {row.resource_name}", old, after, row.error_code)


def _acls_created(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    for requested, row in zip(message.creations, response.results, strict=True):
        try:
            after = str(
                acl_of(
                    requested.resource_type,
                    requested.resource_pattern_type,
                    requested.resource_name,
                    requested.principal,
                    requested.host,
                    requested.operation,
                    requested.permission_type,
                )
            )
        except InvalidRequestError as error:
            # The broker has refused the request, because it has an operation or a type that Kafka
            # does not define. Record the reason.
            after = error.message
        yield AuditedChange("acl", None, after, row.error_code)


def _acls_deleted(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    for result in response.filter_results:
        for row in result.matching_acls:
            acl = acl_of(
                row.resource_type,
                row.pattern_type,
                row.resource_name,
                row.principal,
                row.host,
                row.operation,
                row.permission_type,
            )
            yield AuditedChange("acl", str(acl), None, row.error_code)


def _users(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    """Yield the names of the changed users with their mechanisms, but never the credentials."""
    upserted: dict[str, list[int]] = {}
    for row in message.upsertions:
        upserted.setdefault(row.name, []).append(row.mechanism)
    for row in response.results:
        known = sorted(before.users.get(row.user, ()))
        set_again = {"set_mechanisms": str(upserted.get(row.user, []))}
        yield AuditedChange(
            f"user {row.user}", {"mechanisms": str(known)}, set_again, row.error_code
        )


def _limited(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    for requested, row in zip(message.entries, response.entries, strict=True):
        pairs = tuple(sorted(((e.entity_type, e.entity_name) for e in requested.entity), key=str))
        old = next((each for entity, each in before.quotas.items() if entity.parts == pairs), {})
        after = {each.key: None if each.remove else each.value for each in requested.ops}
        name = ", ".join(f"{kind} {each or '(default)'}" for kind, each in pairs)
        yield AuditedChange(
            f"quota of {name}", {key: old.get(key) for key in after}, after, row.error_code
        )


def _groups_deleted(
    message: Any, response: Any, before: MetadataSnapshot
) -> Iterator[AuditedChange]:
    for row in response.results:
        yield AuditedChange(f"group {row.group_id}", None, None, row.error_code)


def _offsets_deleted(
    message: Any, response: Any, before: MetadataSnapshot
) -> Iterator[AuditedChange]:
    if response.error_code:
        yield AuditedChange(f"group {message.group_id}", None, None, response.error_code)
    for row in response.topics:
        for each in row.partitions:
            name = f"offset of group {message.group_id} in {row.name}-{each.partition_index}"
            yield AuditedChange(name, None, None, each.error_code)


def _broker_retired(
    message: Any, response: Any, before: MetadataSnapshot
) -> Iterator[AuditedChange]:
    yield AuditedChange(f"broker {message.broker_id}", None, None, response.error_code)


def _elected(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    """Yield the partitions of an election with their former leaders. The new leaders are not known
    yet."""
    kind = "unclean" if getattr(message, "election_type", 0) == ELECTION_UNCLEAN else "preferred"
    after = {"election": kind}
    if error_code := getattr(response, "error_code", 0):
        yield AuditedChange("partitions", None, after, error_code)
    for row in response.replica_election_results:
        for each in row.partition_result:
            known = before.partition(row.topic, each.partition_id)
            leader = None if known is None else {"leader": known.state.leader}
            name = f"partition {row.topic}-{each.partition_id}"
            yield AuditedChange(name, leader, after, each.error_code)


def _reassigned(message: Any, response: Any, before: MetadataSnapshot) -> Iterator[AuditedChange]:
    targets = {
        (row.name, each.partition_index): each.replicas
        for row in message.topics
        for each in row.partitions
    }
    if response.error_code:
        yield AuditedChange("partitions", None, None, response.error_code)
    for row in response.responses:
        for each in row.partitions:
            known = before.partition(row.name, each.partition_index)
            old = None if known is None else {"replicas": str(list(known.target))}
            replicas = targets.get((row.name, each.partition_index))
            new = {"replicas": "cancelled" if replicas is None else str(list(replicas))}
            name = f"partition {row.name}-{each.partition_index}"
            yield AuditedChange(name, old, new, each.error_code)


CHANGES: Mapping[int, Changes] = {
    ApiKey.CREATE_TOPICS: _created,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _extended,
    ApiKey.DELETE_RECORDS: _trimmed,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configured,
    ApiKey.ALTER_CONFIGS: _configured,
    ApiKey.CREATE_ACLS: _acls_created,
    ApiKey.DELETE_ACLS: _acls_deleted,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.ALTER_CLIENT_QUOTAS: _limited,
    ApiKey.DELETE_GROUPS: _groups_deleted,
    ApiKey.OFFSET_DELETE: _offsets_deleted,
    ApiKey.UNREGISTER_BROKER: _broker_retired,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.WRITE_TXN_MARKERS: _markers_written,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned,
}
"""For each administrative API, the function that lists the changes of a request."""
