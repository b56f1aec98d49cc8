"""Compute CRC-32C (Castagnoli), the checksum of a batch from byte 21 to its end.

The module uses the library google-crc32c if its C code is available (tens of GB/s), otherwise
crcmod. google-crc32c accepts only ``bytes``. The module copies other buffers piece by piece; the
pieces fit into the processor's cache, so this costs only some 20 µs per MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

try:
    import google_crc32c as _google
except ImportError:
    _native = False
else:
    _native = _google.implementation == "c"
if not _native:
    # Import crcmod only if it is used: every Python process of a Spark query imports this module.
    import crcmod.predefined

    _crcmod: Callable[[object, int], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

Buffer = bytes | bytearray | memoryview

IMPLEMENTATION: Final = "google-crc32c" if _native else "crcmod"


_PIECE_BYTES: Final = 64 << 10


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """Return the checksum of ``buffer``. ``crc`` is the checksum of the bytes before ``buffer``."""
    if not _native:
        return _crcmod(buffer, crc)
    if type(buffer) is bytes or len(buffer) <= _PIECE_BYTES:
        crc = _google.extend(crc, bytes(buffer))
        return crc
    view = memoryview(buffer)
    for start in range(0, len(view), _PIECE_BYTES):
        crc = _google.extend(crc, bytes(view[start : start + _PIECE_BYTES]))
    return crc
