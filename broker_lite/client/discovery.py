"""Find a cluster's brokers: in options, environment variables, or a file of ``logbus up``.

The file names the cluster that ``logbus up`` started last. Discovery runs only when a program
creates a client; it imports kazoo only if an option or a variable names ZooKeeper."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from broker_lite.client.client_config import (
    VARIABLE,
    is_chosen,
    security_of_environment,
    security_of_file,
    servers_of_file,
)
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError, NoClusterError
from broker_lite.model import Endpoint

ENV_BOOTSTRAP = "LOGBUS_BOOTSTRAP_SERVERS"
ENV_ZOOKEEPER = "LOGBUS_ZOOKEEPER"
"""Two environment variables: the addresses of a cluster's brokers, and of its ZooKeeper."""
PORT_DEFAULT = 9092
LAST_CLUSTER = "last-cluster.json"
CLUSTERS = "clusters"
"""The folder, beside the file ``LAST_CLUSTER``, with a file for each cluster that ``logbus up``
started."""
ZOOKEEPER_TIMEOUT_S = 10.0
"""Seconds for which discovery waits for ZooKeeper and for a registered broker."""


def resolve(
    bootstrap_servers: str | Sequence[str] | None = None,
    zookeeper: str | None = None,
) -> str:
    """Return the bootstrap brokers as ``host:port,host:port``.

    The first source with a value wins: ``bootstrap_servers``, ``zookeeper`` (its broker registry),
    LOGBUS_BOOTSTRAP_SERVERS, LOGBUS_ZOOKEEPER, ``bootstrap.servers`` in the file in
    LOGBUS_CLIENT_CONFIG, the cluster that ``logbus up`` started last.

    Raises NoClusterError if no source has a value, InvalidConfigError for a malformed address or if
    both arguments are given, and CoordinationUnavailableError if ZooKeeper does not answer."""
    env = os.environ
    if bootstrap_servers and zookeeper:
        raise InvalidConfigError(
            f"bootstrap_servers={bootstrap_servers!r} and zookeeper={zookeeper!r} both name a "
            "cluster; give one of them"
        )
    if bootstrap_servers:
        return join(parse_endpoints(bootstrap_servers))
    if zookeeper:
        return join(brokers_in_zookeeper(zookeeper))
    if env.get(ENV_BOOTSTRAP):
        return join(parse_endpoints(env[ENV_BOOTSTRAP], ENV_BOOTSTRAP))
    if env.get(ENV_ZOOKEEPER):
        return join(brokers_in_zookeeper(env[ENV_ZOOKEEPER]))
    file = env.get(VARIABLE)
    servers = servers_of_file(Path(file)) if file else ""
    if servers:
        return join(parse_endpoints(servers))
    cluster = read_cluster(last_cluster_path())
    if cluster and cluster.get("bootstrap_servers"):
        return join(parse_endpoints(str(cluster["bootstrap_servers"])))
    raise NoClusterError(
        "nothing names a cluster: give bootstrap_servers='host:port', set "
        f"{ENV_BOOTSTRAP} or {ENV_ZOOKEEPER}, or start one here with: logbus up"
    )


def cluster_variable() -> str:
    """Return the name of the environment variable that names a cluster, the first in the order of
    ``resolve``; "" if none does.

    Raises InvalidConfigError if the file in LOGBUS_CLIENT_CONFIG is unreadable or malformed."""
    for name in (ENV_BOOTSTRAP, ENV_ZOOKEEPER):
        if os.environ.get(name):
            return name
    file = os.environ.get(VARIABLE)
    return VARIABLE if file and servers_of_file(Path(file)) else ""


def data_directory() -> Path:
    """Return logbus's folder for data of this user: ``logbus`` in the XDG data folder."""
    root = os.environ.get("XDG_DATA_HOME")
    return (Path(root) if root else Path.home() / ".local" / "share") / "logbus"


def cache_directory() -> Path:
    """Return logbus's cache folder of this user: ``logbus`` in the XDG cache folder.

    The path is relative for a user without a home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "logbus"


def last_cluster_path() -> Path:
    """Return the path of the file about the cluster that ``logbus up`` started last."""
    return data_directory() / LAST_CLUSTER


def read_cluster(path: str | Path) -> dict[str, Any] | None:
    """Return a cluster's addresses and settings from a file that ``logbus up`` wrote; None if
    the file is unreadable."""
    try:
        facts = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def security_for(bootstrap_servers: str, given: ClientSecurity | None = None) -> ClientSecurity:
    """Return the security settings for connections to these brokers.

    The first of these sources counts:

    - ``given``;
    - the ``with chosen_security(…)`` block that the process runs;
    - the file in LOGBUS_CLIENT_CONFIG;
    - the file that ``logbus up --secure`` wrote for a cluster with these addresses; its
      credentials are sent to no other address.

    Raises InvalidConfigError for a wrong setting in one of these files."""
    if given is not None:
        return given
    if is_chosen() or os.environ.get(VARIABLE):
        return security_of_environment()
    return recorded_security(bootstrap_servers)


def recorded_security(bootstrap_servers: str) -> ClientSecurity:
    """Return the security settings that ``logbus up --secure`` wrote for these addresses.

    Return NO_SECURITY if it has started no such cluster."""
    endpoints = {_loopback(endpoint) for endpoint in parse_endpoints(bootstrap_servers)}
    folder = data_directory()
    for path in (folder / LAST_CLUSTER, *sorted(folder.glob(f"{CLUSTERS}/*.json"))):
        facts = read_cluster(path) or {}
        if facts.get("client_config") and facts.get("bootstrap_servers"):
            own = parse_endpoints(str(facts["bootstrap_servers"]))
            if endpoints <= {_loopback(endpoint) for endpoint in own}:
                return security_of_file(Path(facts["client_config"]))
    return NO_SECURITY


def _loopback(endpoint: Endpoint) -> Endpoint:
    return endpoint._replace(host="127.0.0.1") if endpoint.host == "localhost" else endpoint


def parse_endpoints(
    servers: str | Sequence[str], option: str = "bootstrap.servers"
) -> tuple[Endpoint, ...]:
    """Parse ``host:port,…`` (IPv6 in brackets, default port 9092) or a sequence of such texts.

    Raises InvalidConfigError, which names ``option``, for an invalid address or an empty list."""
    texts = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        example = f"'127.0.0.1:{servers}'" if isinstance(servers, int) else "'host:port'"
        raise InvalidConfigError(f"{option}={servers!r}: give host and port as text: {example}")
    endpoints = tuple(_parse_endpoint(text.strip(), option) for text in texts if text.strip())
    if not endpoints:
        raise InvalidConfigError(f"{option}={servers!r}: give host:port")
    return endpoints


def join(endpoints: Sequence[Endpoint]) -> str:
    """Return endpoints as text that ``parse_endpoints`` can read."""
    return ",".join(map(str, endpoints))


@lru_cache(maxsize=64)
def _parse_endpoint(text: str, option: str) -> Endpoint:
    bare = text.split("://", 1)[-1]
    host, colon, port = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        host, port = bare, str(PORT_DEFAULT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfigError(f"{option}={text!r}: put an IPv6 address in brackets")
    if host and port.isdecimal() and not 0 < int(port) < 65536:
        raise InvalidConfigError(f"{option}={text!r}: give a port from 1 to 65535")
    if not host or not port.isdecimal():
        raise InvalidConfigError(f"{option}={text!r}: give host:port")
    return Endpoint(host, int(port))


def brokers_in_zookeeper(address: str) -> list[Endpoint]:
    """Return the brokers registered in a cluster's ZooKeeper (``host:port,…/chroot``).

    Raises CoordinationUnavailableError if ZooKeeper does not answer, or has no broker, within
    ``ZOOKEEPER_TIMEOUT_S``, and MissingDependencyError without kazoo."""
    from broker_lite.metadata.zookeeper.blocking import read_brokers

    deadline = time.monotonic() + ZOOKEEPER_TIMEOUT_S
    while True:
        endpoints = read_brokers(address, timeout_s=max(0.1, deadline - time.monotonic()))
        if endpoints:
            return list(endpoints)
        if time.monotonic() >= deadline:
            raise CoordinationUnavailableError(
                f"ZooKeeper at {address} has no live broker; check the chroot (/logbus), "
                "or start a broker"
            )
        time.sleep(0.2)
