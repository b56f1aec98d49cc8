"""CRC-32C (Castagnoli), the checksum of a batch from byte 21 to its end.

google-crc32c where its C code is there (tens of GB/s), else crcmod. google-crc32c takes ``bytes``
alone of the types here: what is none is copied in pieces that the processor's cache holds, at some
20 us a MB. (An Arrow buffer over it would pass uncopied, but for 27 MB in every broker.)
Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import crcmod.predefined

try:
    import google_crc32c as _google
except ImportError:
    _native = False
else:
    _native = _google.implementation == "c"

Buffer = bytes | bytearray | memoryview

_crcmod: Final[Callable[[object, int], int]] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

IMPLEMENTATION: Final = "google-crc32c" if _native else "crcmod"


_PIECE_BYTES: Final = 64 << 10


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of ``buffer``; ``crc``, that of what precedes it, continues one."""
    if not _native:
        return _crcmod(buffer, crc)
    if type(buffer) is bytes or len(buffer) <= _PIECE_BYTES:
        crc = _google.extend(crc, bytes(buffer))
        return crc
    view = memoryview(buffer)
    for start in range(0, len(view), _PIECE_BYTES):
        crc = _google.extend(crc, bytes(view[start : start + _PIECE_BYTES]))
    return crc
