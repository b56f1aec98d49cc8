"""What may be sent unchecked: recent appends, ranges checked lately; and never anything else."""

from __future__ import annotations

from broker_lite.server.partitions.crc_cache import RANGES_MAX, TRUST_MS, Trust

START = 1_000_000


def test_what_was_there_at_the_start_is_not_trusted() -> None:
    trust = Trust(100)
    assert not trust.is_checked(START, 99, 200)
    assert not trust.is_checked(START, 0, 100)


def test_appends_are_trusted_for_a_minute() -> None:
    trust = Trust(100)
    trust.appending(START, 100)
    assert trust.is_checked(START, 100, 150)
    assert trust.is_recent(START + TRUST_MS - 1, 100)
    assert not trust.is_recent(START + TRUST_MS, 100)
    trust.appending(START + TRUST_MS, 150)
    assert trust.is_recent(START + TRUST_MS, 150)
    assert not trust.is_recent(START + TRUST_MS, 149)


def test_what_leaves_memory_is_read_again_before_it_is_trusted() -> None:
    trust = Trust(100)
    trust.appending(START, 100)
    trust.leaving_memory(START)
    assert not trust.is_checked(START + 1, 100, 150)
    trust.checked(START + 2, 100, 120)
    assert trust.is_checked(START + 3, 100, 120)
    later = START + TRUST_MS
    trust.appending(later, 150)
    assert trust.is_recent(later, 150)
    assert not trust.is_recent(later, 149)


def test_many_appends_are_remembered_by_the_second() -> None:
    trust = Trust(0)
    for second in range(300):
        for offset in range(10):
            trust.appending(START + second * 1000, second * 10 + offset)
    now_ms = START + 299_000
    assert trust.is_recent(now_ms, 2990)
    assert trust.is_recent(now_ms, 2400)
    assert not trust.is_recent(now_ms, 2000)


def test_checked_ranges_are_trusted_and_joined() -> None:
    trust = Trust(1000)
    trust.checked(START, 0, 100)
    trust.checked(START + 10, 100, 200)
    assert trust.is_checked(START + 20, 50, 200)
    assert not trust.is_checked(START + 20, 50, 201)
    assert not trust.is_checked(START + TRUST_MS, 50, 200)


def test_only_so_many_ranges_are_remembered() -> None:
    trust = Trust(1 << 30)
    for n in range(2 * RANGES_MAX):
        trust.checked(START, n * 10, n * 10 + 5)
    assert not trust.is_checked(START, 0, 5)
    assert trust.is_checked(START, (2 * RANGES_MAX - 1) * 10, (2 * RANGES_MAX - 1) * 10 + 5)


def test_columns_are_expected_in_what_was_there_before_and_where_they_were_appended() -> None:
    trust = Trust(100)
    assert trust.rows_from == 100
    trust.has_columns(150)
    trust.has_columns(120)
    assert trust.rows_from == 150


def test_nothing_is_trusted_after_a_truncation() -> None:
    trust = Trust(0)
    trust.appending(START, 0)
    trust.checked(START, 0, 50)
    trust.truncated(40)
    assert not trust.is_checked(START, 0, 50)
    assert not trust.is_recent(START, 10)
