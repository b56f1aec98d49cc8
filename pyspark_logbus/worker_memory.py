"""Make malloc keep freed memory for the next rows, in Spark's Python workers that write to a sink.

Spark passes a task's rows in ``bytes`` objects of some MB each, and the sink holds them until the
brokers acknowledge them. By default, glibc returns freed memory to the kernel as soon as some MB
are free. The kernel then clears every page that the process allocates again, which is slow on
virtual machines.
"""

from __future__ import annotations

import ctypes

from pyspark_logbus.worker_process import is_forked_by_daemon

KEPT_BYTES = 64 << 20
"""Freed bytes that a writing worker keeps: twice the default of ``buffer.memory``."""
MAPPED_BYTES = 32 << 20
"""Size in bytes from which malloc maps a block by itself, and unmaps it when it is freed. glibc
accepts no larger value."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""The numbers of the two malloc settings in glibc's ``malloc.h``."""


def keep_for_next_rows() -> None:
    """Call ``keep_freed`` if Spark's daemon forked this process. Do nothing in a user's own
    process, because its memory settings belong to the user."""
    if is_forked_by_daemon():
        keep_freed()


def keep_freed() -> bool:
    """Let this process's malloc keep up to ``KEPT_BYTES`` of freed memory. Return False if the
    process does not use glibc's malloc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        # musl, and the C libraries of macOS and Windows, lack mallopt.
        return False
    # Set both thresholds: once one of them is set, glibc no longer adjusts either.
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
