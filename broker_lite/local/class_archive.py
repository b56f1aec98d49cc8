"""An archive of a JVM's loaded classes (class data sharing, JEP 350), which halves the time of
later starts.

A JVM that is started with the right flag writes the archive at an orderly exit. A later JVM maps
the archive into memory, instead of loading each class.

A JVM ignores an archive of another Java version. A truncated archive would crash the JVM, so the
file name contains a checksum, which this module compares before use.

The JVM executes the code in the archive, so only this user may be able to write to the folder.
Several processes may share the folder. Within a process, one thread at a time may use this
module."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
import zlib
from pathlib import Path

_IGNORE = "-XX:+IgnoreUnrecognizedVMOptions"
"""The flag that makes a JVM before Java 13 ignore the archive flags, which it does not support."""

_KEPT = 3
"""Number of archives of a JVM's classes to keep, one for each combination of Java and PySpark.
Older archives are deleted."""


class ClassArchive:
    """The class data sharing (CDS) archive of one ``java`` executable and class path, stored in
    ``directory``."""

    def __init__(self, directory: Path, java: str, class_path: str) -> None:
        real = os.path.realpath(java)
        made_ns = os.stat(real).st_mtime_ns
        key = zlib.crc32(f"{real}\n{made_ns}\n{class_path}".encode("utf-8", "surrogateescape"))
        self._directory = directory
        self._prefix = f"classes-{key:08x}-"
        self._new = directory / f"{self._prefix}{uuid.uuid4().hex}.new"

    def flags(self) -> tuple[str, ...]:
        """Return the JVM flags that use the archive. Without an archive, return the flags that
        write one (11 MB, in 0.7 s) at the JVM's exit.

        Return no flags if the folder cannot be created or another user may write to it."""
        if os.pathsep in str(self._directory):
            return ()  # Use no archive: the JVM would split its path at a path separator.
        if not self._is_own():
            return ()
        for path in self._directory.glob(f"{self._prefix}*.jsa"):
            if path.name == self._name(path):
                return (_IGNORE, f"-XX:SharedArchiveFile={path}")
        return (_IGNORE, f"-XX:ArchiveClassesAtExit={self._new}")

    def _is_own(self) -> bool:
        """Create the folder if it is missing. Return whether only this user can write to it."""
        if not self._directory.is_absolute():
            # There is no home directory, in which the folder would be. Use no archive.
            return False
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._directory.stat()
        except OSError:
            return False
        others = stat.S_IWGRP | stat.S_IWOTH
        return status.st_uid == os.geteuid() and not status.st_mode & others

    def _name(self, path: Path) -> str:
        return f"{self._prefix}{zlib.crc32(path.read_bytes()):08x}.jsa"

    def take(self) -> None:
        """Rename the new archive, which the JVM has written, to its final name, and remove all
        archives but the newest three. After an unclean exit of the JVM do not call this, because
        the archive may be truncated."""
        with contextlib.suppress(OSError):
            self._new.replace(self._directory / self._name(self._new))
            archives = sorted(self._directory.glob("classes-*.jsa"), key=os.path.getmtime)
            for old in archives[:-_KEPT]:
                old.unlink()
