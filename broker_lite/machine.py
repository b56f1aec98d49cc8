"""The id of this machine. Brokers use it to recognise consumers that can open their files.

A consumer sends the id in its fetch request. A broker with the same id may answer with file names
and byte ranges in place of records. Any thread may call this module.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from broker_lite.wire.fetch import MACHINE_BYTES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def machine_id() -> bytes:
    """Return the 16 bytes of Linux's boot id, or empty bytes on a system without one."""
    try:
        boot_id = bytes.fromhex(_BOOT_ID.read_text("ascii").replace("-", ""))
    except (OSError, ValueError):
        return b""
    return boot_id if len(boot_id) == MACHINE_BYTES else b""
