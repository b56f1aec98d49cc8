"""Run a ZooKeeper server for a cluster on one machine, from the jars that PySpark contains.

The server is one JVM. It answers clients in under a second and takes 60 to 85 MB of memory, more
after large writes. The first JVM to stop writes an archive of its classes into the user's cache
folder, which speeds up later starts (``class_archive``). The server listens on 127.0.0.1 and syncs
its log before it answers.

``start`` sends ZooKeeper's four-letter words ``srvr`` and ``conf`` until the answer names this
server's data directory, because another ZooKeeper could listen on the port. One thread at a time
may use this module."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from broker_lite.client.discovery import cache_directory
from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
    MissingDependencyError,
    PortInUseError,
)
from broker_lite.local.child_process import ChildProcess
from broker_lite.local.class_archive import ClassArchive
from broker_lite.local.guard import Guard

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 60.0
"""Maximum seconds from the start of the JVM until it serves."""
STOP_TIMEOUT_SECONDS = 6.0
"""Seconds after which a stopping JVM is killed. The kill loses no data, because ZooKeeper syncs its
log before it answers."""
PORT_ATTEMPTS = 4
"""Maximum number of free ports to try, because another process may take a port before the server
listens."""

_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
)
_JVM_FLAGS = (
    # ZooKeeper keeps its last 500 writes in memory, and a write has at most 1 MB. The heap starts
    # small and grows only as far as the writes need it.
    "-Xms32m",
    "-Xmx1g",
    # After an OutOfMemoryError the server would stay up and answer nothing. End it; `logbus up`
    # starts it again.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LOCALE = {"LC_ALL": "C.UTF-8"}
"""Environment of the JVM. In the locale C, Java cannot open a file whose path has a letter beyond
ASCII."""
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 0.5
"""Timeout in seconds for an answer, because a starting ZooKeeper may never answer a four-letter
word."""


def find_java() -> str:
    """Return the path of ``java`` in JAVA_HOME, else in PATH. Raises MissingDependencyError."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        return str(Path(home, "bin", "java"))
    java = shutil.which("java")
    if java is None:
        raise MissingDependencyError(
            "no java in JAVA_HOME or PATH; install Java 17 or later (Debian: apt-get install "
            "openjdk-17-jre-headless)"
        )
    return java


def find_jars(folder: str | Path | None = None) -> Path:
    """Return the folder of ZooKeeper's jars: ``folder`` if it is given, else the one in PySpark,
    else the one in SPARK_HOME. Raises MissingDependencyError if no folder has all jars."""
    tried: list[Path] = []
    if folder is not None:
        tried.append(Path(folder))
    else:
        # find_spec finds the package without importing it, which would take 0.2 s.
        spec = importlib.util.find_spec("pyspark")
        locations = spec.submodule_search_locations if spec is not None else None
        tried += [Path(location, "jars") for location in locations or ()]
        if home := os.environ.get("SPARK_HOME"):
            tried.append(Path(home, "jars"))
    for jars in tried:
        if all(any(jars.glob(pattern)) for pattern in _JARS):
            return jars
    looked = ", ".join(map(str, tried)) or "no PySpark and no SPARK_HOME"
    raise MissingDependencyError(
        f"ZooKeeper's jars were not found ({looked}); pip install 'pyspark-logbus[spark]', set "
        "SPARK_HOME, or name their folder (logbus up --zookeeper-jars DIR)"
    )


def free_port() -> int:
    """Return a port that is free now. The port is not reserved."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def four_letters(host: str, port: int, word: str) -> str:
    """Return ZooKeeper's answer to a four-letter word. Raises OSError after a timeout."""
    with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
        connection.sendall(word.encode("ascii"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


class EmbeddedZooKeeper(ChildProcess):
    """A standalone ZooKeeper server with its data in ``directory``.

    With ``port`` 0 the server picks a free port at its first start, and uses the same port at later
    starts. ``jars`` is the folder of ZooKeeper's jars if PySpark is not installed. ``guard`` is the
    process that ends the JVM if this process is killed; with None, the server starts its own."""

    def __init__(
        self,
        directory: str | Path,
        *,
        port: int = 0,
        jars: str | Path | None = None,
        guard: Guard | None = None,
        log_level: str = "WARN",
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.port = port
        self._any_port = port == 0
        self._jars = jars
        self._level = f"-Dorg.apache.logging.log4j.level={log_level}"
        self._guard = guard
        self._owns_guard = guard is None
        self._classes: ClassArchive | None = None
        self._deadline = 0.0
        self.is_starting = False
        """Whether the server was started with ``start(wait=False)``, and ``has_started`` has not
        returned True since."""

    @property
    def address(self) -> str:
        """``host:port`` of the client port."""
        return f"{HOST}:{self.port}"

    def start(self, *, wait: bool = True, meanwhile: Callable[[], None] | None = None) -> str:
        """Start the server, wait until it serves, and return ``host:port``.

        With ``wait=False`` return at once. The server then needs a fixed port, and the caller calls
        ``has_started`` until it returns True. ``start`` calls ``meanwhile`` once while the JVM
        starts. Raises MissingDependencyError, PortInUseError, and, if the JVM ends or does not
        serve within 60 s, CoordinationUnavailableError with the log's path."""
        if self.is_running:
            return self.address
        java, jars = find_java(), find_jars(self._jars)
        class_path = os.pathsep.join(str(jar) for name in _JARS for jar in sorted(jars.glob(name)))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._classes = ClassArchive(cache_directory() / "classes", java, class_path)
        flags = (*_JVM_FLAGS, *self._classes.flags(), self._level)
        if self._guard is None:
            self._guard = Guard()
        for _ in range(PORT_ATTEMPTS):
            if self._any_port and not self.port:
                self.port = free_port()
            config = self.write_config()
            command = [java, *flags, "-cp", class_path, _MAIN, str(config)]
            self._process = self._guard.spawn(command, self.log, environment=os.environ | _LOCALE)
            self._deadline = time.monotonic() + START_TIMEOUT_SECONDS
            if not wait:
                self.is_starting = True
                return self.address
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            if self._serves():
                self._any_port = False
                return self.address
            self.kill()
            if not self._any_port:
                break
            self.port = 0
        raise self._start_error()

    def has_started(self) -> bool:
        """Return whether the server answers clients, after ``start(wait=False)``. Raises the errors
        of ``start``."""
        serves = self._check_serving()
        if serves is False:
            self.kill()
            raise self._start_error()
        self.is_starting = not serves
        return bool(serves)

    def _start_error(self) -> LogbusError:
        if not self._any_port and _listens(self.port):
            return PortInUseError(f"port {self.port} is taken; give ZooKeeper another port")
        return CoordinationUnavailableError(
            f"ZooKeeper ended while it started: {last_line(self.log)}; see {self.log}"
        )

    def stop(self) -> None:
        """Stop the server. Its data are not removed. A second call does nothing."""
        if self.is_starting:
            # A JVM that is still starting would take seconds to end by itself: kill it.
            self.kill()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            else:
                if self._classes is not None:
                    self._classes.take()
            self._process = None
        if self._owns_guard and self._guard is not None:
            self._guard.close()
            self._guard = None

    def kill(self) -> None:
        self.is_starting = False
        super().kill()

    def write_config(self) -> Path:
        """Write the server's configuration file, with the settings of conf/zookeeper.cfg."""
        lines = {
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            # A session timeout is at least two ticks, so a session can expire 1 s after its broker
            # was killed.
            "tickTime": 500,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "forceSync": "yes",
            # preAllocSize is in KB. ZooKeeper's default would preallocate 64 MB for a few hundred
            # znodes.
            "preAllocSize": 4096,
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,conf,ruok,mntr",
        }
        path = self.directory / "zookeeper.cfg"
        # Java reads the file as Latin-1, with escapes of letters as in JSON.
        rows = (f"{key}={json.dumps(str(value))[1:-1]}\n" for key, value in lines.items())
        path.write_text("".join(rows), "ascii")
        return path

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """The file of the JVM's output, which has warnings and errors."""
        return self.directory / "zookeeper.log"

    def _serves(self) -> bool:
        while (serves := self._check_serving()) is None:
            time.sleep(_POLL_SECONDS)
        return serves

    def _check_serving(self) -> bool | None:
        """Return True if this server answers, None if nothing answers yet, False in two cases: the
        JVM has ended, or another server answers.

        After the timeout, kill the JVM and raise CoordinationUnavailableError."""
        assert self._process is not None
        if self._process.poll() is not None:
            return False
        try:
            if "Mode:" in four_letters(HOST, self.port, "srvr"):
                data = str((self.directory / "data").resolve())
                return f"dataDir={data}" in four_letters(HOST, self.port, "conf")
        except OSError:
            pass
        if time.monotonic() < self._deadline:
            return None
        self.kill()
        raise CoordinationUnavailableError(
            f"ZooKeeper did not serve within {START_TIMEOUT_SECONDS:.0f} s; see {self.log}"
        )


def last_line(log: Path) -> str:
    """Return the last line of a child's log that is neither empty nor part of a Java stack
    trace."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "it printed nothing"
    shown = [line.strip() for line in lines if line.strip() and not line.startswith("\tat ")]
    return shown[-1] if shown else "it printed nothing"


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
