"""Figures that a page cites: links to a result's file whose title names the measure.

``[10.8 %](results/kafka_groups.json "commit/zookeeper_core_percent")`` says where its number is
from; of a row's result the path is ``variant/side/measure`` and means the median (``cpu_s``: of all
its processes together). Arithmetic may follow, with numbers or other paths of the file, from left
to right: ``commit/zookeeper_core_percent * 10 / commit/commits_per_s``. ``updated`` writes the
number that the file has now, so that no page says what no result does; what stands around it stays,
and so does a figure whose file, or whose variant or size of a row, is not kept.
"""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path
from typing import Any

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_OPERATION = re.compile(r" ([-+*/]) ")
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
        try:
            value = calculated(json.loads(file.read_text("utf-8")), path)
        except NotKept:
            return found[0]
        said, count = _NUMBER.subn(_shown(value), words, count=1)
        if not count:
            raise ValueError(f"no number in [{words}], which cites {name}")
        return f'[{said}]({name} "{path}")'

    return _LINK.sub(figure, text)


class NotKept(Exception):
    """A row's result has no figures of that variant or side."""


def calculated(found: Any, words: str) -> float:
    """What a path, and arithmetic that follows, make of a result. Raises as ``of`` does."""
    first, *rest = _OPERATION.split(words)
    value = _term(found, first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        value = OPERATIONS[sign](value, _term(found, term))
    return value


def _term(found: Any, words: str) -> float:
    is_number = _NUMBER.fullmatch(words)
    return float(words.replace(",", "")) if is_number else of(found, words)


def of(found: Any, path: str) -> float:
    """The figure of a path in a result; a list's member by its number. Raises KeyError, and
    NotKept where the result is a row's that did not run so."""
    steps = path.split("/")
    if isinstance(found, dict) and "variants" in found:
        variant, side, measure = steps
        sides = {each["variant"]: each.get("sides", {}) for each in found["variants"]}
        if side not in sides.get(variant, {}):
            raise NotKept(path)
        if measure == "cpu_s":
            return float(sum(each[measure] for each in sides[variant][side]["processes"].values()))
        return float(sides[variant][side]["median"][measure])
    for step in steps:
        found = found[int(step) if isinstance(found, list) else step]
    return float(found)


def _shown(value: float) -> str:
    """Two digits that matter, whole numbers with all of theirs up to three."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.2g}' if value < 100 else f'{value:.3g}'):g}"
