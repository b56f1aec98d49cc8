"""Tests of the authorization of requests: the table of APIs, principals of brokers, the dispatcher.

A handler checks permissions with the *access* object of its request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim import scheduler
from support import access_world, api_frames
from support.access_world import AccessWorld, Reply
from support.handler_world import Answered, World, ask_dispatcher, kind, run

from broker_lite.config import BrokerConfig
from broker_lite.config.listeners import ListenerConfig, TlsSettings
from broker_lite.errors import (
    ClusterAuthorizationError,
    CoordinationUnavailableError,
    CoordinatorLoadInProgressError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    LogbusError,
    TopicAuthorizationError,
    UnacceptableCredentialError,
    UnknownServerError,
    UnknownTopicIdError,
    wire_code,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import TRANSACTION_STATE, Endpoint, TopicView
from broker_lite.record import newest_time
from broker_lite.record.batch import read_header, set_max_timestamp
from broker_lite.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    USER,
    Entity,
)
from broker_lite.server import dispatch
from broker_lite.server.audit import AuditLog
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import (
    ALLOWED_TOPICS_MAX,
    LOGGED_DENIALS_MAX,
    ROWS,
    Access,
    Authorizer,
    check_own_principal,
    check_start,
)
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.server.network.quotas import Quotas
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call
from broker_lite.wire.calls.broker_transactions import (
    MarkedTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from broker_lite.wire.calls.envelope import EnvelopeRequest
from broker_lite.wire.calls.topics import CreatableTopic, CreateTopicsRequest
from broker_lite.wire.primitives import Reader

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
BROKERS = ListenerConfig(
    "BROKERS", "SSL", Endpoint("127.0.0.1", 0), None, "listeners", True,
    TlsSettings("", "k", "", "ca", "required", "TLSv1.3", "DEFAULT", "https"), True,
)  # fmt: skip
OPEN = dataclasses.replace(BROKERS, protocol="PLAINTEXT", tls=None)
WITH_LOGINS = dataclasses.replace(
    BROKERS, protocol="SASL_PLAINTEXT", tls=None, is_one_of_several=False
)
SHARED = dataclasses.replace(BROKERS, is_one_of_several=False)
"""The only listener, on which clients and brokers show certificates of one CA."""


def acl(principal: str, operation: Operation, type_: ResourceKind, name: str) -> Any:
    pattern = Pattern(type_, PatternType.LITERAL, name)
    return pattern, frozenset({Entry(principal, "*", operation, Permission.ALLOW)})


def authorizer(*acls: Any, mode: str = "enforce", **settings: Any) -> Authorizer:
    made = Authorizer(BrokerConfig(authorizer=mode, super_users="User:admin", **settings), BROKERS)
    made.apply(MetadataSnapshot(acls=dict(acls)))
    return made


def session(principal: str, listener: str = "CLIENTS", **fields: Any) -> Session:
    return Session(1, "10.0.0.7:4711", listener, principal, **fields)


def test_every_served_api_has_an_entry_in_the_table_of_required_permissions() -> None:
    assert ROWS.keys() == VERSIONS.keys()
    for row in ROWS.values():
        on_cluster = {*row.cluster, *filter(None, (row.instead,))}
        assert on_cluster <= set(OPERATIONS[CLUSTER])
        for type_ in (TOPIC, GROUP, ResourceKind.TRANSACTIONAL_ID):
            operation = getattr(row, type_.name.lower())
            assert operation is None or operation in OPERATIONS[type_]


def test_denial_identifies_a_topic_only_by_the_name_or_id_that_the_client_sent() -> None:
    access = authorizer(acl("User:bob", Operation.WRITE, TOPIC, "mine")).access(
        session("User:bob"), ApiKey.PRODUCE
    )
    secret = TopicView("secret", "id-of-secret", ())
    rows = [
        SimpleNamespace(name=name, topic_id=topic_id)
        for name, topic_id in (("mine", ""), ("yours", ""), ("", "id-of-secret"), ("", "unknown"))
    ]
    denied = access.denied_topics(rows, {"id-of-secret": secret})
    assert denied.keys() == {1, 2} and access.has_checked
    assert "'yours'" in denied[1].message and "topic of this id" in denied[2].message
    assert "secret" not in denied[2].message
    with pytest.raises(TopicAuthorizationError, match="topic of this id"):
        access.check_topic_id("id-of-secret", {"id-of-secret": secret})
    access.check_topic_id("unknown", {})


def denied_names(made: Authorizer, client: Session, key: int, *names: str) -> list[str]:
    """Return those of the topics ``names`` for which the authorizer denies a request of API
    ``key``."""
    rows = [SimpleNamespace(name=name, topic_id="") for name in names]
    access = made.access(client, key)
    assert not access.has_checked
    found = access.denied_topics(rows, {})
    assert access.has_checked
    return [names[index] for index in found]


def test_cached_permissions_are_not_used_for_other_acls_users_or_operations() -> None:
    made = authorizer(acl("User:bob", Operation.WRITE, TOPIC, "mine"))
    client = session("User:bob")
    for _ in range(3):
        assert denied_names(made, client, ApiKey.PRODUCE, "mine") == []
        assert denied_names(made, client, ApiKey.PRODUCE, "mine", "yours") == ["yours"]
    assert denied_names(made, client, ApiKey.FETCH, "mine") == ["mine"]
    assert denied_names(made, client, ApiKey.PRODUCE, "mine") == []
    client.principal = "User:mallory"
    assert denied_names(made, client, ApiKey.PRODUCE, "mine") == ["mine"]
    client.principal = "User:bob"
    assert denied_names(made, client, ApiKey.PRODUCE, "mine") == []
    made.apply(MetadataSnapshot(acls={}))
    assert denied_names(made, client, ApiKey.PRODUCE, "mine") == ["mine"]


@pytest.mark.parametrize("key", [-32768, -2, -1, 32767])
def test_unknown_api_key_needs_no_permission(key: int) -> None:
    access = authorizer().access(session("User:bob"), key)
    assert not access.row.needs_check and not access.row.cluster


def test_number_of_topics_with_cached_permission_is_limited() -> None:
    made, client = authorizer(acl("User:bob", Operation.READ, TOPIC, "*")), session("User:bob")
    for number in range(3 * ALLOWED_TOPICS_MAX):
        assert denied_names(made, client, ApiKey.FETCH, f"t{number}") == []
    many = [f"t{number}" for number in range(3 * ALLOWED_TOPICS_MAX)]
    assert denied_names(made, client, ApiKey.FETCH, *many) == []
    assert client.data_access is not None
    assert len(client.data_access._allowed) == ALLOWED_TOPICS_MAX


def test_permission_for_a_topic_name_that_is_too_long_to_exist_is_not_cached() -> None:
    made = authorizer(acl("User:bob", Operation.WRITE, TOPIC, "*"))
    client = session("User:bob")
    assert denied_names(made, client, ApiKey.PRODUCE, "t" * 32_767, "mine") == []
    assert client.data_access is not None and client.data_access._allowed == {"mine"}


def test_user_who_may_describe_the_cluster_sees_all_groups_in_list_groups() -> None:
    made = authorizer(acl("User:bob", Operation.DESCRIBE, CLUSTER, CLUSTER_NAME))
    access = made.access(session("User:bob"), ApiKey.LIST_GROUPS)
    assert access.visible(GROUP, ["a", "b"]) == ["a", "b"]
    assert made.access(session("User:carl"), ApiKey.LIST_GROUPS).visible(GROUP, ["a"]) == []


@pytest.mark.parametrize(
    ("principal", "listener", "number"),
    [
        ("User:broker-3", "BROKERS", 3),
        ("User:broker-3", "CLIENTS", None),
        ("User:broker-", "BROKERS", None),
        ("User:broker-x", "BROKERS", None),
        ("User:admin", "BROKERS", None),
    ],
)
def test_broker_is_identified_by_its_principal_on_the_inter_broker_listener(
    principal: str, listener: str, number: int | None
) -> None:
    made, client = authorizer(), session(principal, listener)
    assert made.broker_id(client) == number
    assert made.is_broker(client, "logbus-broker-3") == (number is not None)
    access = made.access(client, ApiKey.FETCH)
    for replica_id in (3, 4):
        if replica_id == number:
            access.check_follower(replica_id)
        else:
            with pytest.raises(ClusterAuthorizationError, match=f"replica {replica_id}"):
                access.check_follower(replica_id)
    assert not access.may(Operation.READ, TOPIC, "t") or principal == "User:admin"


def test_forwarded_request_has_only_the_permissions_of_the_client_that_sent_it() -> None:
    client = session("User:broker-3", "BROKERS", is_forwarded=True)
    assert authorizer().broker_id(client) is None
    assert (
        not authorizer()
        .access(client, ApiKey.ENVELOPE)
        .may(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    )


def test_user_names_of_brokers_are_reserved_unless_brokers_log_in_with_passwords() -> None:
    made = authorizer()
    made.check_user_name("alice")
    made.check_user_name("broker")
    for name in ("broker-9", "broker-x"):
        with pytest.raises(UnacceptableCredentialError, match="reserved for brokers"):
            made.check_user_name(name)
    with_logins = dataclasses.replace(BROKERS, protocol="SASL_SSL")
    with_passwords = Authorizer(BrokerConfig(), with_logins)
    with_passwords.check_user_name("broker-9")
    with pytest.raises(UnacceptableCredentialError, match="reserved for brokers"):
        with_passwords.check_user_name("broker-9", has_token=True)


@pytest.mark.parametrize("mode", ["off", "report", "enforce"])
def test_client_id_identifies_a_broker_only_if_brokers_have_no_login_or_certificate(
    mode: str,
) -> None:
    """With authorizer=report, brokers that were not restarted yet may use an open listener."""
    config = BrokerConfig(authorizer=mode)
    named = "logbus-broker-1"
    for known in (BROKERS, WITH_LOGINS, SHARED):
        made = Authorizer(config, known)
        for listener in ("CLIENTS", "BROKERS"):
            certified = known is BROKERS and listener == "BROKERS" and mode != "enforce"
            client, logged_in = (
                session("User:x", listener, takes_logins=takes) for takes in (False, True)
            )
            assert made.is_broker(client, named) == certified
            assert made.may_be_broker(client, named) == (certified or mode == "report")
            assert made.is_broker(logged_in, named) == certified
            assert made.may_be_broker(logged_in, named) == certified
        assert made.is_broker(session("User:broker-1", "BROKERS", takes_logins=True), None)
    unknown = Authorizer(config, OPEN)
    assert unknown.is_broker(session("User:x"), named)
    assert not unknown.is_broker(session("User:x"), "app")
    assert not unknown.is_broker(session("User:x", takes_logins=True), named)


@pytest.mark.parametrize("brokers", [WITH_LOGINS, SHARED])
def test_broker_does_not_start_if_other_brokers_would_take_it_for_a_client(
    brokers: ListenerConfig,
) -> None:
    config = BrokerConfig(broker_id=3)
    check_own_principal(config, brokers, "User:broker-3")
    one = dataclasses.replace(config, broker_principals="User:all")
    check_own_principal(one, brokers, "User:all")
    for own in ("User:admin", "User:broker-4"):
        with pytest.raises(InvalidConfigError, match=rf"broker 3 is '{own}'.*broker\.principals"):
            check_own_principal(config, brokers, own)
    check_own_principal(config, OPEN, "User:ANONYMOUS")
    check_own_principal(config, BROKERS, "User:CN=any")
    enforcing = dataclasses.replace(config, authorizer="enforce")
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        check_own_principal(enforcing, BROKERS, "User:CN=any")


@pytest.mark.parametrize("mode", ["off", "report"])
def test_client_with_the_client_id_of_a_broker_gets_no_rights_of_a_broker(
    mode: str, tmp_path: Path
) -> None:
    """Brokers and clients log in on one listener. Regression: the client opened an Envelope as
    User:admin, had no quotas, and the audit log omitted its WriteTxnMarkers."""
    path, named = tmp_path / "audit.log", "logbus-broker-1"

    async def body() -> None:
        world = await AccessWorld().start()
        quotas, audit = Quotas(), AuditLog(str(path), world.parts.clock)
        everyone = Entity(((USER, None),))
        quotas.apply(MetadataSnapshot(quotas={everyone: {CONSUMER_BYTE_RATE: 1.0}}))
        made = Authorizer(BrokerConfig(authorizer=mode), WITH_LOGINS)
        parts = dataclasses.replace(world.parts, authorizer=made, quotas=quotas, audit=audit)
        world.dispatcher = Dispatcher(world.cluster.loop, parts)
        call = EnvelopeRequest(create("t"), "User:admin", "10.0.0.9")
        frame = bytes(encode_call(call, 3, named))[4:]
        reply = await world.send(frame, "User:bob", "BROKERS", takes_logins=True)
        answer = EnvelopeRequest.decode(_body(reply.frame))
        assert answer == (None, ClusterAuthorizationError.code)
        assert "t" not in world.snapshot.topics
        client = session("User:bob", "BROKERS", takes_logins=True)
        request = RequestContext.read(memoryview(frame), client, 0, made)
        assert quotas.of(request) is not None
        marker = TransactionMarker(5, 7, True, (MarkedTopic("absent", (0,)),), 9)
        markers = bytes(encode_call(WriteTxnMarkersRequest((marker,)), 3, named))[4:]
        await world.send(markers, "User:bob", "BROKERS", takes_logins=True)
        audit.close()

    scheduler.run(body())
    assert '"write_txn_markers"' in path.read_text("utf-8")


def test_authorizer_in_report_mode_allows_and_logs_a_denial(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "logbus.access"):
        authorizer(mode="report").access(session("User:bob"), ApiKey.PRODUCE).check_topic("t")
    (record,) = caplog.records
    assert record.getMessage() == (
        "User:bob from 10.0.0.7 may not write topic 't'; allowed, since authorizer=report"
    )


def test_log_has_a_limited_number_of_denials_of_one_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: a request of 149 KB with 20,000 topics blocked the event loop for seconds, mostly
    to log them."""
    audited: list[str] = []
    made = Authorizer(
        BrokerConfig(authorizer="enforce", super_users="User:admin"),
        on_denial=lambda event, kind, **fields: audited.append(fields["object"]),
    )
    client = session("User:bob")
    names = [f"t{number}" for number in range(LOGGED_DENIALS_MAX + 5)]
    with caplog.at_level(logging.WARNING, "logbus.access"):
        for _ in range(2):
            caplog.clear()
            access = made.access(client, ApiKey.FETCH)
            rows = [SimpleNamespace(name=name, topic_id="") for name in names]
            assert len(access.denied_topics(rows, {})) == len(names)
            assert len(caplog.records) == LOGGED_DENIALS_MAX
    assert caplog.records[-1].getMessage() == (
        f"User:bob from 10.0.0.7 may not read topic '{names[LOGGED_DENIALS_MAX - 1]}'; "
        "the log omits further denials of this request"
    )
    assert audited == [f"topic {name}" for name in names] * 2, "the audit log counts repetitions"


def test_authorizer_in_report_mode_logs_what_it_would_deny_to_a_producer_and_to_a_new_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: the log of authorizer=report lacked the permissions to create a topic and to
    request a producer id, so that authorizer=enforce denied them without a warning."""
    made = authorizer(acl("User:bob", Operation.DESCRIBE, TOPIC, "t"), mode="report")

    async def body() -> None:
        world = await AccessWorld().start()
        parts = dataclasses.replace(world.parts, authorizer=made)
        world.dispatcher = Dispatcher(world.cluster.loop, parts)
        fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
        _, codes = await world.answer(ApiKey.INIT_PRODUCER_ID, 4, "User:bob", fields=fields)
        assert codes == {0}

    with caplog.at_level(logging.WARNING, "logbus.access"):
        made.access(session("User:bob"), ApiKey.METADATA).check_creation("t")
        scheduler.run(body())
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "User:bob from 10.0.0.7 may not create topic 't'",
        "User:bob from 127.0.0.1 may not idempotent_write cluster 'kafka-cluster'",
    ]


def test_revoked_permission_is_denied_at_the_next_check() -> None:
    made = authorizer(acl("User:bob", Operation.READ, TOPIC, "t"))
    access = made.access(session("User:bob"), ApiKey.FETCH)
    rows = [SimpleNamespace(name="t", topic_id="")]
    assert not access.denied_topics(rows, {})
    made.apply(MetadataSnapshot())
    assert access.denied_topics(rows, {}).keys() == {0}


@pytest.mark.parametrize(
    ("settings", "listener", "words"),
    [
        ({}, BROKERS, r"super\.users is empty"),
        ({"super_users": "User:admin"}, OPEN, "inter.broker.listener.name"),
    ],
)
def test_broker_does_not_start_if_its_authorizer_would_have_no_administrator(
    settings: dict[str, str], listener: ListenerConfig, words: str
) -> None:
    config = BrokerConfig(authorizer="enforce", **settings)
    with pytest.raises(InvalidConfigError, match=words):
        check_start(config, listener, Authorizer(config, listener).index)
    made = authorizer(acl("User:bob", Operation.ALL, CLUSTER, CLUSTER_NAME))
    check_start(BrokerConfig(authorizer="enforce"), BROKERS, made.index)


@pytest.mark.parametrize(
    "settings",
    [{"super_users": "admin"}, {"super_users": "Group:x"}, {"broker_principals": "User:*-*"}],
)
def test_malformed_principals_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match=r"super\.users|broker\.principals"):
        BrokerConfig(**settings)


# The tests below send requests through the dispatcher.


async def ask(world: World, made: Authorizer, client: Session, frame: bytes) -> Answered:
    parts = dataclasses.replace(world.brokers[1], metrics=Metrics(), authorizer=made)
    return await ask_dispatcher(Dispatcher(asyncio.get_running_loop(), parts), client, frame)


def frame_of(name: str, version: int, **fields: Any) -> bytes:
    request = kind(f"{name}Request")(version=version, **fields)
    request.with_header(correlation_id=3, client_id="c")
    return bytes(request.encode(header=True, framed=True)[4:])


def decoded(name: str, version: int, data: bytes) -> Any:
    return kind(f"{name}Response").decode(data, version=version, header=True, framed=True)


def test_dispatcher_replaces_the_response_of_a_handler_that_checked_no_permission(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        await world.start()
        frame = frame_of("DescribeGroups", 6, groups=["secret"])
        original = dispatch.HANDLERS[ApiKey.DESCRIBE_GROUPS]

        async def forgets(parts: Any, request: RequestContext, message: Any) -> Any:
            open_ = Authorizer().access(request.session, request.api_key)
            return await original(parts, request._replace(access=open_), message)

        monkeypatch.setitem(dispatch.HANDLERS, ApiKey.DESCRIBE_GROUPS, forgets)
        reply = await ask(world, authorizer(), session("User:bob"), frame)
        (row,) = decoded("DescribeGroups", 6, reply.data).groups
        assert row.error_code == UnknownServerError.code
        empty = await ask(
            world, authorizer(), session("User:bob"), frame_of("DescribeGroups", 6, groups=[])
        )
        assert decoded("DescribeGroups", 6, empty.data).groups == []

    run(body)
    assert "has not checked the client's permissions" in caplog.text


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("ListGroups", 5, CoordinationUnavailableError),
        ("ListTransactions", 2, CoordinatorLoadInProgressError),
    ],
)
def test_client_receives_the_original_error_of_list_groups_or_list_transactions(
    name: str, version: int, expected: type[LogbusError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the handler failed before its permission check, and the dispatcher replaces
    responses without a check by UNKNOWN_SERVER_ERROR.
    """

    async def body(world: World) -> None:
        await world.start()
        parts = world.brokers[1]

        async def unavailable(_: object) -> Any:
            raise CoordinationUnavailableError("ZooKeeper does not answer")

        def loading() -> None:
            raise CoordinatorLoadInProgressError("loading")

        monkeypatch.setattr(parts.registry.groups, "kinds", unavailable)
        transactions: Any = SimpleNamespace(check_loaded=loading)
        world.brokers[1] = dataclasses.replace(parts, transactions=transactions)
        reply = await ask(world, authorizer(), session("User:bob"), frame_of(name, version))
        error = decoded(name, version, reply.data).error_code
        assert error == wire_code(expected("")) != UnknownServerError.code

    run(body)


def test_delete_topics_by_an_id_that_the_brokers_metadata_lacks_deletes_nothing() -> None:
    async def body(world: World) -> None:
        await world.start()
        made = await world.make_topic("secret")
        registry = world.brokers[1].registry
        known = registry.snapshot
        registry.snapshot = dataclasses.replace(known, topics={}, topics_by_id={})
        row = kind("DeleteTopicsRequest").DeleteTopicState(name=None, topic_id=made.topic_id)
        frame = frame_of("DeleteTopics", 6, topics=[row], timeout_ms=1000)
        reply = await ask(world, authorizer(), session("User:bob"), frame)
        (answer,) = decoded("DeleteTopics", 6, reply.data).responses
        assert answer.error_code == UnknownTopicIdError.code
        registry.snapshot = known
        deleted = await world.ask("DeleteTopics", 6, topics=[row], timeout_ms=5000)
        assert deleted.responses[0].error_code == 0

    run(body)


def test_dispatcher_refuses_a_request_without_the_cluster_permission_that_its_api_requires() -> (
    None
):
    async def body(world: World) -> None:
        await world.start()
        frame = frame_of("ListPartitionReassignments", 0, topics=None, timeout_ms=1000)
        made = authorizer(acl("User:bob", Operation.DESCRIBE, CLUSTER, CLUSTER_NAME))
        for name, code in (("bob", 0), ("carl", ClusterAuthorizationError.code), ("admin", 0)):
            reply = await ask(world, made, session(f"User:{name}"), frame)
            answer = decoded("ListPartitionReassignments", 0, reply.data)
            assert answer.error_code == code

    run(body)


def test_metadata_of_a_denied_topic_equals_that_of_an_absent_topic() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("secret")
        answers = []
        for name in ("secret", "absent"):
            topic = kind("MetadataRequest").MetadataRequestTopic(name=name)
            frame = frame_of("Metadata", 12, topics=[topic], allow_auto_topic_creation=False)
            reply = await ask(world, authorizer(), session("User:bob"), frame)
            answers.append(reply.data.replace(name.encode(), b"?"))
        assert answers[0] == answers[1]
        frame = frame_of("Metadata", 12, topics=None, allow_auto_topic_creation=False)
        reply = await ask(world, authorizer(), session("User:bob"), frame)
        assert decoded("Metadata", 12, reply.data).topics == []
        reply = await ask(world, authorizer(), session("User:admin"), frame)
        assert [row.name for row in decoded("Metadata", 12, reply.data).topics] == ["secret"]

    run(body)


def create(name: str) -> bytes:
    return bytes(encode_call(CreateTopicsRequest((CreatableTopic(name, 1, 1),), 5000), 3, "c"))[4:]


@pytest.mark.parametrize(
    ("inner", "code"),
    [("User:admin", 0), ("User:bob", TopicAuthorizationError.code), ("User:broker-9", 29)],
)
def test_envelope_is_authorized_for_the_forwarded_client_not_for_the_broker(
    inner: str, code: int
) -> None:
    async def body(world: World) -> None:
        await world.start()
        made = authorizer()
        frame = bytes(encode_call(EnvelopeRequest(create("t"), inner, "10.0.0.9"), 3, "c"))[4:]
        reply = await ask(world, made, session("User:broker-2", "BROKERS"), frame)
        answer = EnvelopeRequest.decode(_body(reply.data))
        assert answer.error_code == 0 and answer.response is not None
        created = CreateTopicsRequest.decode(_body(b"\0\0\0\0" + answer.response))
        assert created.topics[0].error_code == code
        assert ("t" in world.brokers[1].registry.snapshot.topics) == (code == 0)

    run(body)


def test_forwarded_request_is_not_charged_to_the_quotas_of_its_client_again() -> None:
    """The broker that forwarded the request has charged the client's quotas already."""

    async def body(world: World) -> None:
        await world.start()
        quotas = Quotas()
        client = Entity(((CLIENT_ID, "c"),))
        quotas.apply(MetadataSnapshot(quotas={client: {CONTROLLER_MUTATION_RATE: 0.01}}))
        world.brokers[1] = dataclasses.replace(world.brokers[1], quotas=quotas)
        for name in ("t", "u", "v"):
            call = EnvelopeRequest(create(name), "User:admin", "10.0.0.9")
            frame = bytes(encode_call(call, 3, "c"))[4:]
            await ask(world, authorizer(), session("User:broker-2", "BROKERS"), frame)
        assert {"t", "u", "v"} <= world.brokers[1].registry.snapshot.topics.keys()

    run(body)


@pytest.mark.parametrize(
    ("principal", "listener", "nested"),
    [
        ("User:admin", "CLIENTS", False),
        ("User:admin", "BROKERS", False),
        ("User:broker-2", "CLIENTS", False),
        ("User:broker-2", "BROKERS", True),
    ],
)
def test_envelope_sent_by_a_client_or_inside_another_envelope_is_refused(
    principal: str, listener: str, nested: bool
) -> None:
    async def body(world: World) -> None:
        await world.start()
        call = EnvelopeRequest(create("t"), "User:admin", "10.0.0.9")
        if nested:
            call = EnvelopeRequest(bytes(encode_call(call, 3, "c"))[4:], "User:admin", "10.0.0.9")
        frame = bytes(encode_call(call, 3, "c"))[4:]
        reply = await ask(world, authorizer(), session(principal, listener), frame)
        answer = EnvelopeRequest.decode(_body(reply.data))
        code = InvalidRequestError.code if nested else ClusterAuthorizationError.code
        assert answer == (None, code)
        assert "t" not in world.brokers[1].registry.snapshot.topics

    run(body)


def _body(data: bytes) -> Any:
    return Reader(memoryview(data), 9)


def test_every_request_is_allowed_without_an_authorizer() -> None:
    access = Authorizer().access(session("User:bob"), ApiKey.PRODUCE)
    assert type(access) is Access and access.has_checked
    assert access.may(Operation.ALTER, CLUSTER, CLUSTER_NAME)
    assert access.visible(TOPIC, ["a"]) == ["a"]
    assert access.operations(GROUP, "g") == frozenset(OPERATIONS[GROUP])


def test_batch_of_a_topic_id_unknown_at_arrival_is_never_appended() -> None:
    """Regression: the broker checked permissions only on arrival, without a name for the topic id.

    A read thread then computed the batch's missing timestamp. If the topic entered the metadata
    meanwhile, the broker appended the batch without a check.
    """
    batch = bytearray(api_frames.batch())
    set_max_timestamp(batch, read_header(batch), -1)
    assert newest_time.is_left_out(memoryview(batch))

    async def body() -> None:
        world = await AccessWorld().start()
        world.grant({})
        registry, before = world.parts.registry, world.digest()
        known = registry.snapshot
        registry.snapshot = dataclasses.replace(known, topics={}, topics_by_id={})
        frame = api_frames.request_frame(ApiKey.PRODUCE, 13, world.names, {"records": bytes(batch)})
        reply: Any = Reply(session("User:bob"))
        world.dispatcher.begin(memoryview(bytearray(frame)), reply)
        registry.snapshot = known
        await reply.done
        answer = api_frames.answer_of(ApiKey.PRODUCE, 13, reply.frame)
        assert api_frames.error_codes(answer) == {TopicAuthorizationError.code}
        assert world.digest() == before

    scheduler.run(body())


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.OFFSET_COMMIT, 8), (ApiKey.TXN_OFFSET_COMMIT, 3)]
)
def test_offset_commit_without_topics_gets_an_empty_answer(key: ApiKey, version: int) -> None:
    """Regression: the dispatcher answered UNKNOWN_SERVER_ERROR, because without topics the handler
    had checked no permission."""

    async def body() -> None:
        world = await AccessWorld().start()
        world.grant({})
        reply, codes = await world.answer(key, version, fields={"topics": []})
        assert not reply.refusal and not codes
        assert api_frames.answer_of(key, version, reply.frame)["topics"] == []

    scheduler.run(body())


@pytest.mark.parametrize(
    ("key", "version", "field"),
    [
        (ApiKey.LIST_OFFSETS, 7, "topics.partitions"),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "topics.partitions"),
        (ApiKey.OFFSET_COMMIT, 0, "topics.partitions"),
        (ApiKey.TXN_OFFSET_COMMIT, 3, "topics.partitions"),
        (ApiKey.DELETE_RECORDS, 2, "topics.partitions"),
        (ApiKey.DESCRIBE_PRODUCERS, 0, "topics.partition_indexes"),
    ],
)
def test_request_for_no_partitions_of_a_topic_gets_no_error(
    key: ApiKey, version: int, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the answer was UNKNOWN_SERVER_ERROR, and the broker's log blamed the handler for
    a skipped permission check."""

    async def body() -> None:
        world = await AccessWorld().start()
        world.grant({})
        reply, codes = await world.answer(key, version, fields={field: []})
        assert not reply.refusal and codes <= {0}
        for canary in access_world.CONTENTS:
            assert canary not in reply.frame

    scheduler.run(body())
    assert not caplog.records


@pytest.mark.parametrize("has_new_record", [True, False])
def test_waiting_fetch_is_denied_once_its_permission_is_revoked(has_new_record: bool) -> None:
    """The fetch waits at offset 1; with ``has_new_record``, a record arrives there."""

    async def body() -> None:
        world = await AccessWorld().start()
        world.grant(access_world.grants((TOPIC, Operation.READ)))
        at_the_end = {"fetch_offset": 1, "max_wait_ms": 1000, "min_bytes": 1}
        fetch = asyncio.ensure_future(world.answer(ApiKey.FETCH, 12, fields=at_the_end))
        await asyncio.sleep(0.1)
        assert not fetch.done()
        world.grant({})
        if has_new_record:
            await world.answer(ApiKey.PRODUCE, 12, access_world.ADMIN)
        reply, codes = await fetch
        assert codes == {0, TopicAuthorizationError.code}, reply.refusal

    scheduler.run(body())


def test_request_after_the_end_of_its_login_is_refused_before_the_next_sweep() -> None:
    """Regression: the broker served requests until ``Logins.sweep``, up to a second later."""

    async def body() -> None:
        world = await AccessWorld().start()
        frame = api_frames.request_frame(ApiKey.METADATA, 12, world.names, {})
        now_ms = world.parts.clock.monotonic_ms()
        reply = await world.send(frame, access_world.ADMIN, ends_ms=now_ms + 1)
        assert reply.frame and not reply.refusal
        reply = await world.send(frame, access_world.ADMIN, ends_ms=now_ms)
        assert "a request before the login" in reply.refusal and not reply.frame

    scheduler.run(body())


@pytest.mark.parametrize("has_new_record", [True, False])
def test_waiting_fetch_is_refused_once_the_login_of_its_session_has_expired(
    has_new_record: bool,
) -> None:
    """The login expires while the fetch waits at offset 1. With ``has_new_record``, a record
    arrives there after that."""

    async def body() -> None:
        world = await AccessWorld().start()
        at_the_end = {"fetch_offset": 1, "max_wait_ms": 1000, "min_bytes": 1}
        frame = api_frames.request_frame(ApiKey.FETCH, 12, world.names, at_the_end)
        ends_ms = world.parts.clock.monotonic_ms() + 500
        fetch = asyncio.ensure_future(world.send(frame, access_world.ADMIN, ends_ms=ends_ms))
        await asyncio.sleep(0.6)
        assert not fetch.done()
        if has_new_record:
            await world.answer(ApiKey.PRODUCE, 12, access_world.ADMIN)
        reply = await fetch
        assert "login expired" in reply.refusal and not reply.frame

    scheduler.run(body())


def test_even_a_super_user_cannot_write_to_an_internal_topic() -> None:
    async def body() -> None:
        world = await AccessWorld().start()
        before = world.digest()
        names = {**world.names, api_frames.TOPIC: TRANSACTION_STATE}
        _, codes = await world.answer(ApiKey.PRODUCE, 12, access_world.ADMIN, names=names)
        assert codes == {InvalidTopicError.code}
        assert world.digest() == before

    scheduler.run(body())


def test_sink_task_adds_no_topic_whose_id_is_unknown_to_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker omits a topic id that its metadata lack: without the topic's name it cannot check
    the permission."""

    async def body() -> None:
        world = await AccessWorld().start()
        world.grant(access_world.grants((ResourceKind.TRANSACTIONAL_ID, Operation.WRITE)))
        asked: list[Any] = []

        async def ask_sink(sink: str, request: Any) -> Any:
            asked.append(request)
            raise CoordinatorLoadInProgressError("loading")

        monkeypatch.setattr(world.parts.transactions, "ask_sink", ask_sink)
        unknown = {**world.names, api_frames.TOPIC_ID: access_world.ABSENT[api_frames.TOPIC_ID]}
        await world.answer(ApiKey.JOIN_BATCH, VERSIONS[ApiKey.JOIN_BATCH][0], names=unknown)
        assert [each.partitions for each in asked] == [frozenset()]

    scheduler.run(body())
