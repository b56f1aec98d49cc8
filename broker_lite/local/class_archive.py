"""An archive of a JVM's loaded classes (class data sharing, JEP 350), which halves later starts.

A JVM started with the right flag writes the archive at an orderly exit. A later JVM maps it, or
ignores an archive of another JVM. A truncated archive would crash the JVM, so the file name
contains the file's checksum, and a file that does not match is not used. The archive is stored
beside the server's data: anyone who can modify it can also modify the data. One thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

_IGNORE = "-XX:+IgnoreUnrecognizedVMOptions"
"""Makes a JVM before Java 13 ignore the flags of archives, which it does not know."""


class ClassArchive:
    """The class archive of one ``java`` executable and class path, stored in ``directory``."""

    def __init__(self, directory: Path, java: str, class_path: str) -> None:
        real = os.path.realpath(java)
        made_ns = os.stat(real).st_mtime_ns
        key = zlib.crc32(f"{real}\n{made_ns}\n{class_path}".encode("utf-8", "surrogateescape"))
        self._directory = directory
        self._prefix = f"classes-{key:08x}-"
        self._new = directory / "classes.jsa.new"

    def flags(self, *, may_make: bool) -> tuple[str, ...]:
        """Return the JVM flags that use the archive.

        Without an archive, and with ``may_make``, return the flags that write one: 11 MB, 0.7 s at
        the JVM's exit.
        """
        if os.pathsep in str(self._directory):
            return ()  # The JVM would read the path as two archives.
        for path in self._directory.glob(f"{self._prefix}*.jsa"):
            if path.name == self._name(path):
                return (_IGNORE, f"-XX:SharedArchiveFile={path}")
        if may_make:
            return (_IGNORE, f"-XX:ArchiveClassesAtExit={self._new}")
        return ()

    def _name(self, path: Path) -> str:
        return f"{self._prefix}{zlib.crc32(path.read_bytes()):08x}.jsa"

    def take(self) -> None:
        """Replace older archives by the one that the JVM has written. Call it after an orderly exit
        of the JVM, when the file is complete."""
        with contextlib.suppress(OSError):
            if self._new.is_file():
                for old in self._directory.glob("classes-*.jsa"):
                    old.unlink()
                self._new.replace(self._directory / self._name(self._new))
