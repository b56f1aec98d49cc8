"""Checks of a cluster for ``logbus doctor``: brokers, replicas, disks, certificates and access.

Each check is a function that returns one finding, imports only what it needs, and never raises."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker_lite.cli.context import bootstrap
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.machine_checks import Finding, is_taken
from broker_lite.errors import (
    ClusterAuthorizationError,
    InvalidConfigError,
    LogbusError,
    NoClusterError,
    RequestTimedOutError,
)

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.transactions import Holder
    from broker_lite.client.operations.cluster import Cluster, ClusterView
    from broker_lite.client.transport.steps import Operation
    from broker_lite.model import Endpoint

CLUSTER_TIMEOUT_MS = 3000
"""Maximum milliseconds that a check waits for the cluster."""
OPEN_LONG_S = 60
"""Age in seconds from which an open transaction, which hides later records, is a warning."""
UID_MIN, UID_END = 1000, 65_534
"""The range of user ids that belong to accounts of people, ``UID_END`` exclusive."""
CERTIFICATE_WARNING_S = 30 * 86_400
"""The check warns of a certificate that expires within this many seconds."""


Check = Callable[[ChosenCluster], Finding]


def _admin(cluster: ChosenCluster) -> Admin:
    from broker_lite.client.administration.admin import Admin

    return Admin(bootstrap(cluster), timeout_ms=CLUSTER_TIMEOUT_MS)


def _unchecked(check: str, error: LogbusError, operation: str) -> Finding:
    """Return the finding for a check that could not run because of ``error``. The check needs the
    ACL operation ``operation`` on the cluster."""
    if isinstance(error, ClusterAuthorizationError):
        cure = f"allow it with: logbus acl add USER {operation} --cluster"
        return Finding(check, "info", f"not checked: the user needs {operation}", cure)
    return Finding(check, "info", "not checked: no cluster answers", "see the finding 'cluster'")


def _unanswered(check: str) -> Finding:
    found = "not checked: a broker does not answer"
    return Finding(check, "info", found, "see the finding 'cluster'")


def _asks(name: str, operation: str) -> Callable[[Callable[[Admin], Finding]], Check]:
    """Return a decorator that makes the check ``name`` from a function. The function's requests
    need the permission ``operation`` on the cluster. If it raises a LogbusError, the check returns
    this error as its finding."""

    def decorate(ask: Callable[[Admin], Finding]) -> Check:
        @functools.wraps(ask)
        def check(cluster: ChosenCluster) -> Finding:
            try:
                with _admin(cluster) as admin:
                    return ask(admin)
            except LogbusError as error:
                return _unchecked(name, error, operation)

        return check

    return decorate


def reachable(cluster: ChosenCluster) -> Finding:
    """Check that the cluster answers, and that clients reach all brokers."""
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.discovery import parse_endpoints

    try:
        servers = bootstrap(cluster)
    except NoClusterError:
        cure = "start one with: logbus up; or name one with -b"
        return Finding("cluster", "info", "not checked: no cluster is named", cure)
    except LogbusError as error:
        return Finding("cluster", "critical", error.message, "correct --zookeeper, or start it")
    try:
        with Admin(servers, timeout_ms=CLUSTER_TIMEOUT_MS) as admin:
            view = admin.cluster()
            hung = admin.run(_hung, {*parse_endpoints(servers), *view.brokers.values()})
    except LogbusError as error:
        cure = "start those brokers, or correct -b" if cluster.is_named else _cluster_cure()
        return Finding("cluster", "critical", f"{servers}: {error.message}", cure)
    unreachable = [str(e) for e in view.brokers.values() if not is_taken(e.port, e.host)]
    if unreachable:
        found = f"advertised but not reachable: {', '.join(unreachable)}"
        return Finding("cluster", "critical", found, "set advertised.host and advertised.port")
    count = len(view.brokers)
    found = f"{count} broker{'s' if count != 1 else ''} at {servers}"
    if hung:
        found += f"; connected, but without an answer: {', '.join(hung)}"
        return Finding("cluster", "warning", found, "read broker.log there, and restart the broker")
    return Finding("cluster", "ok", found)


def _hung(_: Cluster, endpoints: Iterable[Endpoint], deadline_ms: float) -> Operation[list[str]]:
    """Return the brokers that accept a connection but do not answer in time."""
    from broker_lite import __version__
    from broker_lite.client.transport.clock import monotonic_ms
    from broker_lite.client.transport.steps import CallExchange, Send, SendAll
    from broker_lite.wire.calls.cluster import ApiVersionsRequest

    call = CallExchange(ApiVersionsRequest("logbus", __version__))
    left_ms = deadline_ms - monotonic_ms()
    sends = [Send(endpoint, call, left_ms) for endpoint in sorted(endpoints)]
    answers = yield SendAll(sends)
    return [
        str(send.endpoint)
        for send, answer in zip(sends, answers, strict=True)
        if isinstance(answer, RequestTimedOutError)
    ]


def _cluster_cure() -> str:
    """Return the remedy for an unreachable cluster. It depends on what gave the address: an
    environment variable or the last ``logbus up``."""
    from broker_lite.cli import running
    from broker_lite.client import discovery

    if name := discovery.cluster_variable():
        return f"start those brokers, or correct or unset {name}"
    facts = discovery.read_cluster(discovery.last_cluster_path()) or {}
    directory = shlex.quote(str(facts.get("directory")))
    if running.is_held(facts):
        return f"logbus down --dir {directory}, then logbus up --dir {directory}"
    return f"logbus up --dir {directory}"


@_asks("replicas", "describe")
def replicas(admin: Admin) -> Finding:
    from broker_lite.cli import under_replication
    from broker_lite.observing.sample import take_sample
    from broker_lite.observing.verdict import partition_causes, partitions

    sample = take_sample(admin, with_sizes=False)
    few = under_replication.find(admin, sample.view)
    rows = partitions(sample)
    for cause in partition_causes(rows):
        return Finding("replicas", cause.state, cause.found, cause.cure)
    if (lone := lone_state_finding(sample.view)) is not None:
        return lone
    text = f"{len(rows)} partitions, all replicas in sync"
    if few is not None:
        return Finding("replicas", "info", f"{text}; {few.found()}", few.cure())
    return Finding("replicas", "ok", text)


def lone_state_finding(view: ClusterView) -> Finding | None:
    """Return a warning if ``__transaction_state`` has partitions with one replica although the
    cluster has several brokers; otherwise None."""
    from broker_lite.client.administration.health import fewer_replicas
    from broker_lite.model import TRANSACTION_STATE

    brokers = len(view.brokers)
    if brokers < 2 or TRANSACTION_STATE not in fewer_replicas(view, 2):
        return None
    found = (
        f"{TRANSACTION_STATE} has partitions with one replica in a cluster of {brokers} brokers: "
        "while that broker is down, its transactions and exactly-once sinks wait; without its "
        "disk, they are lost"
    )
    cure = f"logbus topic reassign {TRANSACTION_STATE} --replication-factor {min(3, brokers)}"
    return Finding("replicas", "warning", found, cure)


def open_transactions(cluster: ChosenCluster) -> Finding:
    """Check for transactions that have been open for long and hide records from consumers."""
    from broker_lite.client.administration import transactions

    try:
        with _admin(cluster) as admin:
            view = admin.cluster()
            tps = [tp for tp, _ in view.rows]
            held = admin.run(transactions.holders, tps)
    except LogbusError:
        return _unanswered("transactions")
    return holder_finding(held, time.time() * 1000)


def holder_finding(held: Sequence[Holder], now_ms: float) -> Finding:
    """Return the finding about open transactions. ``held`` has the transactions that hold back a
    last stable offset, the longest open first; ``now_ms`` is the time in ms since 1970."""
    if not held:
        return Finding("transactions", "ok", "none is open")
    row, owner, since_ms = oldest = held[0]
    age_s = max(now_ms - since_ms, 0) / 1000
    if owner is None or oldest.is_hanging:
        name = f"producer {row.producer_id}, which no coordinator will end"
        cure = (
            f"logbus transactions abort {row.tp.topic} {row.tp.partition} --start-offset "
            f"{row.start_offset} --yes, which writes the {oldest.outcome} marker; find all with: "
            "logbus transactions hanging"
        )
    else:
        name = f"transactional id or Spark sink {owner.transactional_id!r}"
        cure = (
            f"stop or restart its producer or Spark query, or wait: a transaction is aborted "
            f"{owner.timeout_ms / 1000:g} s after its begin, a sink's batch after that time with "
            f"no running task; see: logbus transactions describe "
            f"{shlex.quote(owner.transactional_id)}"
        )
    text = (
        f"{len(held)} partitions have an open transaction; the oldest, of {name}, hides records of "
        f"{row.tp} from offset {row.start_offset} since {age_s:.0f} s"
    )
    return Finding("transactions", "warning" if age_s >= OPEN_LONG_S else "ok", text, cure)


@_asks("brokers' disks", "describe")
def disks(admin: Admin) -> Finding:
    """Check whether brokers report that a disk has failed or is filling."""
    from broker_lite.observing.sample import take_sample
    from broker_lite.observing.verdict import disk_causes

    sample = take_sample(admin, with_sizes=False)
    for cause in sorted(disk_causes(sample), key=lambda cause: cause.state != "critical"):
        return Finding("brokers' disks", cause.state, f"{cause.about}: {cause.found}", cause.cure)
    return Finding("brokers' disks", "ok", "no disk has failed or is filling")


def certificates(cluster: ChosenCluster) -> Finding:
    """Check when the certificates that the brokers present to clients expire."""
    from broker_lite.client import discovery
    from broker_lite.client.administration.admin import Admin
    from broker_lite.net.contexts import certificate_end

    try:
        servers = bootstrap(cluster)
        security = discovery.security_for(servers)
        with Admin(servers, timeout_ms=CLUSTER_TIMEOUT_MS, security=security) as admin:
            brokers = admin.cluster(()).brokers.values()
    except LogbusError as error:
        return _unchecked("certificates", error, "describe")
    if not security.is_tls:
        return Finding("certificates", "ok", "none: this connection has no TLS")
    ends: dict[Endpoint, float] = {}
    for endpoint in brokers:
        with contextlib.suppress(OSError):
            ends[endpoint] = certificate_end(endpoint, security, CLUSTER_TIMEOUT_MS / 1000)
    return certificate_finding(ends, len(brokers), time.time())


def certificate_finding(ends: Mapping[Endpoint, float], brokers: int, now_s: float) -> Finding:
    """Return the finding about certificates; ``ends`` has their expiry times (seconds since 1970)
    by broker address."""
    if len(ends) < brokers:
        found = f"{brokers - len(ends)} of {brokers} brokers complete no TLS handshake"
        return Finding(
            "certificates",
            "warning",
            found,
            "see the finding 'cluster', and read the logs of these brokers",
        )
    first, end_s = min(ends.items(), key=lambda row: row[1])
    date = time.strftime("%Y-%m-%d", time.gmtime(end_s))
    if end_s - now_s > CERTIFICATE_WARNING_S:
        return Finding("certificates", "ok", f"the first ends on {date}")
    return Finding(
        "certificates",
        "warning",
        f"the certificate of {first} ends on {date}",
        "replace the file that ssl.keystore.location of this broker names; brokers load it by "
        "themselves. A cluster of logbus up --secure renews its own when it starts",
    )


@_asks("access", "describe_configs")
def access(admin: Admin) -> Finding:
    """Check for settings that let others use the cluster without a login."""
    from broker_lite.observing.exposure import exposure_cause

    hosts, settings = _broker_settings(admin)
    cause = exposure_cause(settings, hosts, other_accounts())
    if cause is not None:
        return Finding("access", cause.state, cause.found, cause.cure)
    if any(own.get("authorizer") != "enforce" for own in settings.values()):
        return Finding("access", "ok", "open to this account alone")
    return Finding("access", "ok", "clients need a login and ACLs, ZooKeeper a credential")


def other_accounts() -> int:
    """Return the number of other people's accounts on this machine, those with a login shell."""
    import pwd

    return sum(
        1
        for row in pwd.getpwall()
        if UID_MIN <= row.pw_uid < UID_END
        and row.pw_uid != os.getuid()
        and not row.pw_shell.endswith(("/nologin", "/false"))
    )


@_asks("zookeeper servers", "describe_configs")
def zookeeper_servers(admin: Admin) -> Finding:
    """Check that the brokers' ZooKeeper servers have no vulnerable version."""
    from broker_lite.observing.exposure import zookeeper_cause

    name = "zookeeper servers"
    _, settings = _broker_settings(admin)
    own = settings[min(settings)]
    has_tls = own.get(_ZK_TLS) == "true"
    try:
        versions = {
            address: _zookeeper_version(address, own, has_tls=has_tls)
            for address in own.get("zookeeper.connect", "").partition("/")[0].split(",")
        }
    except (OSError, ValueError) as error:
        cure = "run it on a broker's machine; ZooKeeper's 4lw.commands.whitelist needs srvr"
        return Finding(name, "info", f"not checked: {error}", cure)
    for address, version in versions.items():
        cause = zookeeper_cause(address.rpartition(":")[0], version, has_tls=has_tls)
        if cause is not None:
            return Finding(name, cause.state, cause.found, cause.cure)
    found = {".".join(map(str, version)) for version in versions.values()}
    return Finding(name, "ok", ", ".join(sorted(found)))


def _zookeeper_version(
    address: str, settings: Mapping[str, str], *, has_tls: bool
) -> tuple[int, ...]:
    """Return the version of a ZooKeeper server. Raises OSError, or ValueError if the TLS files or
    the answer cannot be used."""
    from broker_lite.metadata.zookeeper.tls import ZooKeeperTls

    host, _, port = address.strip().rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0) as sock:
        if has_tls:
            tls = ZooKeeperTls(settings[_ZK_CA], settings.get(_ZK_CERTIFICATE, ""))
            try:
                sock = tls.wrap(sock, host)
            except InvalidConfigError as error:
                raise ValueError(error.message) from None
        sock.sendall(b"srvr")
        answer = sock.recv(4096).decode("utf-8", "replace")
    found = re.match(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)", answer)
    if found is None:
        raise ValueError(f"{address} does not answer ZooKeeper's command srvr: {answer[:80]!r}")
    return tuple(map(int, found.groups()))


_ZK_TLS = "zookeeper.ssl.client.enable"
_ZK_CA = "zookeeper.ssl.truststore.location"
_ZK_CERTIFICATE = "zookeeper.ssl.keystore.location"


def _broker_settings(admin: Admin) -> tuple[set[str], dict[int, dict[str, str]]]:
    brokers = admin.cluster(()).brokers
    described = admin.describe_configs(brokers=brokers)
    settings = {
        int(name): {key: entry.value or "" for key, entry in rows.items()}
        for (_, name), rows in described.items()
    }
    return {endpoint.host for endpoint in brokers.values()}, settings


@_asks("znodes", "describe")
def znodes(admin: Admin) -> Finding:
    """Check that the brokers reach ZooKeeper, and can read all users, access control lists and
    quotas."""
    from broker_lite.observing.verdict import unreadable_causes, zookeeper_causes

    reports = admin.broker_reports()
    found = [*zookeeper_causes(reports), *unreadable_causes(reports)]
    if found:
        more = f" ({len(found) - 1} more: logbus health)" if len(found) > 1 else ""
        return Finding("znodes", found[0].state, found[0].found + more, found[0].cure)
    unknown = [report for report in reports if report.version is None]
    if any(row.error is not None for report in unknown for row in report.log_dirs):
        return _unanswered("znodes")
    if unknown:
        return _unchecked("znodes", ClusterAuthorizationError(), "describe")
    return Finding("znodes", "ok", "brokers read all users, ACLs and quotas")


CLUSTER_CHECKS: tuple[Check, ...] = (
    reachable,
    replicas,
    open_transactions,
    disks,
    certificates,
    access,
    znodes,
    zookeeper_servers,
)
"""Checks of the cluster that ``-b`` or ``--zookeeper`` names."""
