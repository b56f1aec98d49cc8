"""A real ZooKeeper server from the jars that PySpark ships, on this machine only.

One JVM with a trimmed class path and small heap: ready in under a second, 60–85 MB. One that is
started again leaves an archive of its classes for later ones. It listens on 127.0.0.1, syncs its
log before it answers, and is asked ``srvr`` and ``conf`` until it serves this very directory, so a
stranger on the same port is never taken for it. Used by ``LocalCluster`` and tests; any one thread
at a time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from broker_lite.errors import (
    CoordinationUnavailableError,
    MissingDependencyError,
    PortInUseError,
)
from broker_lite.local.class_archive import ClassArchive
from broker_lite.local.guard import Guard

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 20.0
STOP_TIMEOUT_SECONDS = 6.0
"""Then the JVM is killed. Nothing is lost: ZooKeeper syncs its log before it answers."""
PORT_ATTEMPTS = 4

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
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 0.5
"""A four-letter word sent while ZooKeeper boots may never be answered, so each has a time-out."""


def find_java() -> str:
    """The ``java`` of JAVA_HOME, else of PATH. Raises MissingDependencyError with the cure."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        return str(Path(home, "bin", "java"))
    found = shutil.which("java")
    if found is None:
        raise MissingDependencyError(
            "no java in JAVA_HOME or PATH; install Java 17 or later (Debian: apt-get install "
            "openjdk-17-jre-headless), or name a running ZooKeeper with --zookeeper HOST:PORT"
        )
    return found


def find_jars(folder: str | Path | None = None) -> Path:
    """The folder that holds ZooKeeper's jars: the one given, else PySpark's, else SPARK_HOME's.

    Raises MissingDependencyError with the cure.
    """
    tried: list[Path] = []
    if folder is not None:
        tried.append(Path(folder))
    else:
        # find_spec of a top-level name reads no module: importing pyspark would cost 0.2 s.
        spec = importlib.util.find_spec("pyspark")
        places = spec.submodule_search_locations if spec is not None else None
        tried += [Path(place, "jars") for place in places or ()]
        if home := os.environ.get("SPARK_HOME"):
            tried.append(Path(home, "jars"))
    for place in tried:
        if all(any(place.glob(pattern)) for pattern in _JARS):
            return place
    looked = ", ".join(map(str, tried)) or "no PySpark and no SPARK_HOME"
    raise MissingDependencyError(
        f"ZooKeeper's jars were not found ({looked}); pip install 'pyspark-logbus[spark]', set "
        "SPARK_HOME, give --zookeeper-jars DIR, or name a running ZooKeeper with --zookeeper"
    )


def free_port(host: str = HOST) -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def four_letters(host: str, port: int, word: str, timeout: float = _ANSWER_SECONDS) -> str:
    """ZooKeeper's answer to a four-letter word. Raises OSError where none comes in time."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(word.encode("ascii"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


class EmbeddedZooKeeper:
    """One standalone ZooKeeper server that keeps its data in ``directory``.

    ``port`` 0 takes a free one, and keeps it over ``stop`` and ``start``. ``jars`` names the folder
    of ZooKeeper's jars where PySpark is not installed. Without a ``guard`` it brings its own.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        port: int = 0,
        jars: str | Path | None = None,
        guard: Guard | None = None,
        log_level: str = "WARN",
    ) -> None:
        self.directory = Path(directory)
        self.port = port
        self._any_port = port == 0
        self._jars = jars
        self._level = f"-Dorg.apache.logging.log4j.level={log_level}"
        self._guard = guard
        self._owns_guard = guard is None
        self._process: subprocess.Popen[bytes] | None = None
        self._classes: ClassArchive | None = None

    @property
    def address(self) -> str:
        """``host:port``, for clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The JVM's process, or None while stopped."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the JVM lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, meanwhile: Callable[[], None] | None = None) -> str:
        """Start and wait until it serves; gives ``host:port``. ``meanwhile`` is called once, while
        the JVM starts.

        Raises MissingDependencyError, PortInUseError, or CoordinationUnavailableError naming the
        log when the JVM ends or does not serve within 20 s.
        """
        if self.is_running:
            return self.address
        java, jars = find_java(), find_jars(self._jars)
        class_path = os.pathsep.join(str(jar) for name in _JARS for jar in sorted(jars.glob(name)))
        # Who is started again will be again; most clusters of tests never are.
        was_here = (self.directory / "data").is_dir()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._classes = ClassArchive(self.directory, java, class_path)
        flags = (*_JVM_FLAGS, *self._classes.flags(may_make=was_here), self._level)
        if self._guard is None:
            self._guard = Guard()
        for _ in range(PORT_ATTEMPTS):
            if self._any_port and not self.port:
                self.port = free_port()
            config = self.write_config()
            command = [java, *flags, "-cp", class_path, _MAIN, str(config)]
            self._process = self._guard.spawn(command, self.log)
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            if self._serves():
                self._any_port = False
                return self.address
            taken = self.port
            self.kill()
            if not self._any_port:
                break
            self.port = 0
        if not self._any_port and _listens(taken):
            raise PortInUseError(f"port {taken} is taken; give ZooKeeper another")
        raise CoordinationUnavailableError(
            f"ZooKeeper ended while it started: {last_line(self.log)}; see {self.log}"
        )

    def stop(self) -> None:
        """End the server; its data stay. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            else:
                if self._classes is not None:
                    self._classes.take()
            self._process = None
        if self._owns_guard and self._guard is not None:
            self._guard.close()
            self._guard = None

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def write_config(self) -> Path:
        """Write the server's settings, those of conf/zookeeper.cfg, into its directory."""
        lines = {
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            # Sessions may be as short as two ticks: a killed broker is noticed in a second.
            "tickTime": 500,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "forceSync": "yes",
            # The log file is preallocated; 64 MB of zeroes is much for a few hundred znodes.
            "preAllocSize": 4096,
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,conf,ruok,mntr",
        }
        path = self.directory / "zookeeper.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        return path

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """What the JVM printed: warnings and worse."""
        return self.directory / "zookeeper.log"

    def _serves(self) -> bool:
        """Wait until this very server answers. False if it ended; raises if it takes too long."""
        assert self._process is not None
        data = str((self.directory / "data").resolve())
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            try:
                if "Mode:" in four_letters(HOST, self.port, "srvr"):
                    return f"dataDir={data}" in four_letters(HOST, self.port, "conf")
            except OSError:
                pass
            time.sleep(_POLL_SECONDS)
        self.kill()
        raise CoordinationUnavailableError(
            f"ZooKeeper did not serve within {START_TIMEOUT_SECONDS:.0f} s; see {self.log}"
        )


def last_line(log: Path) -> str:
    """The last line that says something in a log file, for an error message."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "it printed nothing"
    said = [line.strip() for line in lines if line.strip() and not line.startswith("\tat ")]
    return said[-1] if said else "it printed nothing"


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
