"""The blocks of code in a page, in order, and the sentences of its prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sitegen.links import prose_of

WORDS_MAX = 25
"""Maximum words of a sentence."""

_BLOCK = re.compile(
    r"(?:^ *<!-- norun: (?P<reason>[^>]+?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<source>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_HIDDEN = re.compile(r"<!-- run (?P<language>\w+)\n(?P<source>.*?)-->", re.S)
_NOT_PROSE = re.compile(r"^\s*(\||#|:::|!\[|---|\*\*\[)")


class Block(NamedTuple):
    """A block of code: its line in the page, language and source; ``reason`` says why it does not
    run."""

    line: int
    language: str
    source: str
    reason: str


def blocks(text: str) -> list[Block]:
    """Return a page's blocks, including hidden ones in ``<!-- run python … -->`` comments, which
    prepare the state that the page assumes."""
    found = [*_BLOCK.finditer(text), *_HIDDEN.finditer(text)]
    return [_block(text, match) for match in sorted(found, key=lambda match: match.start())]


def _block(text: str, match: re.Match[str]) -> Block:
    parts = match.groupdict()
    indent = parts.get("indent") or ""
    source = re.sub(rf"^{indent}", "", parts["source"], flags=re.M)
    line = text.count("\n", 0, match.start("source")) + 1
    return Block(line, parts["language"], source, parts.get("reason") or "")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's prose, without tables, headings and code."""
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[*+-]|\d+\.) ", prose_of(text), flags=re.M):
        lines = [line for line in paragraph.splitlines() if not _NOT_PROSE.match(line)]
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(lines))
        for sentence in re.split(r"(?<=[.!?:;])[)*\"']*\s+", plain):
            if words(sentence) > 2:
                yield sentence.strip()


def words(sentence: str) -> int:
    """Return the number of words; a code span counts as one."""
    return len(re.findall(r"[\w`'’.-]*\w[\w`'’.-]*", sentence))
