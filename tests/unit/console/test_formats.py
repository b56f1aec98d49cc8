"""Tests of how the console's pages format numbers, sizes, durations and times."""

from __future__ import annotations

import pytest

from broker_lite.console import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999_960, "1.0 MB"),
        (14_600_000, "14.6 MB"),
        (-1, "–"),
        (None, "–"),
    ],
)
def test_size_in_bytes_is_shown_in_powers_of_1000(value: float | None, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7.84, "7.8"), (232.4, "232"), (9999, "9,999"), (12_345, "12.3k"), (4.2e6, "4.2M")],
)
def test_short_number_has_at_most_five_characters(value: float, text: str) -> None:
    assert formats.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0004, "1 ms"),
        (0.42, "0.4 s"),
        (75, "1 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (4e5, "4 days"),
    ],
)
def test_duration_is_shown_in_one_or_two_units(value: float, text: str) -> None:
    assert formats.duration(value) == text


def test_clock_shows_a_dash_for_unknown_and_invalid_times() -> None:
    assert formats.clock(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert formats.clock(-1) == formats.clock(2**62) == "–"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("topic 't' does not exist", "Topic 't' does not exist"),
        ("in-sync replicas", "In-sync replicas"),
        ("broker's disk", "Broker's disk"),
        ("sorry, no", "Sorry, no"),
        ("retention.ms=soon: give a number", "retention.ms=soon: give a number"),
        ("retention.ms cannot be soon", "retention.ms cannot be soon"),
        ("from='x': give one of newest", "from='x': give one of newest"),
        ("events-0: its preferred broker", "events-0: its preferred broker"),
        ("unclean_leader", "unclean_leader"),
        ("", ""),
    ],
)
def test_message_that_begins_with_a_name_keeps_the_spelling_of_the_name(
    text: str, shown: str
) -> None:
    """Regression: a page showed the setting retention.ms as "Retention.ms"."""
    assert formats.sentence(text) == shown


def test_noun_after_a_count_is_put_into_the_plural() -> None:
    assert [formats.plural(count, "query") for count in (1, 2)] == ["1 query", "2 queries"]
    assert formats.plural(1200, "topic") == "1,200 topics"
