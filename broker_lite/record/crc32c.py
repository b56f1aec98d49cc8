"""CRC-32C (Castagnoli), the checksum of a batch from byte 21 to its end.

google-crc32c where its C code is there (tens of GB/s), else crcmod. A buffer is never copied:
google-crc32c takes read-only objects alone, and an Arrow buffer over a writable one passes as such.
Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import crcmod.predefined
import pyarrow as pa

try:
    import google_crc32c as _google
except ImportError:
    _native = False
else:
    _native = _google.implementation == "c"

Buffer = bytes | bytearray | memoryview

_crcmod: Final[Callable[[object, int], int]] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

IMPLEMENTATION: Final = "google-crc32c" if _native else "crcmod"


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of ``buffer``; ``crc``, that of what precedes it, continues one."""
    if not _native:
        return _crcmod(buffer, crc)
    crc = _google.extend(crc, buffer if type(buffer) is bytes else pa.py_buffer(buffer))
    return crc
