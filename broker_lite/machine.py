"""The id of this machine, by which a broker recognises consumers on its own machine: they can read
its segment files directly.

A consumer sends the id of its machine in its fetch requests. A broker on a machine with the same id
may answer with file names and byte ranges in place of records. Any thread may call this module."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from broker_lite.wire.fetch import MACHINE_BYTES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def machine_id() -> bytes:
    """Return the machine's id: Linux's boot id, 16 random bytes that the kernel draws at each boot;
    no bytes on other systems."""
    try:
        boot_id = bytes.fromhex(_BOOT_ID.read_text("ascii").replace("-", ""))
    except (OSError, ValueError):
        return b""
    return boot_id if len(boot_id) == MACHINE_BYTES else b""
