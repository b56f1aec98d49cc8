"""Decisions about requests: the table of APIs, principals of brokers, and dispatch's demands."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from handler_world import World, kind, run

from broker_lite.config import BrokerConfig
from broker_lite.config.listeners import ListenerConfig, TlsSettings
from broker_lite.errors import (
    ClusterAuthorizationError,
    InvalidConfigError,
    TopicAuthorizationError,
    UnknownServerError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import Endpoint, TopicView
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
from broker_lite.server import dispatch
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import ROWS, Access, Authorizer, check_start
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call
from broker_lite.wire.calls.envelope import EnvelopeRequest
from broker_lite.wire.calls.topics import CreatableTopic, CreateTopicsRequest
from broker_lite.wire.primitives import Reader

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
BROKERS = ListenerConfig(
    "BROKERS", "SSL", Endpoint("127.0.0.1", 0), None, "listeners", True,
    TlsSettings("", "k", "", "ca", "required", "TLSv1.3", "DEFAULT", "https"), True,
)  # fmt: skip
OPEN = dataclasses.replace(BROKERS, protocol="PLAINTEXT", tls=None)


def acl(principal: str, operation: Operation, type_: ResourceKind, name: str) -> Any:
    pattern = Pattern(type_, PatternType.LITERAL, name)
    return pattern, frozenset({Entry(principal, "*", operation, Permission.ALLOW)})


def authorizer(*acls: Any, mode: str = "enforce", **settings: Any) -> Authorizer:
    made = Authorizer(BrokerConfig(authorizer=mode, super_users="User:admin", **settings), BROKERS)
    made.apply(MetadataSnapshot(acls=dict(acls)))
    return made


def session(principal: str, listener: str = "CLIENTS", **fields: Any) -> Session:
    return Session(1, "10.0.0.7:4711", listener, principal, **fields)


def test_every_served_api_has_a_row_whose_operations_exist() -> None:
    assert ROWS.keys() == VERSIONS.keys()
    for row in ROWS.values():
        on_cluster = {*row.cluster, *filter(None, (row.instead,))}
        assert on_cluster <= set(OPERATIONS[CLUSTER])
        for type_ in (TOPIC, GROUP, ResourceKind.TRANSACTIONAL_ID):
            operation = getattr(row, type_.name.lower())
            assert operation is None or operation in OPERATIONS[type_]


def test_denied_topics_are_named_as_the_client_named_them() -> None:
    access = authorizer(acl("User:bob", Operation.WRITE, TOPIC, "mine")).access(
        session("User:bob"), ApiKey.PRODUCE
    )
    secret = TopicView("secret", "id-of-secret", ())
    rows = [
        SimpleNamespace(name=name, topic_id=topic_id)
        for name, topic_id in (("mine", ""), ("yours", ""), ("", "id-of-secret"), ("", "unknown"))
    ]
    denied = access.denied_topics(rows, {"id-of-secret": secret})
    assert denied.keys() == {1, 2} and access.is_asked
    assert "'yours'" in denied[1].message and "secret'" in denied[2].message
    assert "'secret'" not in denied[2].message
    with pytest.raises(TopicAuthorizationError, match="'id-of-secret'"):
        access.check_topic_id("id-of-secret", {"id-of-secret": secret})
    access.check_topic_id("unknown", {})


def test_operation_on_the_cluster_stands_for_all_resources_of_a_row() -> None:
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
def test_broker_is_its_principal_on_the_listener_for_brokers(
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


def test_forwarded_request_has_the_rights_of_its_client_alone() -> None:
    client = session("User:broker-3", "BROKERS", is_forwarded=True)
    assert authorizer().broker_id(client) is None
    assert (
        not authorizer()
        .access(client, ApiKey.ENVELOPE)
        .may(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    )


def test_client_id_makes_a_broker_only_without_authorizer_and_separate_listener() -> None:
    separate = Authorizer(BrokerConfig(), BROKERS)
    assert separate.is_broker(session("User:x", "BROKERS"), None)
    assert not separate.is_broker(session("User:x"), "logbus-broker-1")
    for mode, is_broker in (("off", True), ("report", True), ("enforce", False)):
        made = Authorizer(BrokerConfig(authorizer=mode), OPEN)
        assert made.is_broker(session("User:x"), "logbus-broker-1") == is_broker


def test_report_allows_and_logs_what_enforce_denies(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "logbus.access"):
        authorizer(mode="report").access(session("User:bob"), ApiKey.PRODUCE).check_topic("t")
    (record,) = caplog.records
    assert record.getMessage() == (
        "User:bob from 10.0.0.7 may not write topic 't'; allowed, since authorizer=report"
    )


def test_withdrawn_permission_is_denied_at_the_next_question() -> None:
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
def test_authorizer_that_nobody_could_administer_fails_the_start(
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


# Dispatch.


class Answered:
    """A recorder of one answer."""

    arrived_ms = 0

    def __init__(self, session: Session) -> None:
        self.session = session
        self.data = b""
        self.refusal = ""

    def answer(self, parts: tuple[bytes, ...]) -> None:
        self.data = b"".join(parts)

    def refuse(self, reason: str) -> None:
        self.refusal = reason


async def ask(world: World, made: Authorizer, client: Session, frame: bytes) -> Answered:
    parts = dataclasses.replace(world.brokers[1], metrics=Metrics(), authorizer=made)
    reply: Any = Answered(client)
    Dispatcher(asyncio.get_running_loop(), parts).begin(memoryview(frame), reply)
    while not (reply.data or reply.refusal):
        await asyncio.sleep(0.01)
    return reply  # type: ignore[no-any-return]


def frame_of(name: str, version: int, **fields: Any) -> bytes:
    request = kind(f"{name}Request")(version=version, **fields)
    request.with_header(correlation_id=3, client_id="c")
    return bytes(request.encode(header=True, framed=True)[4:])


def decoded(name: str, version: int, data: bytes) -> Any:
    return kind(f"{name}Response").decode(data, version=version, header=True, framed=True)


def test_handler_that_does_not_ask_gets_no_answer_out(
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
    assert "did not ask" in caplog.text


def test_dispatch_demands_the_operation_on_the_cluster() -> None:
    async def body(world: World) -> None:
        await world.start()
        frame = frame_of("ListPartitionReassignments", 0, topics=None, timeout_ms=1000)
        made = authorizer(acl("User:bob", Operation.DESCRIBE, CLUSTER, CLUSTER_NAME))
        for name, code in (("bob", 0), ("carl", ClusterAuthorizationError.code), ("admin", 0)):
            reply = await ask(world, made, session(f"User:{name}"), frame)
            answer = decoded("ListPartitionReassignments", 0, reply.data)
            assert answer.error_code == code

    run(body)


def test_denied_topic_is_answered_like_an_absent_one() -> None:
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
def test_envelope_is_decided_by_its_client_not_by_its_sender(inner: str, code: int) -> None:
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


@pytest.mark.parametrize(
    ("principal", "listener", "nested"),
    [
        ("User:admin", "CLIENTS", False),
        ("User:admin", "BROKERS", False),
        ("User:broker-2", "CLIENTS", False),
        ("User:broker-2", "BROKERS", True),
    ],
)
def test_forged_or_nested_envelope_changes_nothing(
    principal: str, listener: str, nested: bool
) -> None:
    async def body(world: World) -> None:
        await world.start()
        call = EnvelopeRequest(create("t"), "User:admin", "10.0.0.9")
        if nested:
            call = EnvelopeRequest(bytes(encode_call(call, 3, "c"))[4:], "User:admin", "10.0.0.9")
        frame = bytes(encode_call(call, 3, "c"))[4:]
        reply = await ask(world, authorizer(), session(principal, listener), frame)
        assert reply.refusal and "t" not in world.brokers[1].registry.snapshot.topics

    run(body)


def _body(data: bytes) -> Any:
    return Reader(memoryview(data), 9)


def test_access_without_authorizer_allows_everything() -> None:
    access = Authorizer().access(session("User:bob"), ApiKey.PRODUCE)
    assert type(access) is Access and access.is_asked
    assert access.may(Operation.ALTER, CLUSTER, CLUSTER_NAME)
    assert access.visible(TOPIC, ["a"]) == ["a"]
    assert access.operations(GROUP, "g") == frozenset(OPERATIONS[GROUP])
