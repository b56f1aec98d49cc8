"""Give memory that the process has freed back to the operating system.

The C library keeps freed memory for later allocations. After an unusual peak, such as a large
search or thousands of partial requests, the process would keep the memory of the peak for ever."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give the heap's free pages back. Thread-safe. Does nothing with a C library that has no
    ``malloc_trim`` (only glibc has it)."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(0)
