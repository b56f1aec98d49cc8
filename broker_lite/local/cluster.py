"""A cluster on this machine: ZooKeeper and brokers as child processes.

A guard process ends all children when this process ends, even after SIGKILL. A lock file keeps two
clusters from using one directory. ``cluster.json`` in the directory holds the addresses and process
ids, for other commands. Call all methods from one thread at a time.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from broker_lite.config import BrokerConfig, TopicConfig, keys, parse
from broker_lite.errors import (
    DirectoryLockedError,
    InvalidConfigError,
    MissingDependencyError,
    PortInUseError,
)
from broker_lite.local.broker import LocalBroker
from broker_lite.local.console import LocalConsole
from broker_lite.local.guard import Guard
from broker_lite.local.process import start_mark
from broker_lite.local.ready_pipe import STOP_TIMEOUT_SECONDS
from broker_lite.local.zookeeper import PORT_ATTEMPTS, EmbeddedZooKeeper
from broker_lite.net.listening import why_not_listening

if TYPE_CHECKING:
    from broker_lite.local.secure import ClusterSecurity

CHROOT = "/logbus"
SECURITY = "security"
"""Name of the folder with certificates and secrets in a secured cluster's directory
(``local.secure``)."""
BROKERS_MAX = 64
"""Maximum brokers of a local cluster. A larger number is probably a typing error."""

CONSOLE_PORT = 8088
_PORTS_TRIED = 1000
"""Maximum ports that a search for free ports tries."""
_OURS = ("broker.id", "port", "log.dir", "zookeeper.connect")
"""Broker settings that LocalCluster sets itself. Its caller must not give them."""


class LocalCluster:
    """A cluster of one ZooKeeper process and ``brokers`` broker processes.

    - ``directory``: the folder of the data. None means a temporary folder, which is removed by
      ``stop`` or at the end of this process.
    - ``config``: settings of ``conf/broker.conf`` for every broker, as text.
    - ``zookeeper``: ``host:port,…/chroot`` of a running ensemble. None starts an embedded server.
    - ``port``: the brokers listen on the first free ports from this port upward; 0 means any free
      ports. If another process takes a port before the broker listens, the broker uses the next
      free port.
    - ``exact_port``: broker 0 listens on ``port`` or the start fails.
    - ``secure``: clients log in over TLS (``local.secure``) with the settings in the file
      ``client_config``. A directory that was secured once stays secured.

    Use it as a context manager, or call ``start`` and ``stop``. Starting raises
    MissingDependencyError (no Java or ZooKeeper jars), DirectoryLockedError (the directory is in
    use), PortInUseError (``exact_port`` is set and the port is taken), InvalidConfigError (a wrong
    setting, or a folder that cannot be written), or a broker's error.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        directory: str | Path | None = None,
        config: Mapping[str, str] | None = None,
        zookeeper: str | None = None,
        zookeeper_jars: str | Path | None = None,
        zookeeper_log_level: str = "WARN",
        port: int = 0,
        exact_port: bool = False,
        secure: bool = False,
    ) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise InvalidConfigError(f"brokers={brokers}: give 1 to {BROKERS_MAX}")
        for key in _OURS:
            if config and key in config:
                raise InvalidConfigError(f"{key} is set by LocalCluster itself; leave it out")
        self.brokers: list[LocalBroker] = []
        self.zookeeper_server: EmbeddedZooKeeper | None = None
        self._count = brokers
        self._settings = {key: str(value) for key, value in (config or {}).items()}
        _check_settings(self._settings)
        self._external = zookeeper
        self._jars = zookeeper_jars
        self._zookeeper_log_level = zookeeper_log_level
        self._first_port = port
        self._exact_port = exact_port and port != 0
        self._is_temporary = directory is None
        self._directory = Path(directory).absolute() if directory is not None else None
        self._secure = secure
        self._security: ClusterSecurity | None = None
        self._guard: Guard | None = None
        self._lock: IO[bytes] | None = None
        self.console: LocalConsole | None = None
        """The web console; None before ``start_console``."""

    @property
    def directory(self) -> Path:
        """The folder of all data and logs. Raises RuntimeError before ``start`` if the folder is
        temporary."""
        if self._directory is None:
            raise RuntimeError("this cluster has no directory before start(); call start() first")
        return self._directory

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of all brokers, including stopped ones."""
        return ",".join(broker.endpoint for broker in self.brokers)

    @property
    def zookeeper(self) -> str:
        """``host:port,…/chroot`` of ZooKeeper."""
        if self.zookeeper_server is not None:
            return self.zookeeper_server.address + CHROOT
        return self._external or ""

    @property
    def client_config(self) -> str | None:
        """The file with the login of user admin, or None if the cluster is not secured."""
        return None if self._security is None else str(self._security.client_config)

    def start(self) -> LocalCluster:
        """Start all processes and wait until every broker is registered and listening."""
        if sys.platform == "win32":
            raise MissingDependencyError("logbus runs on Linux and macOS; on Windows use WSL")
        if self._guard is not None:
            return self
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="logbus-"))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise self._folder_error(error) from None
        self._guard = Guard(self._directory if self._is_temporary else None)
        try:
            if self._secure or (self._directory / SECURITY).is_dir():
                self._security = self._open_security()
            self._start_zookeeper()
            if self._security is not None:
                closes_root = self._external is None
                self._security.close_zookeeper(
                    self.zookeeper, self._settings, closes_root=closes_root
                )
            self._begin_brokers()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                # Keep a temporary directory, because the error names log files in it.
                self._is_temporary = False
            self.stop()
            if isinstance(error, OSError) and error.filename is not None:
                raise self._folder_error(error) from None
            raise
        self.write_facts()
        return self

    def start_console(self) -> str:
        """Start the web console on the first free port from CONSOLE_PORT on, and return its
        address. Raises MissingDependencyError without the extra [console]."""
        assert self._guard is not None, "start the cluster first"
        if self.console is None:
            log = self.directory / "console.log"
            console = LocalConsole(self._guard, log, self.bootstrap_servers, self.client_config)
            for left in reversed(range(PORT_ATTEMPTS)):
                (port,) = first_free_ports("127.0.0.1", CONSOLE_PORT, 1)
                console.start(port)
                try:
                    console.wait_ready()
                    break
                except PortInUseError:
                    # Another process has taken the port since this one found it free. Try the next
                    # port.
                    if not left:
                        raise
            self.console = console
            self.write_facts()
        return self.console.url

    def _open_security(self) -> ClusterSecurity:
        try:
            from broker_lite.local.secure import CLIENTS_LISTENER, ClusterSecurity
        except ImportError as error:
            raise MissingDependencyError(
                f"a secured cluster needs the package {error.name}: "
                "pip install 'pyspark-logbus[broker]'"
            ) from None
        if "listeners" in self._settings:
            raise InvalidConfigError(
                "listeners is set, but a secured local cluster chooses its listeners; leave it out"
            )
        if "metrics.host" in self._settings:
            self._settings.setdefault("metrics.listener.name", CLIENTS_LISTENER)
        return ClusterSecurity(self.directory / SECURITY)

    def renew_certificates(self) -> None:
        """Create the missing certificates of a secured cluster, and renew those older than 30 days.
        The brokers load the new files without a restart."""
        if self._security is not None:
            hosts = [self._settings.get(key, "") for key in ("host", "advertised.host")]
            self._security.make(self._count, [host for host in hosts if host])

    def stop(self) -> None:
        """Stop the brokers, then ZooKeeper, and remove the cluster's directory if it is temporary.
        A second call does nothing.

        Brokers that still run after 15 s are killed, and ZooKeeper after 6 s more."""
        if self.console is not None:
            self.console.request_stop()
        for broker in self.brokers:
            broker.resume()
            broker.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for broker in self.brokers:
            broker.wait_stopped(max(0.0, deadline - time.monotonic()))
        if self.console is not None:
            self.console.wait_stopped()
            self.console = None
        if self.zookeeper_server is not None:
            self.zookeeper_server.stop()
        self._forget()

    def kill(self) -> None:
        """End all processes of the cluster by SIGKILL, without a clean shutdown. A second call does
        nothing."""
        if self.console is not None:
            self.console.stop()
            self.console = None
        for broker in self.brokers:
            broker.kill()
        if self.zookeeper_server is not None:
            self.zookeeper_server.kill()
        self._forget()

    def _forget(self) -> None:
        """Close the guard process, release the lock, and remove the cluster's directory if it is
        temporary. The cluster's processes must have ended."""
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / "cluster.json").unlink()
            self._lock.close()
            self._lock = None
            if self._is_temporary:
                shutil.rmtree(self.directory, ignore_errors=True)
                self._directory = None
                self.brokers, self.zookeeper_server = [], None

    def __enter__(self) -> LocalCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def facts(self) -> dict[str, Any]:
        """Return the content of ``cluster.json``: addresses, folder and processes.

        ``processes`` maps each process id to the process's start time (``local.process``), because
        the system may give the id to another process later."""
        pids = [os.getpid(), *(broker.pid for broker in self.brokers)]
        if self.zookeeper_server is not None:
            pids.append(self.zookeeper_server.pid)
        shown: dict[str, Any] = {}
        if self.console is not None:
            pids.append(self.console.pid)
            shown["console"] = self.console.url
        if self._settings.get("metrics.listener.name"):
            shown["metrics_tls"] = True
        if "metrics.host" in self._settings:
            shown["metrics_host"] = self._settings["metrics.host"]
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "zookeeper": self.zookeeper,
            "brokers": [
                {
                    "id": broker.id,
                    "port": broker.port,
                    "pid": broker.pid,
                    "metrics_port": broker.metrics_port,
                }
                for broker in self.brokers
            ],
            "directory": str(self.directory),
            "client_config": self.client_config,
            **shown,
            "pid": os.getpid(),
            "zookeeper_pid": self.zookeeper_server.pid if self.zookeeper_server else None,
            "processes": {str(pid): start_mark(pid) for pid in pids if pid is not None},
        }

    def write_facts(self) -> None:
        """Write ``cluster.json``. Call it again after the restart of a broker, which has a new
        process id."""
        if self._security is not None:
            self._security.write_client_configs(self.bootstrap_servers)
        write_json(self.directory / "cluster.json", self.facts())

    def _folder_error(self, error: OSError) -> InvalidConfigError:
        return InvalidConfigError(
            f"cannot store data in {self._directory}: {error.filename}: "
            f"{error.strerror or error}; give a folder that this user may write "
            "(logbus up --dir DIR)"
        )

    def _take_lock(self) -> None:
        lock = (self.directory / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise DirectoryLockedError(
                f"a cluster already runs in {self.directory}; stop it with "
                f"logbus down --dir {shlex.quote(str(self.directory))}, or take another --dir"
            ) from None
        self._lock = lock

    def _start_zookeeper(self) -> None:
        """Start ZooKeeper, and prepare the brokers' processes while its JVM starts."""
        if self._external is not None:
            self._prepare_brokers()
            return
        self.zookeeper_server = EmbeddedZooKeeper(
            self.directory / "zookeeper",
            jars=self._jars,
            guard=self._guard,
            log_level=self._zookeeper_log_level,
        )
        self.zookeeper_server.start(meanwhile=self._prepare_brokers)

    def _prepare_brokers(self) -> None:
        assert self._guard is not None
        host = self._settings.get("host", "127.0.0.1")
        if self._exact_port:
            require_free_port(host, self._first_port)
        ports = first_free_ports(host, self._first_port, self._count)
        metrics_ports = self._metrics_ports()
        for number, port in enumerate(ports):
            settings = self._settings | {"port": str(port)}
            if metrics_ports:
                settings["metrics.port"] = str(metrics_ports[number])
            directory = self.directory / f"broker-{number}"
            broker = LocalBroker(self._guard, directory, number, settings, security=self._security)
            self.brokers.append(broker)
            broker.prepare()
        self.renew_certificates()

    def _metrics_ports(self) -> list[int]:
        """Return a port of /metrics for each broker, from ``metrics.port`` upward; empty if metrics
        are off."""
        config = parse(BrokerConfig, self._settings)
        if config.metrics_port < 0:
            return []
        return first_free_ports(config.metrics_host, config.metrics_port, self._count)

    def _begin_brokers(self) -> None:
        for broker in self.brokers:
            broker.settings["zookeeper.connect"] = self.zookeeper
            broker.begin()
        for broker in self.brokers:
            self._wait_ready(broker)

    def _wait_ready(self, broker: LocalBroker) -> None:
        """Wait until the broker serves clients. If another process has taken its port, start the
        broker again on the next free port, unless the user has fixed the port."""
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                return broker.wait_ready()
            except PortInUseError:
                # The user chose the ports in ``listeners``, so do not try others.
                if "listeners" in self._settings:
                    raise
                self._move_ports(broker)
            broker.start(wait=False)
        broker.wait_ready()

    def _move_ports(self, broker: LocalBroker) -> None:
        """Choose other free ports for a broker whose port was taken during its start. Raises
        PortInUseError if ``exact_port`` fixes the port."""
        others = [each for each in self.brokers if each is not broker]
        if self._exact_port and broker is self.brokers[0]:
            require_free_port(broker.host, broker.port)
        used = [each.port for each in others]
        (broker.port,) = first_free_ports(broker.host, broker.port, 1, but=used)
        config = parse(BrokerConfig, broker.settings)
        if config.metrics_port > 0:
            used = [int(each.settings["metrics.port"]) for each in others]
            first = config.metrics_port
            (port,) = first_free_ports(config.metrics_host, first, 1, but=used)
            broker.settings["metrics.port"] = str(port)


def _check_settings(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for a wrong broker setting before any process is started."""
    of_brokers = [row.key for row in keys(BrokerConfig).values()]
    of_topics = [row.key for row in keys(TopicConfig).values()]
    for key in settings:
        meant = difflib.get_close_matches(key, of_brokers + of_topics, n=1)
        if key not in of_brokers and meant and meant[0] in of_topics:
            raise InvalidConfigError(
                f"unknown setting {key!r} of brokers; {meant[0]!r} is a setting of topics: "
                f"logbus topic create NAME -c {meant[0]}={settings[key]}"
            )
    parse(BrokerConfig, settings)


def first_free_ports(host: str, first: int, count: int, *, but: Collection[int] = ()) -> list[int]:
    """Return the first ``count`` free ports from ``first`` upward, or zeros if ``first`` is 0.

    Ports in ``but`` count as taken. The ports are not reserved, so another process may take one.
    Raises InvalidConfigError if fewer than ``count`` ports are free, or if the host is not an
    address of this machine."""
    if first == 0:
        return [0] * count
    ports: list[int] = []
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        if port in but:
            continue
        if _is_free(host, port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise InvalidConfigError(f"fewer than {count} free ports from {first} on; give another --port")


def require_free_port(host: str, port: int) -> None:
    """Raise PortInUseError if the port is taken, and InvalidConfigError if listening would fail for
    another reason. The port is not reserved: another process may take it before a broker does."""
    if not _is_free(host, port):
        raise PortInUseError(
            f"port {port} on {host} is taken; stop the process that listens there, give another "
            "--port, or omit --port to use the first free port from 9092 on"
        )


def _is_free(host: str, port: int) -> bool:
    """Return whether no process listens on the port.

    Raises InvalidConfigError if a broker could not listen there for another reason."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        socket.create_server(address, family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise InvalidConfigError(
            f"cannot listen on host {host} port {port}: {why_not_listening(error)}"
        ) from None
    return True


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically: readers see either the old file or the new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    new.replace(path)
