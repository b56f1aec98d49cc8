"""Access control lists and users as znodes, and their distribution to every broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import handler_world
from support.handler_world import World

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata import acls, credentials
from broker_lite.security.acls import (
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)

TOPICS = Pattern(ResourceKind.TOPIC, PatternType.PREFIXED, "orders.")
READ = Entry("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = Entry("User:bob", "10.0.0.1", Operation.WRITE, Permission.DENY)

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@given(NAMES, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]))
def test_every_name_has_a_distinct_path(name: str, pattern_type: PatternType) -> None:
    pattern = Pattern(ResourceKind.GROUP, pattern_type, name)
    path = acls.pattern_path(pattern)
    assert acls.path_pattern(path) == pattern
    assert path.count("/") == 4
    assert path.rpartition("/")[2] not in ("", ".", "..")


@pytest.mark.parametrize("name", ["alice", "..", "a/b", "é", "User name"])
def test_user_names_round_trip_through_their_path(name: str) -> None:
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


def test_changed_entries_reach_all_brokers_within_a_second() -> None:
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


def test_concurrent_changes_of_one_list_are_all_kept() -> None:
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


def test_list_beyond_its_limit_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start(1)
        many = frozenset(
            READ._replace(principal=f"User:{number}") for number in range(acls.ENTRIES_MAX + 1)
        )
        with pytest.raises(InvalidRequestError, match="at most 1000"):
            await world.brokers[1].registry.administration.alter_acls(TOPICS, lambda _: many)
        assert not world.brokers[1].registry.snapshot.acls

    handler_world.run(body)
