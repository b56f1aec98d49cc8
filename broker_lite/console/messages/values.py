"""Convert keys and values of records for display: to indented JSON, text or hexadecimal bytes,
shortened to a limit. No I/O."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

CUT_BYTES = 16 * 1024
"""Maximum bytes of a value that a page shows."""
PAGE_BYTES = 192 * 1024
"""Maximum bytes of all values on a page. On a page with more records, each value gets fewer
bytes."""
LEAST_BYTES = 512
"""Minimum bytes that a page shows of each value, however many records the page has."""
PRETTY_TIMES = 8
"""Maximum length of indented JSON as a multiple of the value's length. Indented JSON of up to
``LEAST_BYTES`` is always shown."""
HEX_BYTES = 1024
"""Maximum bytes of a value that a page shows in hexadecimal."""
HEADERS_MAX = 100
"""Maximum headers of a record that a page shows. All headers of a record together may take as many
bytes as its value."""
HEADER_BYTES = 32
"""A page does not shorten a header to fewer bytes than this."""
PREVIEW = 180
"""Maximum characters of a text that a table shows on one line."""
FIELDS_MAX = 10
"""Maximum columns of a table of JSON objects."""
_CONTROLS = dict.fromkeys([*range(32), 127])
for _allowed in (9, 10, 13):
    del _CONTROLS[_allowed]


class DisplayedValue(NamedTuple):
    """A key, value or header for display.

    ``text`` is the text to show, or its beginning if ``is_cut``. ``size_bytes`` is the size of the
    whole value."""

    form: Literal["null", "text", "json", "binary", "hidden"]
    text: str
    size_bytes: int
    is_cut: bool


HIDDEN = DisplayedValue("hidden", "hidden", 0, False)


def cut_for(rows: int) -> int:
    """Return the maximum bytes that a page with ``rows`` rows shows of each value."""
    return min(CUT_BYTES, max(LEAST_BYTES, PAGE_BYTES // max(rows, 1)))


def shown(value: bytes | None, cut: int = CUT_BYTES) -> DisplayedValue:
    """Return a value for display, from its first ``cut`` bytes. Bytes that are not UTF-8 text
    become hexadecimal."""
    if value is None:
        return DisplayedValue("null", "null", 0, False)
    part = value[:cut]
    is_cut = len(part) < len(value)
    # If the cut is inside a character, ignore the bytes of that character.
    text = part.decode("utf-8", "ignore" if is_cut else "replace")
    is_text = "\ufffd" not in text and (is_cut or text.encode() == part)
    if is_cut and is_text:
        is_text = len(part) - len(text.encode()) < 4
    if not is_text or text.translate(_CONTROLS) != text:
        most = min(cut, HEX_BYTES)
        return DisplayedValue("binary", hexadecimal(value[:most]), len(value), len(value) > most)
    if not is_cut and value[:1] in (b"{", b"["):
        try:
            return DisplayedValue("json", _indented(text), len(value), False)
        except (ValueError, RecursionError):
            pass
    return DisplayedValue("text", text, len(value), is_cut)


def _indented(text: str) -> str:
    """Return JSON text in indented lines.

    Raises ValueError if the text is not JSON, the result too long, or a string not valid
    Unicode."""
    left = max(LEAST_BYTES, PRETTY_TIMES * len(text))
    parts = []
    for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(json.loads(text)):
        left -= len(part.encode())
        if left < 0:
            raise ValueError("the indented text is too long")
        parts.append(part)
    return "".join(parts)


def preview(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text[: 2 * PREVIEW].split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def hexadecimal(value: bytes) -> str:
    """Return a hex dump: lines of 16 bytes, each with its position and its printable characters."""
    lines = []
    for first in range(0, len(value), 16):
        part = value[first : first + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{first:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def fields_of(rows: list[DisplayedValue]) -> list[str]:
    """Return the field names of the JSON objects in ``rows``, in the order of their first use, at
    most ten."""
    names: dict[str, None] = {}
    for row in rows:
        loaded = _object(row)
        for name in loaded or ():
            names.setdefault(name)
        if len(names) > FIELDS_MAX:
            break
    return list(names)[:FIELDS_MAX]


def cells(row: DisplayedValue, fields: list[str]) -> list[str]:
    """Return the named fields of a value as texts. An absent field is an empty text."""
    loaded = _object(row)
    return ["" if loaded is None or name not in loaded else _cell(loaded[name]) for name in fields]


def _object(row: DisplayedValue) -> dict[str, Any] | None:
    if row.form != "json":
        return None
    loaded = json.loads(row.text)
    return loaded if isinstance(loaded, dict) else None


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"
