"""A password in memory that no log, error message or pickle shows."""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """A secret text. Two secrets with equal texts are equal. Only ``reveal`` returns the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._text.encode(), other._text.encode()
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a password is not pickled: Spark's executors receive derived keys instead")
