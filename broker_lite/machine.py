"""Which machine this is: readers and brokers on one machine find each other by it.

A reader says it in a fetch, and a broker of the same machine may answer with the place of the
records in its files. Any thread.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from broker_lite.wire.fetch import MACHINE_BYTES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def machine_id() -> bytes:
    """What only this machine's processes know, 16 bytes: Linux draws it at every boot. Empty
    where there is no such thing."""
    try:
        found = bytes.fromhex(_BOOT_ID.read_text("ascii").replace("-", ""))
    except (OSError, ValueError):
        return b""
    return found if len(found) == MACHINE_BYTES else b""
