"""Memory of Spark's Python workers that write, kept from one batch of rows to the next.

Spark hands a task's rows over in ``bytes`` of some MB each, and the sink holds those that are not
acknowledged yet. glibc gives what they leave back to the system as soon as some MB are free, and
the kernel clears it when it is taken anew, which is dear where the machine is lent its memory.
Executors only, on a worker's main thread.
"""

from __future__ import annotations

import ctypes

from pyspark_logbus.worker_process import is_forked_by_daemon

KEPT_BYTES = 64 << 20
"""Twice ``buffer.memory``'s default: what a worker that writes keeps of what it has freed."""
MAPPED_BYTES = 32 << 20
"""The most that glibc takes: larger pieces are mapped, and unmapped when they are freed."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_for_next_rows() -> None:
    """Have a process that Spark's daemon forked keep freed memory; anywhere else nothing: whose
    process it is must decide that."""
    if is_forked_by_daemon():
        keep_freed()


def keep_freed() -> bool:
    """Let this process's malloc keep up to ``KEPT_BYTES`` of what is freed; False where it is not
    glibc's, and nothing has changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    # Either of them ends glibc's own adjusting of both, so both are set.
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
