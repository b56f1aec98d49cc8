"""PROTOCOL.md's table of APIs is the table that the broker serves."""

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
