"""Authorize requests: define which permissions each API needs, and check them for each client.

``ROWS`` has one row for each API that the broker serves; a missing row is an error at import. The
dispatcher checks operations on the cluster, handlers those on topics, groups and transactional ids
(``request.access``). If a handler has checked nothing, the dispatcher drops its answer
(``Access.is_answerable``), so that a forgotten check cannot reveal data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    TopicAuthorizationError,
    UnacceptableCredentialError,
)
from broker_lite.model import TopicView
from broker_lite.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Entry,
    Operation,
    Pattern,
    Permission,
    ResourceKind,
)
from broker_lite.security.authorizer import CACHED_NAME_LENGTH_MAX, AclIndex
from broker_lite.security.denials import OF_THIS_ID, denial
from broker_lite.server.log_events import log_event
from broker_lite.wire.api import VERSIONS, ApiKey

if TYPE_CHECKING:
    from broker_lite.config.listeners import ListenerConfig
    from broker_lite.metadata.cache import MetadataSnapshot

logger = logging.getLogger("logbus.access")

ALLOWED_TOPICS_MAX = 100
"""Maximum number of topic names that a session remembers as allowed."""
LOGGED_DENIALS_MAX = 20
"""Maximum denials of one request that are logged. A request may name 100,000 topics, and their log
lines would block the event loop for seconds."""
ANY_BROKER = -1
"""The result of ``Authorizer.broker_id`` for a broker, if all brokers have the same principal."""
_BROKER_CLIENT = "logbus-broker-"


def broker_client_id(broker_id: int) -> str:
    """Return the client id with which this broker sends requests to other brokers."""
    return f"{_BROKER_CLIENT}{broker_id}"


_ALL_OPERATIONS = {kind: frozenset(known) for kind, known in OPERATIONS.items()}


class AccessRow(NamedTuple):
    """The operations that a client must be allowed to use before it may use an API.

    - ``topic``, ``group``, ``transactional_id``: on each such resource that a request names. The
      handler checks them.
    - ``instead``: on the cluster. A client with this one needs none of those above.
    - ``cluster``: on the cluster. The dispatcher requires one of these before it calls the handler.
    - ``names``: the request's fields with resource names. If all are empty, there is nothing to
      check."""

    topic: Operation | None = None
    group: Operation | None = None
    transactional_id: Operation | None = None
    cluster: tuple[Operation, ...] = ()
    instead: Operation | None = None
    names: tuple[str, ...] = ()

    @property
    def needs_check(self) -> bool:
        """Whether the handler must check the resources that a request names."""
        return any((self.topic, self.group, self.transactional_id, self.instead))

    def operation(self, kind: ResourceKind) -> Operation:
        """Return the operation for which a client needs permission on a resource of this kind."""
        operation = {
            ResourceKind.TOPIC: self.topic,
            ResourceKind.GROUP: self.group,
            ResourceKind.TRANSACTIONAL_ID: self.transactional_id,
        }[kind]
        assert operation is not None, f"the row has no operation on a {kind.name}"
        return operation


_OP = Operation
_TOPICS = ("topics",)
_MEMBER = AccessRow(group=_OP.READ)
_SINK = AccessRow(transactional_id=_OP.WRITE)

ROWS: Mapping[int, AccessRow] = {
    ApiKey.SASL_HANDSHAKE: AccessRow(),
    ApiKey.API_VERSIONS: AccessRow(),
    ApiKey.SASL_AUTHENTICATE: AccessRow(),
    ApiKey.PRODUCE: AccessRow(_OP.WRITE, transactional_id=_OP.WRITE),
    # READ is for consumers. For a follower's fetch, the handler checks instead that a broker sent
    # the request.
    ApiKey.FETCH: AccessRow(_OP.READ),
    ApiKey.LIST_OFFSETS: AccessRow(_OP.DESCRIBE, names=_TOPICS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: AccessRow(
        _OP.DESCRIBE, instead=_OP.CLUSTER_ACTION, names=_TOPICS
    ),
    # METADATA has no ``names``, so its handler must check permissions even if the list of topics
    # is empty: in version 0 an empty list requests all topics.
    ApiKey.METADATA: AccessRow(_OP.DESCRIBE),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: AccessRow(_OP.DESCRIBE),
    ApiKey.OFFSET_COMMIT: AccessRow(_OP.READ, _OP.READ, names=_TOPICS),
    ApiKey.OFFSET_FETCH: AccessRow(_OP.DESCRIBE, _OP.DESCRIBE, names=("groups", "group_id")),
    ApiKey.FIND_COORDINATOR: AccessRow(
        None, _OP.DESCRIBE, _OP.DESCRIBE, instead=_OP.CLUSTER_ACTION,
        names=("coordinator_keys", "key"),
    ),
    ApiKey.JOIN_GROUP: _MEMBER,
    ApiKey.HEARTBEAT: _MEMBER,
    ApiKey.LEAVE_GROUP: _MEMBER,
    ApiKey.SYNC_GROUP: _MEMBER,
    ApiKey.DESCRIBE_GROUPS: AccessRow(None, _OP.DESCRIBE, names=("groups",)),
    ApiKey.LIST_GROUPS: AccessRow(None, _OP.DESCRIBE, instead=_OP.DESCRIBE),
    ApiKey.CREATE_TOPICS: AccessRow(_OP.CREATE, instead=_OP.CREATE, names=_TOPICS),
    ApiKey.DELETE_TOPICS: AccessRow(_OP.DELETE, names=("topics", "topic_names")),
    ApiKey.DELETE_RECORDS: AccessRow(_OP.DELETE, names=_TOPICS),
    ApiKey.CREATE_PARTITIONS: AccessRow(_OP.ALTER, names=_TOPICS),
    ApiKey.INIT_PRODUCER_ID: AccessRow(transactional_id=_OP.WRITE),
    ApiKey.ADD_PARTITIONS_TO_TXN: AccessRow(_OP.WRITE, transactional_id=_OP.WRITE),
    ApiKey.ADD_OFFSETS_TO_TXN: AccessRow(None, _OP.READ, _OP.WRITE),
    ApiKey.END_TXN: AccessRow(transactional_id=_OP.WRITE),
    ApiKey.WRITE_TXN_MARKERS: AccessRow(cluster=(_OP.CLUSTER_ACTION, _OP.ALTER)),
    ApiKey.TXN_OFFSET_COMMIT: AccessRow(_OP.READ, _OP.READ, _OP.WRITE, names=_TOPICS),
    ApiKey.DESCRIBE_ACLS: AccessRow(cluster=(_OP.DESCRIBE,)),
    ApiKey.CREATE_ACLS: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.DELETE_ACLS: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.DESCRIBE_CONFIGS: AccessRow(_OP.DESCRIBE_CONFIGS, names=("resources",)),
    ApiKey.ALTER_CONFIGS: AccessRow(_OP.ALTER_CONFIGS, names=("resources",)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: AccessRow(_OP.ALTER_CONFIGS, names=("resources",)),
    ApiKey.LIST_CONFIG_RESOURCES: AccessRow(cluster=(_OP.DESCRIBE_CONFIGS,)),
    ApiKey.DESCRIBE_LOG_DIRS: AccessRow(instead=_OP.DESCRIBE),
    ApiKey.DELETE_GROUPS: AccessRow(None, _OP.DELETE, names=("groups_names",)),
    ApiKey.OFFSET_DELETE: AccessRow(_OP.READ, _OP.DELETE),
    ApiKey.ELECT_LEADERS: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.UNREGISTER_BROKER: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: AccessRow(cluster=(_OP.DESCRIBE,)),
    ApiKey.UPDATE_FEATURES: AccessRow(cluster=(_OP.ALTER,)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: AccessRow(cluster=(_OP.DESCRIBE_CONFIGS,)),
    ApiKey.ALTER_CLIENT_QUOTAS: AccessRow(cluster=(_OP.ALTER_CONFIGS,)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: AccessRow(cluster=(_OP.DESCRIBE,)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: AccessRow(cluster=(_OP.ALTER,)),
    # This row is for the Envelope request itself; the dispatcher also applies the row of the
    # request inside it.
    ApiKey.ENVELOPE: AccessRow(cluster=(_OP.CLUSTER_ACTION,)),
    ApiKey.DESCRIBE_CLUSTER: AccessRow(),
    ApiKey.DESCRIBE_PRODUCERS: AccessRow(_OP.READ, names=_TOPICS),
    ApiKey.DESCRIBE_TRANSACTIONS: AccessRow(
        _OP.DESCRIBE, transactional_id=_OP.DESCRIBE, names=("transactional_ids",)
    ),
    ApiKey.LIST_TRANSACTIONS: AccessRow(transactional_id=_OP.DESCRIBE, instead=_OP.CLUSTER_ACTION),
    ApiKey.OFFSETS_FOR_BYTES: AccessRow(_OP.DESCRIBE, names=("partitions",)),
    ApiKey.RECORD_TIMES: AccessRow(_OP.DESCRIBE, names=("partitions",)),
    ApiKey.END_GROUP_OFFSETS: AccessRow(cluster=(_OP.CLUSTER_ACTION,)),
    ApiKey.JOIN_BATCH: AccessRow(_OP.WRITE, transactional_id=_OP.WRITE),
    ApiKey.END_BATCH: _SINK,
    ApiKey.KEEP_BATCH: _SINK,
}  # fmt: skip

_DATA_ROWS = (ROWS[ApiKey.PRODUCE], ROWS[ApiKey.FETCH])
"""The rows of Produce (API key 0) and Fetch (1), the most frequent requests, in ``ROWS``."""
_UNKNOWN = AccessRow()
"""The permissions of an API key that the broker does not serve; the dispatcher refuses its
requests."""

if VERSIONS.keys() != ROWS.keys():
    _unpaired = sorted(VERSIONS.keys() ^ ROWS.keys())
    raise AssertionError(f"these API keys are in only one of VERSIONS and ROWS: {_unpaired}")


FORWARDED = frozenset(
    (ApiKey.CREATE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.UNREGISTER_BROKER)
)
"""APIs whose requests a broker forwards to the controller in an Envelope."""


class Client(Protocol):
    """The fields of a session that authorization uses."""

    @property
    def principal(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def listener(self) -> str: ...

    @property
    def is_forwarded(self) -> bool: ...

    @property
    def takes_logins(self) -> bool: ...

    data_access: DataAccess | None
    """The permission checks of the session's last Produce or Fetch request, for reuse by the
    next one of the same API; None before the first."""


class NamedTopic(Protocol):
    """A topic in a Produce or Fetch request: by name, or by id from version 13 of the API on.

    The unused field is empty."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> str: ...


_NOTHING: Mapping[int, LogbusError] = {}


class Access:
    """The permission checks of one request. This base class, for brokers without an authorizer,
    allows everything."""

    __slots__ = ("_authorizer", "row")

    is_checked = False
    has_checked = True

    def __init__(self, authorizer: Authorizer, row: AccessRow) -> None:
        self._authorizer = authorizer
        self.row = row

    def is_broker(self, session: Client, client_id: str | None) -> bool:
        """Return whether another broker of the cluster sent the request."""
        return self._authorizer.is_broker(session, client_id)

    def may_be_broker(self, session: Client, client_id: str | None) -> bool:
        """Return whether a broker sent the request, perhaps one without an identity yet; see
        ``Authorizer.may_be_broker``."""
        return self._authorizer.may_be_broker(session, client_id)

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Return whether the client may use the operation on the resource, without logging a
        denial."""
        return True

    def may_write_any_topic(self) -> bool:
        """Return whether the ACLs let the client write to a topic of any name.

        With authorizer=report the result may be False, too: the caller's next check then logs the
        denial."""
        return True

    def check(self, operation: Operation, kind: ResourceKind, name: str, shown: str = "") -> None:
        """Raise the error of the resource's kind, such as TopicAuthorizationError, unless the
        client may use the operation on it.

        A client that may use the API's operation ``AccessRow.instead`` on the cluster needs no
        permission on the resource. ``shown``, if given, replaces ``name`` in the
        error."""

    def check_topic(self, name: str, shown: str = "") -> None:
        """Raise TopicAuthorizationError unless the client may use the request's API on the topic.

        ``shown``, if given, replaces the name in the error."""

    def check_creation(self, name: str) -> None:
        """Raise TopicAuthorizationError unless the client may describe and create the topic."""

    def check_topic_id(self, topic_id: str, by_id: Mapping[str, TopicView]) -> None:
        """Raise TopicAuthorizationError, which hides the topic's name, unless the client may use
        the topic.

        An id that is not in ``by_id``, the known topics, raises nothing here, because the handler
        refuses it."""

    def check_group(self, name: str) -> None:
        """Raise GroupAuthorizationError unless the client may use the request's API on the
        group."""

    def check_transactional_id(self, name: str) -> None:
        """Raise TransactionalIdAuthorizationError unless the client may use the request's API
        on this id."""

    def check_cluster(self, *operations: Operation) -> None:
        """Raise ClusterAuthorizationError unless the client may use one of the operations on the
        cluster.

        Without ``operations``, the client needs on the cluster what the API needs on a topic
        (``AccessRow.topic``), such as ALTER_CONFIGS for the settings of a broker."""

    def leave_to_controller(self) -> None:
        """Mark the request as checked, because this broker forwards it to the controller, which
        checks the permissions of the client's principal."""

    def check_follower(self, replica_id: int) -> None:
        """Raise ClusterAuthorizationError unless broker ``replica_id`` opened the session."""

    def denied_topics(
        self, topics: Sequence[NamedTopic], by_id: Mapping[str, TopicView]
    ) -> Mapping[int, LogbusError]:
        """Return the errors of the topics that the client may not use, by index in ``topics``.

        A topic id that is not in ``by_id``, the known topics, gets no error here, because the
        handler refuses it."""
        return _NOTHING

    def visible(self, kind: ResourceKind, names: Iterable[str]) -> Collection[str]:
        """Return those of the resources ``names`` on which the client may use the request's API."""
        return names if isinstance(names, Collection) else list(names)

    def operations(self, kind: ResourceKind, name: str) -> frozenset[Operation]:
        """Return all operations that the client may use on the resource (KIP-430)."""
        return _ALL_OPERATIONS[kind]

    def is_answerable(self, message: Any) -> bool:
        """Return whether the handler's answer to the request ``message`` may be sent.

        It may if the handler has checked a permission or the request names no resource."""
        return True


class _CheckedAccess(Access):
    """The permission checks of one request at a broker with an authorizer.

    Every check sets ``has_checked``. If a handler checks nothing, its answer is dropped
    (``is_answerable``)."""

    __slots__ = ("_session", "denial_count", "has_checked")

    is_checked = True

    def __init__(self, authorizer: Authorizer, row: AccessRow, session: Client) -> None:
        self._authorizer = authorizer
        self.row = row
        self._session = session
        self.denial_count = 0
        """Number of denials since the request began."""
        self.has_checked = False

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        self.has_checked = True
        authorizer = self._authorizer
        return authorizer.decides(self._session, operation, kind, name) or authorizer.only_reports

    def may_write_any_topic(self) -> bool:
        self.has_checked = True
        session, index = self._session, self._authorizer.index
        return index.may_any(session.principal, session.host, Operation.WRITE, ResourceKind.TOPIC)

    def check(self, operation: Operation, kind: ResourceKind, name: str, shown: str = "") -> None:
        self.has_checked = True
        decides, session = self._authorizer.decides, self._session
        if decides(session, operation, kind, name):
            return
        instead = self.row.instead
        if instead is not None and decides(session, instead, ResourceKind.CLUSTER, CLUSTER_NAME):
            return
        self._deny(operation, kind, name, shown)

    def _deny(self, operation: Operation, kind: ResourceKind, name: str, shown: str = "") -> None:
        self.denial_count += 1
        left = LOGGED_DENIALS_MAX - self.denial_count
        self._authorizer.deny(self._session, operation, kind, name, shown, lines_left=left)

    def check_topic(self, name: str, shown: str = "") -> None:
        self.check(self.row.operation(ResourceKind.TOPIC), ResourceKind.TOPIC, name, shown)

    def check_creation(self, name: str) -> None:
        self.check_topic(name)
        # Not ``may``: with authorizer=report it allows everything, so that the missing permission
        # would not be logged.
        decides, cluster = self._authorizer.decides, ResourceKind.CLUSTER
        if not decides(self._session, Operation.CREATE, cluster, CLUSTER_NAME):
            self.check(Operation.CREATE, ResourceKind.TOPIC, name)

    def check_topic_id(self, topic_id: str, by_id: Mapping[str, TopicView]) -> None:
        self.has_checked = True
        view = by_id.get(topic_id)
        if view is not None:
            self.check_topic(view.name, OF_THIS_ID)

    def check_group(self, name: str) -> None:
        self.check(self.row.operation(ResourceKind.GROUP), ResourceKind.GROUP, name)

    def check_transactional_id(self, name: str) -> None:
        kind = ResourceKind.TRANSACTIONAL_ID
        self.check(self.row.operation(kind), kind, name)

    def check_cluster(self, *operations: Operation) -> None:
        self.has_checked = True
        kind = ResourceKind.CLUSTER
        operations = operations or (self.row.operation(ResourceKind.TOPIC),)
        authorizer, session = self._authorizer, self._session
        if not any(authorizer.decides(session, each, kind, CLUSTER_NAME) for each in operations):
            self._deny(operations[0], kind, CLUSTER_NAME)

    def leave_to_controller(self) -> None:
        self.has_checked = True

    def check_follower(self, replica_id: int) -> None:
        self.has_checked = True
        if self._authorizer.broker_id(self._session) not in (ANY_BROKER, replica_id):
            name = f"replica {replica_id}"
            self._deny(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, name)

    def denied_topics(
        self, topics: Sequence[NamedTopic], by_id: Mapping[str, TopicView]
    ) -> Mapping[int, LogbusError]:
        self.has_checked = True
        authorizer, session, operation = self._authorizer, self._session, self.row.topic
        assert operation is not None
        denied: dict[int, LogbusError] = {}
        for index, topic in enumerate(topics):
            name, shown = topic.name, ""
            if not name:
                view = by_id.get(topic.topic_id)
                if view is None:
                    continue
                name, shown = view.name, OF_THIS_ID
            if not authorizer.decides(session, operation, ResourceKind.TOPIC, name):
                try:
                    self._deny(operation, ResourceKind.TOPIC, name, shown)
                except TopicAuthorizationError as error:
                    denied[index] = error
        return denied

    def visible(self, kind: ResourceKind, names: Iterable[str]) -> Collection[str]:
        instead, operation = self.row.instead, self.row.operation(kind)
        self.has_checked = True
        if instead is not None and self.may(instead, ResourceKind.CLUSTER, CLUSTER_NAME):
            return list(names)
        return [name for name in names if self.may(operation, kind, name)]

    def operations(self, kind: ResourceKind, name: str) -> frozenset[Operation]:
        return frozenset(each for each in _ALL_OPERATIONS[kind] if self.may(each, kind, name))

    def is_answerable(self, message: Any) -> bool:
        if self.has_checked or not self.row.needs_check:
            return True
        fields = [getattr(message, name, ()) for name in self.row.names]
        return bool(fields) and not any(each is None or any(map(_names, each)) for each in fields)


def _names(row: Any) -> bool:
    """Return whether a row of a request names a resource that the handler must check. A topic's row
    that lists no partitions does not: handlers check the topic, and return data, once for each
    partition in the row."""
    return bool(getattr(row, "partitions", True)) and bool(getattr(row, "partition_indexes", True))


class DataAccess(_CheckedAccess):
    """The permission checks of all Produce, or all Fetch, requests of one session.

    A client names the same topics in each request, so allowed topics are remembered until the ACLs
    change."""

    __slots__ = ("_allowed", "_mark", "_principal")

    def __init__(self, authorizer: Authorizer, row: AccessRow, session: Client) -> None:
        super().__init__(authorizer, row, session)
        self._forget()

    def _forget(self) -> None:
        self._mark = self._authorizer.index.mark
        self._principal = self._session.principal
        self._allowed: set[str] = set()

    def denied_topics(
        self, topics: Sequence[NamedTopic], by_id: Mapping[str, TopicView]
    ) -> Mapping[int, LogbusError]:
        if (
            self._mark is not self._authorizer.index.mark
            or self._principal is not self._session.principal
        ):
            self._forget()
        allowed = self._allowed
        for topic in topics:
            name = topic.name
            if not name:
                view = by_id.get(topic.topic_id)
                if view is None:
                    continue
                name = view.name
            if name not in allowed:
                break
        else:
            self.has_checked = True
            return _NOTHING
        denied = super().denied_topics(topics, by_id)
        if not denied and not self._authorizer.only_reports:
            if len(allowed) + len(topics) > ALLOWED_TOPICS_MAX:
                allowed.clear()
            for topic in topics[:ALLOWED_TOPICS_MAX]:
                view = by_id.get(topic.topic_id)
                name = topic.name or (view.name if view is not None else "")
                if 0 < len(name) <= CACHED_NAME_LENGTH_MAX:
                    allowed.add(name)
        return denied


def check_start(config: BrokerConfig, inter_broker: ListenerConfig, acls: AclIndex) -> None:
    """Raise InvalidConfigError if no user could change ACLs, or any client could pose as a broker.

    The message names the settings to change."""
    if config.authorizer != "enforce":
        return
    may_alter = any(
        pattern.kind is ResourceKind.CLUSTER
        and entry.permission is Permission.ALLOW
        and entry.operation in (Operation.ALTER, Operation.ALL)
        for pattern, entry in acls.acls()
    )
    if not config.super_user_set and not may_alter:
        raise InvalidConfigError(
            "authorizer=enforce, but super.users is empty and no ACL allows ALTER on the cluster, "
            "so no user could add one; set super.users=User:name"
        )
    if not (inter_broker.has_logins or inter_broker.requires_certificate):
        raise InvalidConfigError(
            f"authorizer=enforce, but brokers neither log in nor show certificates on listener "
            f"{inter_broker.name}, so any client could pose as one; either set "
            "inter.broker.listener.name to a listener with ssl.client.auth=required, or let "
            "brokers log in: set sasl.enabled.mechanisms and inter.broker.client.config"
        )


def check_own_principal(config: BrokerConfig, inter_broker: ListenerConfig, own: str) -> None:
    """Raise InvalidConfigError if other brokers would take this broker for a client.

    ``own`` is the principal of this broker on the listener for brokers. It does not matter if the
    listener identifies brokers in another way."""
    is_needed = config.authorizer == "enforce" or not inter_broker.is_of_brokers_alone
    if not is_needed or not (inter_broker.has_logins or inter_broker.requires_certificate):
        return
    if _broker_id(own, config.broker_principal_list) not in (ANY_BROKER, config.broker_id):
        raise InvalidConfigError(
            f"broker {config.broker_id} is {own!r} to the other brokers, so they would take it for "
            f"a client: broker.principals={config.broker_principals} does not have this name for "
            "this broker.id; add the name there, or change the user in inter.broker.client.config "
            f"or ssl.principal.mapping.rules of listener {inter_broker.name}"
        )


def _broker_id(principal: str, patterns: Iterable[str]) -> int | None:
    """Return the broker id in a principal that matches one of ``broker.principals``; ``ANY_BROKER``
    if the pattern has none; None if no pattern matches."""
    for pattern in patterns:
        prefix, star, suffix = pattern.partition("*")
        if not star:
            if principal == pattern:
                return ANY_BROKER
        elif principal.startswith(prefix) and principal.endswith(suffix):
            number = principal[len(prefix) : len(principal) - len(suffix)]
            if number.isdecimal() and number.isascii():
                return int(number)
    return None


def _has_client_id_of_broker(session: Client, client_id: str | None) -> bool:
    """Return whether the client id is a broker's, on a listener without logins."""
    return not session.takes_logins and (client_id or "").startswith(_BROKER_CLIENT)


class Authorizer:
    """Decides which operations a client may use, by ACLs and super users, and recognises brokers.

    ``apply`` takes the ACLs from each metadata snapshot. ``inter_broker`` is the listener for
    traffic between brokers. ``on_denial`` records each denial (``AuditLog.write``)."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        inter_broker: ListenerConfig | None = None,
        *,
        on_denial: Callable[..., None] | None = None,
    ) -> None:
        config = config or BrokerConfig()
        self._on_denial = on_denial
        self.is_on = config.authorizer != "off"
        self.only_reports = config.authorizer == "report"
        self.index = AclIndex(
            {},
            super_users=config.super_user_set,
            allow_if_none=config.allow_everyone_if_no_acl,
        )
        self._acls: Mapping[Pattern, frozenset[Entry]] = {}
        self._brokers = config.broker_principal_list
        self._inter_broker = "" if inter_broker is None else inter_broker.name
        self._brokers_log_in = inter_broker is not None and inter_broker.has_logins
        self._brokers_are_known = self._brokers_log_in or (
            inter_broker is not None and inter_broker.requires_certificate
        )
        self._is_separate = inter_broker is not None and inter_broker.is_of_brokers_alone
        self._open = Access(self, AccessRow())

    def apply(self, snapshot: MetadataSnapshot) -> None:
        """Use the ACLs of the metadata snapshot for all later requests."""
        if snapshot.acls is not self._acls:
            self._acls = snapshot.acls
            self.index = self.index.with_entries(snapshot.acls)

    def access(self, session: Client, api_key: int) -> Access:
        """Return the permission checks for a new request in the session."""
        if not self.is_on:
            return self._open
        if 0 <= api_key < len(_DATA_ROWS):
            row, data_access = _DATA_ROWS[api_key], session.data_access
            if data_access is None or data_access.row is not row:
                data_access = session.data_access = DataAccess(self, row, session)
            data_access.has_checked, data_access.denial_count = False, 0
            return data_access
        return _CheckedAccess(self, ROWS.get(api_key, _UNKNOWN), session)

    def is_broker(self, session: Client, client_id: str | None) -> bool:
        """Return whether the session is that of another broker.

        If brokers log in or show certificates to each other, only these identify them. Otherwise
        the client id does, but not on a listener where clients log in."""
        if not self._brokers_are_known:
            return _has_client_id_of_broker(session, client_id)
        if self.broker_id(session) is not None:
            return True
        is_enforced = self.is_on and not self.only_reports
        return self._is_separate and not is_enforced and session.listener == self._inter_broker

    def may_be_broker(self, session: Client, client_id: str | None) -> bool:
        """Return whether to serve the request as that of a broker, although the client id may be
        the only evidence.

        With authorizer=report the operator may still be securing an open cluster. Brokers that were
        not restarted yet then connect to the former listener, without a login."""
        return self.is_broker(session, client_id) or (
            self.only_reports and _has_client_id_of_broker(session, client_id)
        )

    def broker_id(self, session: Client) -> int | None:
        """Return the broker id in the session's principal, or None for a client.

        If all brokers have the same principal, return ``ANY_BROKER``."""
        if session.listener != self._inter_broker or session.is_forwarded:
            return None
        return _broker_id(session.principal, self._brokers)

    def check_user_name(self, name: str, *, has_token: bool = False) -> None:
        """Raise UnacceptableCredentialError if the user's principal is reserved for brokers.

        If brokers log in with passwords, they are users, so a user with a password may have such a
        name. A user with a token (``has_token``) never may: its issuer could let any client pose as
        a broker."""
        if self._brokers_log_in and not has_token:
            return
        for pattern in self._brokers:
            prefix, star, suffix = pattern.partition("*")
            principal = f"User:{name}"
            if principal == pattern or (
                star and principal.startswith(prefix) and principal.endswith(suffix)
            ):
                raise UnacceptableCredentialError(
                    f"user name {name[:40]!r} is reserved for brokers; choose another, or "
                    f"change broker.principals={pattern}"
                )

    def decides(self, session: Client, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Return whether the ACLs allow the operation. Brokers may use CLUSTER_ACTION without an
        ACL."""
        if self.index.may(session.principal, session.host, operation, kind, name):
            return True
        return (
            operation is Operation.CLUSTER_ACTION
            and kind is ResourceKind.CLUSTER
            and self.broker_id(session) is not None
        )

    def deny(
        self,
        session: Client,
        operation: Operation,
        kind: ResourceKind,
        name: str,
        shown: str = "",
        *,
        lines_left: int = LOGGED_DENIALS_MAX,
    ) -> None:
        """Log a denial, and raise the authorization error for this kind of resource.

        With authorizer=report, raise no error. ``lines_left`` is the number of further denials of
        the request that will be logged; if it is negative, this one is not logged."""
        verb, noun = operation.name.lower(), kind.name.lower()
        if lines_left >= 0:
            logger.warning(
                "%s from %s may not %s %s %r%s%s",
                session.principal,
                session.host,
                verb,
                noun,
                name,
                "; allowed, since authorizer=report" if self.only_reports else "",
                "" if lines_left else "; the log omits further denials of this request",
                extra=log_event("request_denied"),
            )
        if self._on_denial is not None:
            self._on_denial(
                "denied",
                (session.principal, session.host, operation, kind),
                user=session.principal,
                host=session.host,
                operation=verb,
                object=f"{noun} {name}",
                reported_only=self.only_reports,
            )
        if not self.only_reports:
            raise denial(session.principal, operation, kind, name, shown)
