"""Tests of DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

import asyncio
from hashlib import pbkdf2_hmac
from typing import Any, TypeVar

import pytest
from support import handler_world
from support.handler_world import World, struct

from broker_lite.client.administration.users import Credential, upsertion
from broker_lite.metadata.credentials import user_path
from broker_lite.metadata.store import Set
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import derive_keys
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.wire import tables
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.calls.users import (
    AlterUsersRequest,
    AlterUsersResponse,
    DescribeUsersRequest,
    Upsertion,
)

SALT = b"0123456789abcdef"
SHA_256 = ScramMechanism.SHA_256
T = TypeVar("T")


def upsert(name: str, password: str, iterations: int = 4096, number: int = 1) -> Any:
    salted = pbkdf2_hmac("sha256", password.encode(), SALT, iterations)
    return struct(
        "AlterUserScramCredentials", "ScramCredentialUpsertion", name=name, mechanism=number,
        iterations=iterations, salt=SALT, salted_password=salted,
    )  # fmt: skip


def delete(name: str) -> Any:
    return struct("AlterUserScramCredentials", "ScramCredentialDeletion", name=name, mechanism=1)


async def alter(world: World, deletions: list[Any], upsertions: list[Any], broker: int = 1) -> Any:
    answer = await world.ask(
        "AlterUserScramCredentials", 0, broker=broker, deletions=deletions, upsertions=upsertions
    )
    return {row.user: row.error_code for row in answer.results}


async def sent(
    world: World, rows: tuple[Upsertion, ...], peer: str = "127.0.0.1:1"
) -> AlterUsersResponse:
    """Send AlterUserScramCredentials as the logbus client at the address ``peer``; return the
    response."""
    return await exchanged(world, AlterUsersRequest((), rows), peer)


async def exchanged(world: World, call: Call[T], peer: str = "127.0.0.1:1") -> T:
    """Send a request as the logbus client at the address ``peer``; return the response."""
    frame = memoryview(encode_call(call, 3, "c"))[4:]
    request = RequestContext.read(frame, Session(1, peer), 0)
    message = tables.decode(call.API_KEY, 0, frame, request.body_at)
    answer = await handler_world.handler(call.API_KEY)(world.brokers[1], request, message)
    return decode_call(call, memoryview(tables.encode(call.API_KEY, 0, 3, answer))[4:])


def test_altered_scram_user_is_known_to_all_brokers_within_a_second() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        assert await alter(world, [], [upsert("alice", "a")], broker=2) == {"alice": 0}
        await asyncio.sleep(1)
        pair = derive_keys(SHA_256, "a", SALT, 4096).pair()
        for parts in world.brokers.values():
            assert parts.registry.snapshot.users["alice"][SHA_256].pairs == (pair,)
        (row,) = (await world.ask("DescribeUserScramCredentials", 0, users=None)).results
        assert (row.user, row.credential_infos[0].iterations) == ("alice", 4096)
        assert await alter(world, [delete("alice")], [], broker=3) == {"alice": 0}
        await asyncio.sleep(1)
        assert all(not parts.registry.snapshot.users for parts in world.brokers.values())

    handler_world.run(body)


def test_invalid_changes_of_scram_users_have_distinct_errors() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        rows = [upsert("weak", "a", 100), upsert("good", "a"), upsert("odd", "a", number=9)]
        found = await alter(world, [delete("absent")], rows)
        assert found == {"absent": 91, "weak": 93, "good": 0, "odd": 33}
        assert await alter(world, [delete("good")], [upsert("good", "b")]) == {"good": 92}
        user = struct("DescribeUserScramCredentials", "UserName", name="absent")
        answer = await world.ask("DescribeUserScramCredentials", 0, users=[user])
        assert answer.results[0].error_code == 91

    handler_world.run(body)


def test_user_with_the_name_of_a_broker_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        assert await alter(world, [], [upsert("broker-9", "a")]) == {"broker-9": 93}
        assert not world.brokers[1].registry.snapshot.users

    handler_world.run(body)


def test_user_beyond_the_limit_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "broker_lite.server.handlers.alter_user_scram_credentials"
    monkeypatch.setattr(f"{module}.USERS_MAX", 1)

    async def body(world: World) -> None:
        await world.start(1)
        assert await alter(world, [], [upsert("first", "a")]) == {"first": 0}
        assert await alter(world, [], [upsert("second", "a")]) == {"second": 93}
        assert await alter(world, [], [upsert("first", "b")]) == {"first": 0}

    handler_world.run(body)


def test_list_of_users_contains_users_whose_znode_is_malformed() -> None:
    """Regression: one malformed znode made ``logbus user list`` fail."""

    async def body(world: World) -> None:
        await world.start(1)
        assert await alter(world, [], [upsert("alice", "a"), upsert("bob", "b")]) == {
            "alice": 0,
            "bob": 0,
        }
        registry, path = world.brokers[1].registry, user_path("alice")
        assert await world.stores[1].write([Set(path, b"{}", 0)]) is None
        await registry._refresh_security([path])
        registry._publish()
        rows = (await world.ask("DescribeUserScramCredentials", 0, users=None)).results
        assert [(row.user, row.error_code, len(row.credential_infos)) for row in rows] == [
            ("alice", 0, 0),
            ("bob", 0, 1),
        ]
        user = struct("DescribeUserScramCredentials", "UserName", name="alice")
        [row] = (await world.ask("DescribeUserScramCredentials", 0, users=[user])).results
        assert row.error_code == 91 and "logbus user add" in row.error_message

    handler_world.run(body)


def test_rotated_password_leaves_the_former_password_valid_for_keep_old_ms() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        credential = Credential(SHA_256, 4096, SALT)
        await sent(world, (upsertion("a", "old", credential),))
        row = upsertion("a", "new", credential)._replace(keep_old_ms=5000)
        # The client repeats a request whose response was lost.
        for _ in range(2):
            assert (await sent(world, (row,))).results[0].error_code == 0
        parts = world.brokers[1]
        stored = parts.registry.snapshot.users["a"][SHA_256]
        pairs = tuple(derive_keys(SHA_256, each, SALT, 4096).pair() for each in ("new", "old"))
        assert stored.at(parts.clock.now_ms()).pairs == pairs
        assert stored.at(parts.clock.now_ms() + 5000).pairs == pairs[:1]
        (described,) = (await exchanged(world, DescribeUsersRequest(("a",)))).users
        assert described.credentials[0].old_until_ms == stored.old_until_ms > 0
        other = upsertion("a", "x", credential._replace(salt=b"other"))._replace(keep_old_ms=9)
        assert (await sent(world, (other,))).results[0].error_code == 93

    handler_world.run(body)


def test_scram_credentials_from_another_machine_without_tls_are_refused() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        row = upsertion("a", "x", Credential(SHA_256, 4096, SALT))
        answer = await sent(world, (row,), peer="10.0.0.9:4000")
        assert answer.results[0].error_code == 93
        assert "TLS" in (answer.results[0].error_message or "")
        assert not world.brokers[1].registry.snapshot.users

    handler_world.run(body)
