"""Return the memory of searches and live tails to the operating system.

Without this module a console keeps the memory of its largest search: Arrow and glibc hold freed
memory for the next allocation, and Python holds a closed consumer until the next garbage
collection.
"""

from __future__ import annotations

import gc

import pyarrow as pa

from broker_lite import heap


def spare_startup() -> None:
    """Exclude the objects of the imported modules, which live until the process ends, from garbage
    collection, so that a collection takes only a few milliseconds."""
    gc.collect()
    gc.freeze()


def release() -> None:
    """Free closed consumers and their records, and give the memory back to the system.
    Thread-safe."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    heap.trim()
