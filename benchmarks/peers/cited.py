"""Figures that a page cites: links to a result's file whose title names the measure.

``[10.8 %](results/kafka_groups.json "commit/zookeeper_core_percent")`` says where its number is
from; of a row's result the path is ``variant/side/measure`` and means the median. ``updated``
writes the number that the file has now, so that no page says what no result does; what stands
around it stays, and so does a figure whose file is not kept.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r'\[([^\][]*)\]\((results/[\w-]+\.json) "([^"]+)"\)')
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def updated(text: str, folder: Path) -> str:
    """The page with the numbers of the results below ``folder``, the page's own.

    Raises KeyError for a path that a kept file does not have, ValueError for a link whose words
    have no number.
    """

    def figure(found: re.Match[str]) -> str:
        words, name, path = found.groups()
        file = folder / name
        if not file.is_file():
            return found[0]
        value = of(json.loads(file.read_text("utf-8")), path)
        said, count = _NUMBER.subn(_shown(value), words, count=1)
        if not count:
            raise ValueError(f"no number in [{words}], which cites {name}")
        return f'[{said}]({name} "{path}")'

    return _LINK.sub(figure, text)


def of(found: Any, path: str) -> float:
    """The figure of a path in a result; a list's member by its number. Raises KeyError."""
    steps = path.split("/")
    if isinstance(found, dict) and "variants" in found:
        variant, side, measure = steps
        sides = {each["variant"]: each.get("sides", {}) for each in found["variants"]}
        return float(sides[variant][side]["median"][measure])
    for step in steps:
        found = found[int(step) if isinstance(found, list) else step]
    return float(found)


def _shown(value: float) -> str:
    """Two digits that matter, whole numbers with all of theirs up to three."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.2g}' if value < 100 else f'{value:.3g}'):g}"
