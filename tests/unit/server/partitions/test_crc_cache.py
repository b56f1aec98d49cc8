"""Tests of the CRC cache, which remembers the offset ranges whose CRCs need no check.

These are recent appends and recently checked ranges.
"""

from __future__ import annotations

from broker_lite.server.partitions.crc_cache import RANGES_MAX, TRUST_MS, CrcCache

START = 1_000_000


def test_records_appended_before_the_broker_started_need_a_crc_check() -> None:
    cache = CrcCache(100)
    assert not cache.is_checked(START, 99, 200)
    assert not cache.is_checked(START, 0, 100)


def test_appended_records_need_no_crc_check_for_a_minute() -> None:
    cache = CrcCache(100)
    cache.appending(START, 100)
    assert cache.is_checked(START, 100, 150)
    assert cache.is_recent(START + TRUST_MS - 1, 100)
    assert not cache.is_recent(START + TRUST_MS, 100)
    cache.appending(START + TRUST_MS, 150)
    assert cache.is_recent(START + TRUST_MS, 150)
    assert not cache.is_recent(START + TRUST_MS, 149)


def test_appended_records_evicted_from_the_page_cache_need_a_crc_check() -> None:
    cache = CrcCache(100)
    cache.appending(START, 100)
    cache.evicting(START)
    assert not cache.is_checked(START + 1, 100, 150)
    cache.checked(START + 2, 100, 120)
    assert cache.is_checked(START + 3, 100, 120)
    later = START + TRUST_MS
    cache.appending(later, 150)
    assert cache.is_recent(later, 150)
    assert not cache.is_recent(later, 149)


def test_crc_cache_distinguishes_recent_from_older_appends() -> None:
    cache = CrcCache(0)
    for second in range(300):
        for offset in range(10):
            cache.appending(START + second * 1000, second * 10 + offset)
    now_ms = START + 299_000
    assert cache.is_recent(now_ms, 2990)
    assert cache.is_recent(now_ms, 2400)
    assert not cache.is_recent(now_ms, 2000)


def test_adjacent_offset_ranges_with_checked_crcs_are_merged() -> None:
    cache = CrcCache(1000)
    cache.checked(START, 0, 100)
    cache.checked(START + 10, 100, 200)
    assert cache.is_checked(START + 20, 50, 200)
    assert not cache.is_checked(START + 20, 50, 201)
    assert not cache.is_checked(START + TRUST_MS, 50, 200)


def test_crc_cache_holds_a_limited_number_of_checked_offset_ranges() -> None:
    cache = CrcCache(1 << 30)
    for n in range(2 * RANGES_MAX):
        cache.checked(START, n * 10, n * 10 + 5)
    assert not cache.is_checked(START, 0, 5)
    assert cache.is_checked(START, (2 * RANGES_MAX - 1) * 10, (2 * RANGES_MAX - 1) * 10 + 5)


def test_crc_cache_keeps_the_highest_end_offset_of_arrow_batches() -> None:
    cache = CrcCache(100)
    assert cache.rows_from == 100
    cache.has_columns(150)
    cache.has_columns(120)
    assert cache.rows_from == 150


def test_truncation_clears_the_crc_cache() -> None:
    cache = CrcCache(0)
    cache.appending(START, 0)
    cache.checked(START, 0, 50)
    cache.truncated(40)
    assert not cache.is_checked(START, 0, 50)
    assert not cache.is_recent(START, 10)
