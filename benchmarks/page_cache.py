"""The state of the page cache, which decides what a write costs on machines whose memory is lent.

A virtual machine's host may take back memory that is free inside it and give it out again page by
page, at the first touch: 3 ms a MB were measured, in the kernel time of whoever writes, where a
page that is used again takes 0.2 ms. A machine that has run for a while has no free memory: its
page cache is full of clean pages, and writes take those. ``fill`` brings that state about by
reading a file of holes.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

FREE_SHARE = 0.04
"""Full: less than this share of the memory is free. The kernel itself keeps about 1 % free."""
READ_BYTES = 1 << 20
READS_A_LOOK = 64


def _memory_bytes(name: str) -> int:
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def is_full() -> bool:
    return _memory_bytes("MemFree") < FREE_SHARE * _memory_bytes("MemTotal")


class FullPageCache:
    """Keeps the page cache full: ``fill`` before each run. The file of holes goes with ``with``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        descriptor, path = tempfile.mkstemp(prefix="logbus-bench-")
        os.unlink(path)  # it goes with its last descriptor
        self._file = os.fdopen(descriptor, "r+b")
        self._size = _memory_bytes("MemTotal") * 3 // 2 // READ_BYTES * READ_BYTES
        self._at = 0
        self._file.truncate(self._size)

    def fill(self) -> None:
        """Read as many bytes of holes as there is free memory; nothing if there is little."""
        began = time.perf_counter()
        buffer = bytearray(READ_BYTES)
        # No more than that: other processes may free memory meanwhile, for ever.
        left = min(_memory_bytes("MemFree"), self._size) // READ_BYTES
        while left > 0 and not is_full():
            for _ in range(READS_A_LOOK):
                os.preadv(self._file.fileno(), [buffer], self._at)
                self._at = (self._at + READ_BYTES) % self._size
            left -= READS_A_LOOK
        self.seconds += time.perf_counter() - began

    def __enter__(self) -> FullPageCache:
        self.fill()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
