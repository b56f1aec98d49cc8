"""Download the other systems once, with their package managers, into a cache.

The cache is ``$XDG_CACHE_HOME/logbus-bench``, by default ``~/.cache/logbus-bench``. It has a folder
for each set of jars, and is safe to delete. A failed download raises ``Cannot``: the benchmark that
needs the jars does not run, and its result holds the reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FETCH_SECONDS = 300


class Cannot(Exception):
    """Raised if a benchmark cannot run on this machine. The message names the cause and the
    remedy."""


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "logbus-bench"


def java() -> str:
    """Return the path of the ``java`` that runs the other systems. Raises Cannot without Java."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise Cannot("Java is missing: apt-get install openjdk-17-jre-headless")
    return found


def jars(name: str, pom: Path) -> Path:
    """Return the folder with all artifacts and dependencies of a pom; download missing ones."""
    text = pom.read_text("utf-8")
    command = ["-f", str(pom), "dependency:copy-dependencies"]
    return _filled(name, text, [command])


def artifacts(name: str, coordinates: Sequence[str]) -> Path:
    """Return a folder with these Maven artifacts (``group:artifact:version``), without their
    dependencies."""
    commands = [["dependency:copy", f"-Dartifact={each}"] for each in coordinates]
    return _filled(name, "\n".join(coordinates), commands)


def _filled(name: str, content: str, commands: Sequence[Sequence[str]]) -> Path:
    mark = hashlib.sha256(content.encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{mark}"
    if folder.is_dir():
        return folder
    program = shutil.which("mvn")
    if program is None:
        raise Cannot(f"{name} needs Maven, which is missing: apt-get install maven")
    begun = folder.with_name(f"{folder.name}.{os.getpid()}")
    begun.mkdir(parents=True)
    try:
        for command in commands:
            _run(name, [program, "-q", "-B", *command, f"-DoutputDirectory={begun}"], begun)
        try:
            begun.rename(folder)
        except OSError:
            # The folder exists if another process has downloaded the same files meanwhile. Use that
            # folder.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return folder


def _run(name: str, command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Cannot(f"Maven did not download {name} within {FETCH_SECONDS} s") from None
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip() or "it said nothing").splitlines()
        raise Cannot(f"Maven did not download {name} (is there a network?): {said[0][:200]}")
