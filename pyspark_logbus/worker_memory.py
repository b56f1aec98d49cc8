"""Keeps freed memory in Spark's writing Python workers, for reuse by the next rows.

Spark passes a task's rows in ``bytes`` objects of some MB each, and the sink holds them until they
are acknowledged. By default, glibc returns freed memory to the system as soon as some MB are free.
The kernel then clears every page that the process allocates again, which is slow on virtual
machines. Executors only, on a worker's main thread.
"""

from __future__ import annotations

import ctypes

from pyspark_logbus.worker_process import is_forked_by_daemon

KEPT_BYTES = 64 << 20
"""Freed bytes that a writing worker keeps: twice the default of ``buffer.memory``."""
MAPPED_BYTES = 32 << 20
"""glibc's maximum of this setting. Larger blocks are mapped, and unmapped when they are freed."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_for_next_rows() -> None:
    """Keep freed memory if Spark's daemon forked this process. Do nothing in other processes,
    because their owner must decide."""
    if is_forked_by_daemon():
        keep_freed()


def keep_freed() -> bool:
    """Let this process's malloc keep up to ``KEPT_BYTES`` of freed memory. Return False, without a
    change, if malloc is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    # Set both: setting either of them stops glibc from adjusting both.
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
