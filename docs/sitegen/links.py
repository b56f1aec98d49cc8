"""Finds broken links of the site in its Markdown, without building it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.M | re.S)
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HTML = re.compile(r"(?:href|src)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: *\{ *#([\w.-]+)[^}]*\})? *$", re.M)
_API = re.compile(r"^::: ([\w.]+)$", re.M)


def broken(pages: Mapping[str, str], files: Collection[str]) -> Iterator[str]:
    """Yield a line for each link to a page, file or anchor that the site does not have.

    ``pages`` are Markdown texts by path; ``files`` are the paths of all other files. Links to other
    sites are not followed.
    """
    anchors = {name: set(anchors_of(text)) for name, text in pages.items()}
    for name, text in pages.items():
        for target in links_of(text):
            fault = _fault(name, target, anchors, files)
            if fault:
                yield f"{name}: {target}: {fault}"


def _fault(
    name: str, target: str, anchors: Mapping[str, Collection[str]], files: Collection[str]
) -> str:
    if re.match(r"[a-z]+:", target):
        return ""
    path, _, anchor = target.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if there not in anchors:
        return "" if there in files else "no such page or file"
    return f"no anchor {anchor!r}" if anchor and anchor not in anchors[there] else ""


def prose_of(text: str) -> str:
    """Return Markdown without blocks of code, code spans and comments."""
    return _SPAN.sub("`x`", _COMMENT.sub("", _FENCE.sub("", text)))


def links_of(text: str) -> Iterator[str]:
    """Yield the targets of all links and images."""
    plain = prose_of(text)
    yield from _LINK.findall(plain)
    yield from _HTML.findall(plain)


def anchors_of(text: str) -> Iterator[str]:
    """Yield the anchors of a page: explicit ids, the ids that Markdown generates for headings, and
    the names of documented objects."""
    plain = _COMMENT.sub("", _FENCE.sub("", text))
    seen: set[str] = set()
    for title, given in _HEADING.findall(plain):
        anchor = unique(given or slug(title), seen)
        seen.add(anchor)
        yield anchor
    yield from _API.findall(plain)


def slug(title: str) -> str:
    """Return the anchor of a heading, as Python-Markdown makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    plain = re.sub(r"[^\w\s-]", "", words.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def unique(anchor: str, seen: Collection[str]) -> str:
    """Return the anchor, with the first free number appended if it is taken."""
    number, found = 1, anchor
    while found in seen:
        found = f"{anchor}_{number}"
        number += 1
    return found
