"""Tests of "Copy as command": the copied commands and programs select the records of their page."""

from __future__ import annotations

import shlex

import pytest

from broker_lite.cli.consume import consume
from broker_lite.console.commands import SNIPPETS

SERVERS = "b1:9092,b2:9092"


def snippets(**query: str) -> dict[str, str]:
    return dict(SNIPPETS["topic_messages"]({"topic": "orders"}, SERVERS, query))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "-s -100"),
        ({"from": "newest", "text": "a"}, "--grep '(?i)a'"),
        ({"from": "oldest", "partition": "2"}, "-p 2"),
        ({"from": "offset", "at": "1200"}, "-s 1200"),
        ({"from": "time", "at": "-1h"}, "-s @-1h"),
        ({"from": "oldest", "key": "it's"}, "--key 'it'\"'\"'s'"),
        ({"from": "oldest", "text": "a b.c"}, "--grep '(?i)a\\ b\\.c'"),
        ({"from": "newest", "header": "unit=a b"}, "--header 'unit=a b'"),
    ],
)
def test_command_copied_from_a_console_page_has_the_filters_of_that_page(
    query: dict[str, str], words: str
) -> None:
    command = snippets(**query)["Command"]
    assert command == f"logbus consume orders -e {words} -b {SERVERS}"
    consume.make_context("consume", shlex.split(command)[2:])


@pytest.mark.parametrize("text", ["plain", "quote ' and \" and \\", "{braces}", "\u00e4"])
def test_code_snippets_of_the_console_quote_the_values_of_search_filters(text: str) -> None:
    found = snippets(partition="1", key=text, text=text, header=f"{text}={text}")
    for language in ("Python", "PySpark"):
        compile(found[language], language, "exec")
    # Regression: the program imported a name that the package no longer has.
    (line,) = [line for line in found["Python"].splitlines() if line.startswith("from ")]
    exec(line)
    assert f"record.key == {text.encode()!r}" in found["Python"]
    assert f"h.key == {text!r}" in found["PySpark"] and "includeHeaders" in found["PySpark"]
    assert "import functions" not in snippets()["PySpark"]


@pytest.mark.parametrize(
    ("at", "start"),
    [
        ("1970-01-01T00:00:01Z", "1000"),
        ("1700000000000", "1700000000000"),
        ("-1h", "int(time.time() * 1000) - 3600000"),
    ],
)
def test_program_copied_from_the_console_reads_from_the_time_chosen_on_the_page(
    at: str, start: str
) -> None:
    found = snippets(**{"from": "time", "at": at})
    assert f"consumer.seek_to_time({start})" in found["Python"]
    assert f".option('startingTimestamp', {start})" in found["PySpark"]
    for language in ("Python", "PySpark"):
        compile(found[language], language, "exec")
        assert ("import time\n" in found[language]) == ("time.time" in start)


@pytest.mark.parametrize("query", [{"partition": " "}, {"from": "offset", "at": "x"}])
def test_programs_copied_from_the_console_omit_fields_that_the_page_does_not_use(
    query: dict[str, str],
) -> None:
    """Regression: the page with the programs failed (status 500) for the fields ``partition=%20``
    and, after the first part of a search, ``at=x``."""
    found = snippets(**query)
    assert "if " not in found["Python"] and "where" not in found["PySpark"]
