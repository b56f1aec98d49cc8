"""An archive of the classes that a JVM loads, which halves what its next starts cost.

The JVM that is asked to leaves it when it ends in good order (class data sharing, JEP 350); a later
one maps it, and goes on without where it is another JVM's. One that is cut off would end a JVM, so
the name has the checksum and what is not whole is never used. It stays beside the data of the
server that it is of: whoever could change it could change those. Any one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

_IGNORE = "-XX:+IgnoreUnrecognizedVMOptions"
"""A JVM that knows no archives (before Java 13) does without."""


class ClassArchive:
    """Of one ``java`` and class path, in ``directory``."""

    def __init__(self, directory: Path, java: str, class_path: str) -> None:
        real = os.path.realpath(java)
        made_ns = os.stat(real).st_mtime_ns
        key = zlib.crc32(f"{real}\n{made_ns}\n{class_path}".encode("utf-8", "surrogateescape"))
        self._directory = directory
        self._prefix = f"classes-{key:08x}-"
        self._new = directory / "classes.jsa.new"

    def flags(self, *, may_make: bool) -> tuple[str, ...]:
        """What the JVM is started with: to use the archive, or, where there is none and
        ``may_make``, to leave one (11 MB, 0.7 s of its end)."""
        if os.pathsep in str(self._directory):
            return ()  # It would stand between two archives.
        for path in self._directory.glob(f"{self._prefix}*.jsa"):
            if path.name == self._name(path):
                return (_IGNORE, f"-XX:SharedArchiveFile={path}")
        if may_make:
            return (_IGNORE, f"-XX:ArchiveClassesAtExit={self._new}")
        return ()

    def _name(self, path: Path) -> str:
        return f"{self._prefix}{zlib.crc32(path.read_bytes()):08x}.jsa"

    def take(self) -> None:
        """The JVM has ended by itself: what it left is whole, and takes the place of all others."""
        with contextlib.suppress(OSError):
            if self._new.is_file():
                for old in self._directory.glob("classes-*.jsa"):
                    old.unlink()
                self._new.replace(self._directory / self._name(self._new))
