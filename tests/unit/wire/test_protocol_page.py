"""Tests of the tables of served APIs and tested clients in PROTOCOL.md and README.md."""

from __future__ import annotations

import re
from pathlib import Path

from support.client_programs import names

from broker_lite.wire.api import VERSIONS, ApiKey

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "broker_lite" / "wire" / "PROTOCOL.md"
FETCHED = ("java", "java clients", "broker", "old broker", "connect", "streams", "kafkajs",
           "platformatic", "franz-go", "sarama", "old sarama", "spark",
           "librdkafka suite")  # fmt: skip
"""Clients whose versions are in a package manager's file in this repository."""
MIRRORED = "broker"
"""The name of Kafka's broker, which `logbus mirror` reads; README.md lists only clients."""


def test_protocol_page_lists_every_api_and_its_versions() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \|", PAGE.read_text("utf-8"), re.M)
    assert {int(key): (int(first), int(last or first)) for key, _, first, last in rows} == VERSIONS
    for key, name, _, _ in rows:
        assert name.lower() == ApiKey(int(key)).name.replace("_", "").lower()


def test_protocol_page_lists_the_clients_of_the_compatibility_results() -> None:
    """A new version of a client needs a row in the results of `make compat`, and on the page."""
    assert set(on_page()) == in_results()
    assert len(on_page()) == len(in_results())


def on_page() -> list[str]:
    part = PAGE.read_text("utf-8").partition("## Tested clients")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.*? \d.*?) \|", part, re.M)


def in_results() -> set[str]:
    rows = re.findall(r"^\| (.*?) \|", (TESTS / "compat" / "RESULTS.md").read_text("utf-8"), re.M)
    return set(rows) - {"client", "---"}


def test_protocol_page_lists_the_pinned_versions_of_clients() -> None:
    assert {names()[client] for client in FETCHED} <= set(on_page())


def test_readme_table_lists_the_clients_of_the_protocol_page() -> None:
    """README.md has the clients' names only; PROTOCOL.md has their versions too."""
    text = (TESTS.parent / "README.md").read_text("utf-8")
    part = text.partition("## Clients of Kafka")[2].partition("\n## ")[0]
    cells = [row.split("|")[2] for row in part.splitlines() if row.startswith("| ")][1:]
    named = [
        {word.removesuffix("'s") for word in re.findall(r"[\w@/.'-]+", name)} - {"own"}
        for cell in cells
        for name in re.split(r"[,;]| and ", re.sub(r"\(.*?\)", "", cell))
    ]
    for words in named:
        assert any(all(word in client for word in words) for client in on_page()), words
    for client in on_page():
        is_named = any(all(word in client for word in words) for words in named)
        assert is_named or MIRRORED in client, client
