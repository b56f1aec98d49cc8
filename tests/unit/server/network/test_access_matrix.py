"""Tests that request every served API in every version with every kind of permission.

The expected permissions are in ``support/access_cases.py``. The requests are built from the message
tables, and the broker's own handlers answer them. The test fails for an API without a case, for a
handler that checks other permissions than its case says, and for a response that contains text that
the client may not see.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from sim import scheduler
from support import api_frames
from support.access_cases import CASES, CODES, VERIFIES_GROUP, Case
from support.access_world import (
    ABSENT,
    CLIENT,
    CONTENTS,
    NAMES,
    AccessWorld,
    Acls,
    grants,
    merged,
)
from support.api_frames import TOPIC_ID, answer_of, error_codes, request_frame

from broker_lite.config import BrokerConfig
from broker_lite.model import ScramMechanism, topic_id_bytes
from broker_lite.security.acls import (
    IMPLIED_BY,
    OPERATIONS,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.server import dispatch
from broker_lite.server.network.access import FORWARDED, ROWS, Authorizer
from broker_lite.server.network.context import RequestContext
from broker_lite.server.network.logins import BEFORE_LOGIN, Logins
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call
from broker_lite.wire.calls.envelope import EnvelopeRequest, EnvelopeResponse
from broker_lite.wire.primitives import Reader

AUTHORIZATION = frozenset(CODES.values())
GUARDED = [case for case in CASES if case.needs]
BROKER, BROKERS = "User:broker-9", "BROKERS"
DIRECTORY = "/data"
NAMED = {
    ResourceKind.TOPIC: api_frames.TOPIC,
    ResourceKind.GROUP: api_frames.GROUP,
    ResourceKind.TRANSACTIONAL_ID: api_frames.TRANSACTIONAL_ID,
}
EVERY_PERMISSION = [(kind, each) for kind, row in OPERATIONS.items() for each in row]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the logs of denials, which would have thousands of lines."""
    for name in ("access", "dispatch"):
        monkeypatch.setattr(logging.getLogger(f"logbus.{name}"), "disabled", True)


def run(body: Callable[[AccessWorld], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = await AccessWorld().start()
        await body(world)
        world.cluster.check()

    scheduler.run(whole())


def test_permission_tests_cover_every_version_of_every_served_api() -> None:
    covered = {(case.key, version) for case in CASES for version in case.versions}
    served = {
        (key, version)
        for key, (first, last) in VERSIONS.items()
        for version in range(first, last + 1)
    }
    assert covered == served
    assert ROWS.keys() == {case.key for case in CASES}


def implies(granted: Operation, needed: Operation) -> bool:
    return granted in (needed, Operation.ALL) or granted in IMPLIED_BY.get(needed, ())


def suffices(case: Case, kind: ResourceKind, granted: Operation) -> bool:
    """Return whether the granted operation is or implies one that the case needs instead."""
    return any(kind is on and implies(granted, each) for on, each in case.instead)


def insufficient(case: Case) -> Iterator[tuple[Acls, int]]:
    """Yield sets of ACLs that do not allow the request, with the error code that the response must
    have."""
    everything = grants(*case.needs)
    for kind, needed in case.needs:
        others = [need for need in case.needs if need != (kind, needed)]
        yield grants(*others), CODES[kind]
        for each in OPERATIONS[kind]:
            if not implies(each, needed) and not suffices(case, kind, each):
                yield grants(*others, (kind, each)), CODES[kind]
        if case.of_brokers:
            yield everything, CODES[kind]
        elif not case.instead:
            denial = grants((kind, needed), how=Permission.DENY)
            yield merged(everything, denial), CODES[kind]
        if kind is not ResourceKind.CLUSTER:
            elsewhere = grants((kind, needed), names=ABSENT)
            yield merged(grants(*others), elsewhere), CODES[kind]
    kinds = {kind for kind, _ in case.needs}
    for other in EVERY_PERMISSION:
        if other[0] not in kinds and not suffices(case, *other) and len(kinds) == 1:
            yield grants(other), CODES[case.needs[0][0]]


def sufficient(case: Case) -> Iterator[Acls]:
    """Yield minimal sets of ACLs that allow the request."""
    if not case.needs or case.of_brokers:
        yield {}
        return
    for kind, needed in case.needs:
        others = [need for need in case.needs if need != (kind, needed)]
        for each in (*OPERATIONS[kind], Operation.ALL):
            if implies(each, needed):
                yield grants(*others, (kind, each))
    for each in case.instead:
        yield grants(each)
    for how, name in ((PatternType.LITERAL, "*"), (PatternType.PREFIXED, "")):
        wide: Acls = {}
        for kind, operation in case.needs:
            if kind is ResourceKind.CLUSTER:
                wide = merged(wide, grants((kind, operation)))
                continue
            (literal,) = grants((kind, operation))
            pattern = Pattern(kind, how, name or literal.name[:3])
            entry = Entry("User:*", "127.0.0.1", operation, Permission.ALLOW)
            wide = merged(wide, {pattern: frozenset({entry})})
        yield wide


@pytest.mark.parametrize("part", range(4))
def test_request_with_insufficient_permissions_is_denied_and_changes_nothing(part: int) -> None:
    async def body(world: AccessWorld) -> None:
        before = world.digest()
        for case in GUARDED[part::4]:
            for version in case.versions:
                await _check_denials(world, case, version)
            assert world.digest() == before, case

    run(body)


async def _check_denials(world: AccessWorld, case: Case, version: int) -> None:
    frame = request_frame(case.key, version, world.names, case.fields)
    hidden = [text for text in CONTENTS if text not in frame]
    for acls, code in insufficient(case):
        world.grant(acls)
        reply = await world.send(frame)
        shown = f"{case} version {version} with {[*acls.items()]}: {reply.refusal}"
        codes = error_codes(answer_of(case.key, version, reply.frame))
        omitted = [kind for kind in case.hides if CODES[kind] == code]
        assert codes & AUTHORIZATION == (set() if omitted else {code}), (shown, codes)
        names = [NAMES[NAMED[kind]].encode() for kind in omitted if kind in NAMED]
        for text in (*hidden, *(name for name in names if name not in frame)):
            assert text not in reply.frame, shown


@pytest.mark.parametrize("part", range(4))
def test_client_without_permissions_cannot_tell_existing_from_absent_resources(part: int) -> None:
    async def body(world: AccessWorld) -> None:
        world.grant({})
        for case in GUARDED[part::4]:
            for version in case.versions:
                frame = request_frame(case.key, version, world.names, case.fields)
                reply = await world.send(frame)
                for canary in world.canaries(case, version):
                    assert canary not in reply.frame, (str(case), version, canary)
                if topic_id_bytes(world.names[TOPIC_ID]) in frame:
                    # Topic ids are random and not secret, so unknown ids may have another error.
                    continue
                other = await world.send(request_frame(case.key, version, ABSENT, case.fields))
                same = reply.frame
                for key, name in NAMES.items():
                    same = same.replace(name.encode(), ABSENT[key].encode())
                assert (same, bool(reply.refusal)) == (other.frame, bool(other.refusal)), str(case)

    run(body)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_request_with_sufficient_permissions_is_not_denied(case: Case) -> None:
    async def body(world: AccessWorld) -> None:
        client = (BROKER, BROKERS) if case.of_brokers else (CLIENT, "PLAINTEXT")
        names = [name.encode() for name in (*NAMES.values(), DIRECTORY)]
        for version in case.versions:
            for acls in sufficient(case):
                world.grant(acls)
                frame = request_frame(case.key, version, world.names, case.fields)
                reply = await world.send(frame, *client)
                shown = f"{case} version {version} with {acls}: {reply.refusal}"
                codes = error_codes(answer_of(case.key, version, reply.frame))
                assert not codes & AUTHORIZATION, (shown, codes)
                if case.hides:
                    assert any(name in reply.frame for name in names), shown

    run(body)


@pytest.mark.parametrize("shows", [True, False])
def test_created_topic_shows_its_settings_only_to_clients_that_may_describe_them(
    shows: bool,
) -> None:
    async def body(world: AccessWorld) -> None:
        create, describe = (
            (ResourceKind.TOPIC, each) for each in (Operation.CREATE, Operation.DESCRIBE_CONFIGS)
        )
        world.grant(grants(create, *([describe] if shows else []), names=ABSENT))
        for version in range(5, VERSIONS[ApiKey.CREATE_TOPICS][1] + 1):
            reply, _ = await world.answer(
                ApiKey.CREATE_TOPICS, version, fields={"validate_only": True}, names=ABSENT
            )
            (topic,) = answer_of(ApiKey.CREATE_TOPICS, version, reply.frame)["topics"]
            assert topic["error_code"] == 0
            code = 0 if shows else CODES[ResourceKind.TOPIC]
            assert topic["topic_config_error_code"] == code
            assert (topic["num_partitions"] == -1) == (not shows)
            assert bool(topic["configs"]) == shows

    run(body)


def test_principal_of_a_broker_cannot_read_or_write_topics_through_client_apis() -> None:
    async def body(world: AccessWorld) -> None:
        world.grant({})
        before = world.digest()
        for case in GUARDED:
            needs = {*case.needs, *case.instead}
            if (ResourceKind.CLUSTER, Operation.CLUSTER_ACTION) in needs:
                continue
            if case.fields is VERIFIES_GROUP:
                # Brokers send this request; only from a client it is like a producer's.
                continue
            for version in case.versions:
                reply, codes = await world.answer(
                    case.key, version, BROKER, fields=case.fields, listener=BROKERS
                )
                assert case.hides or codes & AUTHORIZATION, (str(case), version)
                for canary in world.canaries(case, version):
                    assert canary not in reply.frame, (str(case), version)
        assert world.digest() == before

    run(body)


def test_envelope_may_contain_only_forwardable_requests_that_its_client_may_send() -> None:
    async def body(world: AccessWorld) -> None:
        before = world.digest()
        for case in CASES:
            for version in case.versions:
                inner = request_frame(case.key, version, world.names, case.fields)
                for outer in ((BROKER, BROKERS), (BROKER, "PLAINTEXT"), (CLIENT, BROKERS)):
                    world.grant({})
                    call = EnvelopeRequest(inner, CLIENT, "127.0.0.1")
                    frame = bytes(encode_call(call, 3, "c"))[4:]
                    reply = await world.send(frame, *outer)
                    shown = (str(case), version, outer)
                    if outer != (BROKER, BROKERS) or case.key not in FORWARDED:
                        assert _opened(reply.frame).response is None, shown
                        assert _opened(reply.frame).error_code in (31, 42), shown
                        continue
                    answer = _opened(reply.frame)
                    assert answer.response is not None
                    whole = len(answer.response).to_bytes(4, "big") + answer.response
                    codes = error_codes(answer_of(case.key, version, whole))
                    assert codes & AUTHORIZATION == {CODES[case.needs[0][0]]}, shown
        assert world.digest() == before

    run(body)


def _opened(frame: bytes) -> EnvelopeResponse:
    return EnvelopeRequest.decode(Reader(memoryview(frame), 9))


def test_only_login_apis_are_answered_before_the_login() -> None:
    async def body(world: AccessWorld) -> None:
        parts = dataclasses.replace(world.parts, logins=Logins((ScramMechanism.SHA_256,)))
        world.dispatcher = dispatch.Dispatcher(world.cluster.loop, parts)
        for case in CASES:
            for version in case.versions:
                frame = request_frame(case.key, version, world.names, case.fields)
                reply = await world.send(frame, needs_login=True, takes_logins=True)
                assert bool(reply.refusal) == (case.key not in BEFORE_LOGIN), (str(case), version)
                assert case.key in BEFORE_LOGIN or not reply.frame

    run(body)


@pytest.mark.parametrize("part", range(2))
def test_response_of_a_handler_that_skips_its_permission_checks_is_dropped(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The test makes each handler check permissions with a second object, so that the request's own
    (``access``) has recorded no check.

    Regression: Metadata 0 with an empty list means all topics. The dispatcher took it for a request
    without resources, which needs no check.
    """

    def forgetful(handle: Callable[..., Any]) -> Callable[..., Any]:
        def forgets(parts: Any, request: RequestContext, *rest: Any) -> Any:
            allowed = Authorizer(BrokerConfig()).access(request.session, request.api_key)
            return handle(parts, request._replace(access=allowed), *rest)

        return forgets

    async def body(world: AccessWorld) -> None:
        for key in dispatch.HANDLERS:
            monkeypatch.setitem(dispatch.HANDLERS, key, forgetful(dispatch.HANDLERS[key]))
        for name in ("produce", "fetch"):
            module = getattr(dispatch, name)
            monkeypatch.setattr(module, "handle", forgetful(module.handle))
        cases = [case for case in CASES if ROWS[case.key].needs_check and not case.of_brokers]
        assert len(cases) > 40
        for case in cases[part::2]:
            world.grant(grants(*case.needs))
            for version in case.versions:
                frame = request_frame(case.key, version, world.names, case.fields)
                reply = await world.send(frame)
                for canary in world.canaries(case, version):
                    assert canary not in reply.frame, (str(case), version, canary)
                if reply.frame and not case.hides:
                    codes = error_codes(answer_of(case.key, version, reply.frame))
                    assert -1 in codes, (str(case), version, codes)
                assert reply.frame or reply.refusal

    run(body)
