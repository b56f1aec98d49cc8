"""PROTOCOL.md's tables: the APIs that the broker serves, the clients that were tested."""

from __future__ import annotations

import re
from pathlib import Path

import broker_lite.wire
from broker_lite.wire.api import VERSIONS, ApiKey

PAGE = Path(broker_lite.wire.__file__).with_name("PROTOCOL.md")


def test_the_page_names_every_api_and_its_versions() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \|", PAGE.read_text("utf-8"), re.M)
    assert {int(key): (int(first), int(last or first)) for key, _, first, last in rows} == VERSIONS
    for key, name, _, _ in rows:
        assert name.lower() == ApiKey(int(key)).name.replace("_", "").lower()


def test_the_page_names_the_clients_that_were_tested_with_their_versions() -> None:
    """`make compat` wrote what they were answered; a newer client is a new row there and here."""
    part = PAGE.read_text("utf-8").partition("## Tested clients")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (.*? \d.*?) \|", part, re.M)
    results = Path(__file__).parents[2] / "compat" / "RESULTS.md"
    rows = re.findall(r"^\| (.*?) \|", results.read_text("utf-8"), re.M)
    assert set(named) == set(rows) - {"client", "---"}
    assert len(named) == len(set(named))
