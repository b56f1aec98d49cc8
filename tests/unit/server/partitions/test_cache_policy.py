"""Tests of the policy that decides which appended bytes stay in the page cache."""

from __future__ import annotations

from broker_lite.server.partitions.cache_policy import LARGE_BYTES, READERS_MS, CachePolicy

START, MIB = 1_000_000, 1 << 20


def test_unread_appended_bytes_stay_in_the_page_cache_up_to_the_limit() -> None:
    policy = CachePolicy(4 * MIB)
    assert [policy.keeps(START, MIB) for _ in range(6)] == [True] * 4 + [False] * 2


def test_appended_data_stays_in_the_page_cache_if_the_log_was_read_recently() -> None:
    policy = CachePolicy(4 * MIB)
    policy.keeps(START, 100 * MIB)
    policy.note_read(START)
    assert all(policy.keeps(START + READERS_MS - 1, 100 * MIB) for _ in range(3))
    assert not policy.keeps(START + READERS_MS, MIB)
    policy.note_read(START + READERS_MS)
    assert policy.keeps(START + READERS_MS, MIB)


def test_small_batches_stay_in_the_page_cache() -> None:
    policy = CachePolicy(0)
    assert policy.keeps(START, LARGE_BYTES - 1)
    assert not policy.keeps(START, LARGE_BYTES)


def test_cache_limit_of_minus_one_keeps_all_appended_bytes_in_the_page_cache() -> None:
    policy = CachePolicy(-1)
    assert all(policy.keeps(START, 1 << 40) for _ in range(3))
