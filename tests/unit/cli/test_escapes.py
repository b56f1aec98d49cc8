"""Tests of escapes such as ``\\t`` in command-line options that hold text."""

from __future__ import annotations

import os

import pytest

from broker_lite.cli.escapes import unescaped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\t", b"\t"),
        (r"a\n\r\0b", b"a\n\r\0b"),
        (r"\x7C\xff", b"|\xff"),
        (r"\xc3\xa9", b"\xc3\xa9"),
        (r"\\t", rb"\t"),
        (r"\q\x1", rb"\q\x1"),
        (":", b":"),
    ],
)
def test_escapes_in_a_delimiter_become_bytes_and_other_backslashes_stay(
    text: str, expected: bytes
) -> None:
    assert os.fsencode(unescaped(text)) == expected
