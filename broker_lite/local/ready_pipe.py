"""Find out whether the start of a child process succeeded. The child reports on a pipe that it is
ready; if it fails to start, its log has the error."""

from __future__ import annotations

import os
import select
import subprocess
import time

from broker_lite.errors import TABLE, LogbusError

STOP_TIMEOUT_SECONDS = 15.0
"""Seconds in which a child must end after SIGTERM, or after it has closed its pipe without writing
to it."""
_BYTES_MAX = 65536
"""Maximum bytes of the line that a child writes to its pipe."""


class ReadyPipe:
    """A pipe to a child process. The child writes one line to ``child_end`` once it serves. If the
    pipe ends without a line, the child has failed to start."""

    def __init__(self) -> None:
        self._read_end, self.child_end = os.pipe()

    def started(self) -> None:
        """Close the parent's copy of the pipe's write end, once the child runs or could not be
        started."""
        os.close(self.child_end)

    @property
    def has_report(self) -> bool:
        """Whether the child has written to the pipe or has ended. ``read_line`` then returns at
        once."""
        return bool(select.select([self._read_end], [], [], 0)[0])

    def read_line(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Wait for the child's line and return it. Return no bytes if the child ends first, or at
        ``deadline`` (monotonic seconds). Close the pipe in any case."""
        received = b""
        try:
            while b"\n" not in received and len(received) < _BYTES_MAX:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._read_end], [], [], left)[0]:
                    return b""
                part = os.read(self._read_end, 4096)
                if not part:
                    child.wait(STOP_TIMEOUT_SECONDS)
                    return b""
                received += part
        finally:
            self.close()
        return received

    def close(self) -> None:
        """Close the pipe. A second call does nothing."""
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1


def reported_error(line: str, process: str) -> LogbusError | None:
    """Return the LogbusError in a line of a child's log (``[LOGBUS_…]``), or None if there is none.
    The error's message begins with ``process``, the child's name."""
    for row in TABLE:
        head = f"[LOGBUS_{row.name}] "
        if head in line:
            return row(f"{process}: {line.partition(head)[2]}")
    return None
