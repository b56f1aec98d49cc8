"""Change valid inputs at random.

Wholly random inputs would test little, because parsers refuse most of them at the first bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_TEXTS = ("", "=", ",", ";", '"', "\\", "n,,", "r=", "\0", "é", "\U0001f600", "%0a", "a" * 5000)
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF)


def mutated(data: bytes, rng: random.Random, most: int = 4) -> bytes:
    """Return ``data`` after up to ``most`` random flips, cuts, repetitions and insertions."""
    found = bytearray(data)
    for _ in range(rng.randrange(most + 1)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0 if found:
                found[at % len(found)] = rng.choice(_NUMBERS)
            case 1 if found:
                found[at % len(found)] ^= 1 << rng.randrange(8)
            case 2:
                del found[at : at + rng.randrange(1, 20)]
            case 3:
                found[at:at] = found[at : at + rng.randrange(1, 40)]
            case _:
                found[at:at] = rng.randbytes(rng.randrange(1, 6))
    return bytes(found)


def mutated_text(text: str, rng: random.Random, words: Sequence[str] = (), most: int = 4) -> str:
    """Return ``text`` after up to ``most`` random insertions, cuts and repetitions.

    Many insertions are one of ``words``.
    """
    for _ in range(rng.randrange(most + 1)):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice((*_TEXTS, *words))
        match rng.randrange(3):
            case 0:
                text = text[:at] + piece + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randrange(1, 20) :]
            case _:
                text = text[:at] + text[at : at + rng.randrange(1, 40)] + text[at:]
    return text
