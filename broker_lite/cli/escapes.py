r"""Escapes in options that hold text: \t, \n, \r, \0, \xNN and \\, as in kcat."""

from __future__ import annotations

import re

import click

_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|([ntr0\\]))")


class EscapedText(click.ParamType[str]):
    """Click's type for a text option. Replaces escapes in the text."""

    name = "text"

    def convert(self, value: str, *_: object) -> str:
        return unescaped(value)


def unescaped(text: str) -> str:
    r"""Return the text with its escapes (\n, \xNN …) replaced; other backslashes stay.

    A byte \xNN from 0x80 on becomes a surrogate character, as Python does with arguments that are
    not UTF-8. ``os.fsencode`` turns it into the byte again.
    """
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    if match[1] is None:
        return _LETTERS[match[2]]
    return bytes.fromhex(match[1]).decode("utf-8", "surrogateescape")
