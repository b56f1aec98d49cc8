"""Tests of access control lists and users stored as znodes, and of how all brokers learn of
changes."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import handler_world
from support.handler_world import World

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata import acls, credentials
from broker_lite.metadata.security_znodes import Unreadable, load, refreshed, replace_value
from broker_lite.metadata.store import Create, Delete, Set, Znode
from broker_lite.model import ScramMechanism, UnreadableZnode
from broker_lite.security.acls import (
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.authorizer import AclIndex
from broker_lite.security.scram import KeyPair, ScramCredential

TOPICS = Pattern(ResourceKind.TOPIC, PatternType.PREFIXED, "orders.")
READ = Entry("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = Entry("User:bob", "10.0.0.1", Operation.WRITE, Permission.DENY)

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@given(NAMES, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]))
def test_acls_of_each_resource_pattern_have_a_distinct_znode_path(
    name: str, pattern_type: PatternType
) -> None:
    pattern = Pattern(ResourceKind.GROUP, pattern_type, name)
    path = acls.pattern_path(pattern)
    assert acls.path_pattern(path) == pattern
    assert path.count("/") == 4
    assert path.rpartition("/")[2] not in ("", ".", "..")


@pytest.mark.parametrize("name", ["alice", "..", "a/b", "é", "User name"])
def test_user_names_round_trip_through_their_znode_path(name: str) -> None:
    path = credentials.user_path(name)
    assert credentials.user_name(path) == name
    assert path.count("/") == 3
    assert not path.endswith("..")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_user_names_that_cannot_be_stored_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        credentials.user_path(name)


def test_acl_entries_round_trip_through_their_znode() -> None:
    both = frozenset({READ, WRITE})
    assert acls.decode_entries("/acls/topic/literal/t", acls.encode_entries(both)) == both


def test_changed_acls_reach_all_brokers_within_a_second() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await world.brokers[2].registry.administration.alter_acls(TOPICS, lambda now: now | {READ})
        await world.brokers[3].registry.administration.alter_acls(TOPICS, lambda now: now | {WRITE})
        await asyncio.sleep(1)
        for parts in world.brokers.values():
            assert parts.registry.snapshot.acls == {TOPICS: frozenset({READ, WRITE})}
        await world.brokers[1].registry.administration.alter_acls(TOPICS, lambda now: now - {READ})
        await asyncio.sleep(1)
        for parts in world.brokers.values():
            assert parts.registry.snapshot.acls == {TOPICS: frozenset({WRITE})}
        await world.brokers[1].registry.administration.alter_acls(TOPICS, lambda _: frozenset())
        await asyncio.sleep(1)
        assert not any(parts.registry.snapshot.acls for parts in world.brokers.values())

    handler_world.run(body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 9, "entries": []}',
        b'{"version": 1, "entries": 7}',
        b'{"version": 1, "entries": [["User:a"]]}',
        b'{"version": 1, "entries": [[null, "*", 3, 3]]}',
        b'{"version": 1, "entries": [["User:a", "*", 99, 3]]}',
        b'{"version": 1, "entries": [["User:a", "*", 3, 1]]}',
    ],
)
def test_unreadable_acl_znode_denies_its_resource_until_it_is_replaced(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: every broker endlessly tried to read the unreadable znode again."""
    path = acls.pattern_path(TOPICS)
    other = Pattern(ResourceKind.TOPIC, PatternType.LITERAL, "sound")

    async def body(world: World) -> None:
        await world.start(2)
        one, two = (world.brokers[number].registry for number in (1, 2))
        await one.administration.alter_acls(TOPICS, lambda _: frozenset({READ}))
        znode = await world.stores[1].get(path)
        assert znode is not None
        await world.stores[1].write([Set(path, data, znode.version)])
        await one._refresh_security([path])
        one._publish()
        await one.administration.alter_acls(other, lambda _: frozenset({READ}))
        await asyncio.sleep(1)
        assert one.snapshot.acls == {TOPICS: acls.UNREADABLE, other: frozenset({READ})}
        index = AclIndex(one.snapshot.acls, super_users=frozenset({"User:admin"}))
        for user, is_allowed in (("User:alice", False), ("User:admin", True)):
            found = index.may(user, "h", Operation.READ, ResourceKind.TOPIC, "orders.new")
            assert found is is_allowed
        assert index.may("User:alice", "h", Operation.READ, ResourceKind.TOPIC, "sound")
        [record] = [record for record in caplog.records if path in record.getMessage()]
        command = "logbus acl delete '*' all --topic orders. --prefix --deny"
        assert command in record.getMessage()
        [found] = one.unreadable_znodes
        assert found.path == path and f"{found.reason}. {found.cure}" in record.getMessage()
        await two.administration.alter_acls(TOPICS, lambda now: now - acls.UNREADABLE | {WRITE})
        await asyncio.sleep(1)
        assert one.snapshot.acls[TOPICS] == frozenset({WRITE})
        assert not one.unreadable_znodes

    handler_world.run(body)


def test_acl_znode_of_an_unknown_resource_kind_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        await world.start(1)
        store = world.stores[1]
        path = ""
        for part in ("acls", "robot", "literal", "r"):
            path += f"/{part}"
            await store.write([Create(path)])
        unreadable: Unreadable = {}
        assert await refreshed(store, {}, [path], acls.KIND, unreadable) == {}
        assert unreadable == {
            path: UnreadableZnode(
                path, "this version of logbus does not know its kind", "Upgrade logbus"
            )
        }
        await store.write([Delete(path, 0)])
        assert await refreshed(store, {}, [path], acls.KIND, unreadable) == unreadable == {}

    handler_world.run(body)
    assert "znode /acls/robot/literal/r cannot be read" in caplog.text


def _user(**changes: object) -> bytes:
    row = {"salt": "c2FsdA==", "iterations": 4096, "keys": [["a2V5", "a2V5"]], "old_until_ms": 0}
    value = {"version": 1, "mechanisms": {"SCRAM-SHA-256": {**row, **changes}}}
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"version": 1, "mechanisms": {"SCRAM-SHA-1": 1}}',
        _user(keys=[]),
        _user(keys=[["a2V5"]]),
        _user(iterations="4096"),
        _user(old_until_ms=None),
        _user(salt=7),
    ],
)
def test_user_whose_znode_is_unreadable_cannot_log_in_until_its_password_is_set(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = credentials.user_path("alice")

    async def body(world: World) -> None:
        await world.start(1)
        store = world.stores[1]
        for parent in (credentials.CREDENTIALS, credentials.USERS):
            await store.write([Create(parent)])
        await store.write([Create(path, data)])
        unreadable: Unreadable = {}
        assert await load(store, credentials.KIND, unreadable) == {"alice": {}}
        assert "logbus user add 'alice'" in unreadable[path].cure

        async def connected() -> None:
            pass

        credential = ScramCredential(b"salt", 4096, (KeyPair(b"stored", b"server"),))
        fresh = {ScramMechanism.SHA_256: credential}
        await replace_value(store, credentials.KIND, "alice", lambda _: fresh, connected)
        read = await refreshed(store, {}, [path], credentials.KIND, unreadable)
        assert read == {"alice": fresh}
        assert not unreadable

    handler_world.run(body)
    assert f"znode {path} cannot be read" in caplog.text
    assert "logbus user add 'alice'" in caplog.text


def test_concurrent_changes_of_one_acl_list_are_all_kept() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        users = [READ._replace(principal=f"User:{number}") for number in range(9)]
        await asyncio.gather(
            *(
                world.brokers[1 + number % 3].registry.administration.alter_acls(
                    TOPICS, lambda now, entry=entry: now | {entry}
                )
                for number, entry in enumerate(users)
            )
        )
        await asyncio.sleep(1)
        for parts in world.brokers.values():
            assert parts.registry.snapshot.acls[TOPICS] == frozenset(users)

    handler_world.run(body)


def test_acl_change_is_retried_if_another_broker_recreates_the_acl_znode() -> None:
    """A recreated znode starts at version 0 again, so the write's version check cannot detect the
    recreation.

    The version of the znode /changes, which each change checks and raises, detects it.
    """

    async def body(world: World) -> None:
        await world.start(2)
        one, two = (world.brokers[number].registry.administration for number in (1, 2))
        await one.alter_acls(TOPICS, lambda _: frozenset({READ}))
        store, calls = world.stores[1], []
        read = store.get

        async def read_then_recreate(path: str, *, watch: bool = False) -> Znode | None:
            znode = await read(path, watch=watch)
            if path == acls.pattern_path(TOPICS) and not calls:
                calls.append(path)
                await two.alter_acls(TOPICS, lambda _: frozenset())
                await two.alter_acls(TOPICS, lambda _: frozenset({WRITE}))
                again = await read(path)
                assert again is not None and znode is not None and again.version == znode.version
            return znode

        store.get = read_then_recreate  # type: ignore[method-assign]
        other = READ._replace(principal="User:carol")
        await one.alter_acls(TOPICS, lambda now: now | {other})
        await asyncio.sleep(1)
        assert calls
        for parts in world.brokers.values():
            assert parts.registry.snapshot.acls[TOPICS] == frozenset({WRITE, other})

    handler_world.run(body)


def test_acl_list_beyond_the_limit_of_entries_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        many = frozenset(
            READ._replace(principal=f"User:{number}") for number in range(acls.ENTRIES_MAX + 1)
        )
        with pytest.raises(InvalidRequestError, match="at most 1000"):
            await world.brokers[1].registry.administration.alter_acls(TOPICS, lambda _: many)
        assert not world.brokers[1].registry.snapshot.acls

    handler_world.run(body)
