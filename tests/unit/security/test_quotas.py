"""Tests of quotas: Kafka's precedence, invalid entities, and the token bucket."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import InvalidRequestError
from broker_lite.security.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    DEFAULT,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Component,
    Entity,
    QuotaTable,
    TokenBucket,
    check_value,
    entity_of,
    selects,
)

ORDER = [
    entity_of([(USER, "alice"), (CLIENT_ID, "app")]),
    entity_of([(USER, "alice"), (CLIENT_ID, DEFAULT)]),
    entity_of([(USER, "alice")]),
    entity_of([(USER, DEFAULT), (CLIENT_ID, "app")]),
    entity_of([(USER, DEFAULT), (CLIENT_ID, DEFAULT)]),
    entity_of([(USER, DEFAULT)]),
    entity_of([(CLIENT_ID, "app")]),
    entity_of([(CLIENT_ID, DEFAULT)]),
]
"""Entities in Kafka's order of precedence: the first entity with the quota decides."""


@given(st.sets(st.integers(0, 7), min_size=1))
def test_quota_of_the_most_specific_entity_applies(present: set[int]) -> None:
    table = QuotaTable({ORDER[each]: {PRODUCER_BYTE_RATE: float(each + 1)} for each in present})
    assert table.limits("alice", "app")[PRODUCER_BYTE_RATE].rate == min(present) + 1


def test_most_specific_entity_is_chosen_independently_for_each_kind_of_quota() -> None:
    table = QuotaTable({ORDER[0]: {PRODUCER_BYTE_RATE: 1.0}, ORDER[7]: {REQUEST_PERCENTAGE: 5.0}})
    limits = table.limits("alice", "app")
    assert {key: limit.rate for key, limit in limits.items()} == {
        PRODUCER_BYTE_RATE: 1.0,
        REQUEST_PERCENTAGE: 5.0,
    }
    assert table.limits("bob", "other").keys() == {REQUEST_PERCENTAGE}


def test_clients_of_a_user_share_a_quota_and_other_users_do_not() -> None:
    table = QuotaTable({ORDER[5]: {PRODUCER_BYTE_RATE: 1.0}})
    bucket = {
        (user, client): table.limits(user, client)[PRODUCER_BYTE_RATE].bucket
        for user in ("alice", "bob")
        for client in ("a", "b")
    }
    assert bucket["alice", "a"] == bucket["alice", "b"] != bucket["bob", "a"]
    each = QuotaTable({ORDER[4]: {PRODUCER_BYTE_RATE: 1.0}})
    assert each.limits("alice", "a") != each.limits("alice", "b")


def test_ip_address_without_its_own_quota_gets_the_default_ip_quota() -> None:
    table = QuotaTable({
        entity_of([(IP, "10.0.0.7")]): {CONNECTION_CREATION_RATE: 3.0},
        entity_of([(IP, DEFAULT)]): {CONNECTION_CREATION_RATE: 9.0},
    })  # fmt: skip
    own, default = (table.connection_limit(each, "n") for each in ("10.0.0.7", "10.0.0.8"))
    assert own == (3.0, (CONNECTION_CREATION_RATE, "10.0.0.7"))
    assert default == (9.0, (CONNECTION_CREATION_RATE, "n"))
    assert QuotaTable({}).connection_limit("10.0.0.7", "n") is None


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan, "9", None])
def test_invalid_stored_quota_rate_is_ignored(rate: Any) -> None:
    table = QuotaTable({
        ORDER[2]: {PRODUCER_BYTE_RATE: rate},
        entity_of([(IP, DEFAULT)]): {CONNECTION_CREATION_RATE: rate},
    })  # fmt: skip
    assert table.limits("alice", "app") == {}
    assert table.connection_limit("10.0.0.7", "10.0.0.7") is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a user, a client id or an ip"),
        ([(USER, "a"), (USER, "b")], "each at most once"),
        ([("group", "g")], "'group' does not exist; give user, client-id, ip"),
        ([(IP, "10.0.0.1"), (USER, "a")], "an ip cannot also name a user"),
        ([(USER, "")], "is empty"),
        ([(USER, "a\nb")], "control characters"),
        ([(IP, "example.org")], "example.org"),
    ],
)
def test_quota_entity_with_an_invalid_name_or_combination_of_names_is_refused(
    parts: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        entity_of(parts)


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (ORDER[2], "producer_rate", 1.0, "does not exist for user 'alice'; give producer_byte"),
        (ORDER[2], CONNECTION_CREATION_RATE, 1.0, "does not exist for user"),
        (ORDER[2], PRODUCER_BYTE_RATE, 0.0, "a number above 0"),
        (ORDER[2], PRODUCER_BYTE_RATE, -1.0, "a number above 0"),
        (ORDER[2], PRODUCER_BYTE_RATE, math.nan, "a number above 0"),
        (ORDER[2], PRODUCER_BYTE_RATE, math.inf, "a number above 0"),
        (Entity(((IP, "::1"),)), CONNECTION_CREATION_RATE, 0.5, "a whole number"),
    ],
)
def test_invalid_quota_value_is_refused(
    entity: Entity, key: str, value: float, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_value(entity, key, value)


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5000)), min_size=1, max_size=30),
)
def test_throttled_client_never_exceeds_its_rate_plus_one_burst(
    rate: float, requests: list[tuple[float, int]]
) -> None:
    bucket, now_ms, spent = TokenBucket(rate, 0), 0.0, 0.0
    for amount, idle_ms in requests:
        # All earlier requests together used at most the rate plus one second's burst.
        assert spent <= rate * now_ms / 1000 + bucket.capacity + 1e-3
        spent += amount
        wait_ms = bucket.spend(amount, now_ms)
        while wait_ms:
            now_ms += wait_ms
            wait_ms = bucket.spend(0, now_ms)
        now_ms += idle_ms


def test_token_bucket_holds_no_more_than_its_burst() -> None:
    bucket = TokenBucket(100, 0)
    assert bucket.spend(100, 3_600_000) == 0
    assert bucket.spend(50, 3_600_000) == 500
    assert bucket.spend(0, 3_600_250) == 250
    assert not bucket.is_full(3_600_500) and bucket.is_full(3_601_500)


def test_client_quota_filter_matches_a_name_or_the_default_or_any_name() -> None:
    def found(*components: Component, strict: bool = False) -> list[int]:
        return [at for at, each in enumerate(ORDER) if selects(components, each, strict=strict)]

    assert found() == list(range(8))
    assert found(Component(USER, "alice")) == [0, 1, 2]
    assert found(Component(USER, "alice"), strict=True) == [2]
    assert found(Component(USER, DEFAULT)) == [3, 4, 5]
    assert found(Component(USER, None, is_any=True), Component(CLIENT_ID, "app")) == [0, 3]
    assert found(strict=True) == []
