"""``logbus doctor``: find problems of this machine and name the remedies.

Each check is a function that returns one finding, imports only the packages that it checks, and
never raises. Exit codes: 0 fine, 4 warnings, 5 critical. Findings of state "info" do not count."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import EXIT_CRITICAL, EXIT_WARNING
from broker_lite.errors import (
    ClusterAuthorizationError,
    InvalidConfigError,
    LogbusError,
    NoClusterError,
)

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.transactions import Holder
    from broker_lite.model import Endpoint

JAVA_MIN = 17
"""Lowest major version of Java that is accepted; Spark 4 needs it."""
FILES_MIN = 4096
"""Minimum limit of open files (``ulimit -n``) without a warning."""
DISK_FREE_MIN_BYTES = 2 << 30
"""Minimum free bytes on the disk of the data folder without a warning."""
CLUSTER_TIMEOUT_MS = 3000
"""Maximum milliseconds that a check waits for the cluster."""
OPEN_LONG_S = 60
"""Age in seconds from which an open transaction, which hides later records, is a warning."""
UID_MIN, UID_END = 1000, 65_534
"""The range of user ids that belong to accounts of people, ``UID_END`` exclusive."""
CERTIFICATE_WARNING_S = 30 * 86_400
"""Seconds before a certificate's expiry from which on there is a warning."""
_SPARK_SETTINGS = (
    "spark.python.unix.domain.socket.enabled",
    "spark.sql.streaming.checkpointFileManagerClass",
)
"""Settings that together halve a micro-batch's latency."""
_LOOKUP = (
    "import importlib.util, pkgutil\n"
    "seen = any(m.name == 'pyspark_logbus' for m in pkgutil.iter_modules())\n"
    "there = importlib.util.find_spec('pyspark_logbus') is not None\n"
    "print('seen' if seen else 'hidden' if there else 'absent')\n"
)
"""A program for Spark's interpreter that looks data sources up by name as Spark does."""
_HOME = (
    "import importlib.util, os\n"
    "spec = importlib.util.find_spec('pyspark_logbus')\n"
    "print(os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else '')\n"
)
"""A program for Spark's Python interpreter, which prints the folder of that interpreter's
logbus."""
_PACKAGES = ("pyspark_logbus", "broker_lite")


class Finding(NamedTuple):
    """The result of a check: what it checked, the state, what it found, and how to mend that (empty
    if all is well)."""

    check: str
    state: Literal["ok", "info", "warning", "critical"]
    found: str
    cure: str = ""


@click.command()
@cluster_options
@output.output_option
def doctor(cluster: ChosenCluster, form: str | None) -> int:
    """Check Java, jars, versions, ports, limits, disk, cluster, and whether Spark finds logbus.

    \b
    Exit codes: 0  all well (state 'info' is for your information)
                4  a warning: it works, but slower or not everywhere
                5  critical: logbus or Spark does not run until you fix it

    \b
    Examples:
      logbus doctor
      logbus doctor -b bus1:9092 -o json
    """
    findings = [check() for check in CHECKS]
    findings += [check(cluster) for check in CLUSTER_CHECKS]
    rows = [finding._asdict() for finding in findings]
    if output.is_table(form):
        # Cures are sentences; in a column they would be wider than the screen.
        output.show(rows, "table", ("check", "state", "found"))
        for finding in findings:
            if finding.cure:
                click.echo(f"\n{finding.check}: {finding.cure}")
    else:
        output.show(rows, form)
    states = {finding.state for finding in findings}
    return EXIT_CRITICAL if "critical" in states else EXIT_WARNING if "warning" in states else 0


def java() -> Finding:
    from broker_lite.local.zookeeper import find_java

    try:
        binary = find_java()
    except LogbusError as error:
        return Finding("java", "critical", "not found", error.message)
    run = _run(binary, "-version")
    version = re.search(r'version "(\d+)', run.stderr)
    if version is None:
        return Finding("java", "critical", f"{binary} does not run", "install Java 17 or later")
    if int(version[1]) < JAVA_MIN:
        return Finding("java", "critical", f"Java {version[1]}", "install Java 17 or later")
    modules = _run(binary, "--list-modules")
    if "jdk.incubator.vector" not in modules.stdout:
        return Finding(
            "java",
            "critical",
            f"Java {version[1]} without jdk.incubator.vector: ZooKeeper runs, Spark 4 does not",
            "install a whole JRE, such as openjdk-17-jre-headless",
        )
    return Finding("java", "ok", f"Java {version[1]}, {binary}")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its output. The exit code is 127 if the system cannot run it."""
    try:
        # Run in another folder, so that the checkout cannot stand in for the installed package.
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def zookeeper_jars() -> Finding:
    from broker_lite.local.zookeeper import find_jars

    try:
        folder = find_jars()
    except LogbusError as error:
        return Finding("zookeeper jars", "critical", "not found", error.message)
    names = [path.name for path in folder.glob("zookeeper-[0-9]*.jar")]
    return Finding("zookeeper jars", "ok", f"{names[0]} in {folder}")


def pyspark() -> Finding:
    return _version("pyspark", (4, 2), (5,), "[spark]", "micro-batches cannot be limited")


def pandas() -> Finding:
    return _version("pandas", (2, 2), (3,), "[spark]", "Spark 4 warns of it", optional=True)


def pyarrow() -> Finding:
    return _version("pyarrow", (18,), None, "", "Spark 4 refuses it")


def kafka_tables() -> Finding:
    return _version("kafka-python", (3, 0, 12), (4,), "[broker]", "brokers cannot start")


def event_loop() -> Finding:
    if importlib.util.find_spec("uvloop") is None:
        cure = "pip install 'pyspark-logbus[broker]'"
        return Finding("uvloop", "info", "absent: brokers run asyncio's event loop", cure)
    return Finding("uvloop", "ok", importlib.metadata.version("uvloop"))


def checksums() -> Finding:
    if importlib.util.find_spec("google_crc32c") is None:
        cure = "pip install google-crc32c"
        return Finding("crc32c", "warning", "in software (crcmod): 20 times slower", cure)
    import google_crc32c

    if google_crc32c.implementation != "c":
        return Finding("crc32c", "warning", "in Python", "install a wheel of google-crc32c")
    return Finding("crc32c", "ok", "in hardware or C")


def spark_python() -> Finding:
    """Check that PYSPARK_PYTHON (default: python3), which runs Spark's executors and its lookup of
    data sources, is this interpreter."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("PYSPARK_PYTHON", "ok", "PySpark is not installed here")
    named = os.environ.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(named)
    cure = f"export PYSPARK_PYTHON={sys.executable}"
    if found is None:
        return Finding("PYSPARK_PYTHON", "critical", f"{named} does not run", cure)
    if Path(found).absolute() == Path(sys.executable).absolute():
        return Finding("PYSPARK_PYTHON", "ok", named + _start_hint(Path(found)))
    asked = _run(found, "-c", "import sys; print(sys.prefix)")
    if asked.stdout.strip() == sys.prefix:
        return Finding("PYSPARK_PYTHON", "ok", found)
    return Finding(
        "PYSPARK_PYTHON", "critical", f"Spark would run {found}, not {sys.executable}", cure
    )


def _start_hint(python: Path) -> str:
    """Return a hint to use the program ``logbus-python``, which starts Spark's Python processes
    faster; empty if it is not installed beside the interpreter ``python``."""
    launcher = python.with_name("logbus-python")
    return f"; with {launcher.name} its processes start 0.5 s sooner" if launcher.exists() else ""


def lookup() -> Finding:
    """Check that Spark finds ``format("logbus")`` without ``register``."""
    named = shutil.which(os.environ.get("PYSPARK_PYTHON") or "python3") or sys.executable
    asked = _run(named, "-c", _LOOKUP)
    said = asked.stdout.strip()
    if said == "seen":
        return Finding("format('logbus')", "ok", f"found by name in {named}")
    if said == "hidden":
        return Finding(
            "format('logbus')",
            "warning",
            "an editable install that Spark's lookup cannot see",
            "pip install . (the built wheel), or pip install -e . --config-settings "
            "editable_mode=compat, or pyspark_logbus.register(spark)",
        )
    return Finding(
        "format('logbus')",
        "warning",
        f"pyspark_logbus is not installed for {named}",
        f"export PYSPARK_PYTHON={sys.executable}, or: {named} -m pip install pyspark-logbus",
    )


def source_tree() -> Finding:
    """Check for logbus's source tree in the current folder.

    Python prefers packages in the script's folder to installed packages. Spark's workers prefer
    packages in the current folder. The driver and its workers may thus load different copies."""
    name = "source tree"
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return Finding(name, "ok", "none: the current folder was deleted")
    if not all((here / package / "__init__.py").is_file() for package in _PACKAGES):
        return Finding(name, "ok", "none in this folder")
    if os.environ.get("PYTHONSAFEPATH"):
        return Finding(name, "ok", "in this folder, which PYTHONSAFEPATH excludes")
    named = shutil.which(os.environ.get("PYSPARK_PYTHON") or "python3") or sys.executable
    asked = _run(named, "-c", _HOME)
    home = asked.stdout.strip()
    if not home or Path(home) == here:
        return Finding(name, "ok", "in this folder; no other logbus is installed")
    unlike = [
        package for package in _PACKAGES if _modules(here, package) != _modules(Path(home), package)
    ]
    if not unlike:
        return Finding(name, "ok", f"in this folder, and the same as the packages in {home}")
    return Finding(
        name,
        "warning",
        f"{' and '.join(unlike)} in this folder and in {home} differ: the driver of a Spark "
        "script may load one copy and the workers the other",
        "rm -rf build && pip install ., or start scripts in another folder, or export "
        "PYTHONSAFEPATH=1 (only installed packages count)",
    )


def _modules(root: Path, package: str) -> dict[str, bytes]:
    folder = root / package
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}


def spark_settings() -> Finding:
    """Check that spark-defaults.conf has the two settings that halve a micro-batch's latency.
    Settings that a program makes are not seen."""
    homes = [os.environ.get("SPARK_CONF_DIR"), os.environ.get("SPARK_HOME")]
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        homes.append(spec.submodule_search_locations[0])
    text = ""
    for home in filter(None, homes):
        for path in (Path(home, "spark-defaults.conf"), Path(home, "conf", "spark-defaults.conf")):
            if path.is_file():
                text += path.read_text("utf-8", "replace")
    missing = [key for key in _SPARK_SETTINGS if key not in text]
    if missing:
        cure = (
            "to halve a micro-batch's latency use pyspark_logbus.spark_conf(), or set as in "
            f"conf/spark-defaults.conf: {', '.join(missing)}"
        )
        found = f"{len(missing)} not in spark-defaults.conf"
        return Finding("spark settings", "info", found, cure)
    return Finding("spark settings", "ok", "both are set")


def ports() -> Finding:
    taken = [port for port in (9092, 9093, 9094) if _is_taken(port)]
    if taken:
        found = f"taken: {', '.join(map(str, taken))}"
        return Finding("ports", "ok", f"{found}; 'logbus up' takes the next free ones")
    return Finding("ports", "ok", "9092 to 9094 are free")


def file_limit() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_MIN:
        cure = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
        return Finding(
            "open files",
            "warning",
            f"at most {soft}: each connection and each segment needs one",
            cure,
        )
    return Finding("open files", "ok", str(soft))


def disk() -> Finding:
    from broker_lite.client import discovery

    # Check the disk with the data of this machine's last cluster: ``logbus up --dir`` may have put
    # it outside the default folder.
    facts = discovery.read_cluster(discovery.last_cluster_path()) or {}
    folder = Path(facts.get("directory") or discovery.data_directory())
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < DISK_FREE_MIN_BYTES:
        return Finding(
            "disk",
            "warning",
            f"{output.size(free)} free in {folder}",
            "free space there, or start with a folder elsewhere: logbus up --dir FOLDER",
        )
    return Finding("disk", "ok", f"{output.size(free)} free in {folder}")


def reachable(cluster: ChosenCluster) -> Finding:
    """Check that the cluster answers, and that clients reach all brokers."""
    from broker_lite.client.administration.admin import Admin

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
    except LogbusError as error:
        cure = "start those brokers, or correct -b" if cluster.is_named else _cluster_cure()
        return Finding("cluster", "critical", f"{servers}: {error.message}", cure)
    unreachable = [str(e) for e in view.brokers.values() if not _is_taken(e.port, e.host)]
    if unreachable:
        found = f"advertised but not reachable: {', '.join(unreachable)}"
        return Finding("cluster", "critical", found, "set advertised.host and advertised.port")
    count = len(view.brokers)
    return Finding("cluster", "ok", f"{count} broker{'s' if count != 1 else ''} at {servers}")


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


def _cluster_cure() -> str:
    """Return the remedy for an unreachable cluster, by whether an environment variable or the last
    ``logbus up`` gave its address."""
    from broker_lite.cli import running
    from broker_lite.client import discovery

    for name in (discovery.ENV_BOOTSTRAP, discovery.ENV_ZOOKEEPER):
        if os.environ.get(name):
            return f"start those brokers, or correct or unset {name}"
    facts = discovery.read_cluster(discovery.last_cluster_path()) or {}
    directory = shlex.quote(str(facts.get("directory")))
    if running.is_held(facts):
        return f"logbus down --dir {directory}, then logbus up --dir {directory}"
    return f"logbus up --dir {directory}"


def replicas(cluster: ChosenCluster) -> Finding:
    from broker_lite.cli import under_replication
    from broker_lite.observing.sample import take_sample
    from broker_lite.observing.verdict import partition_causes, partitions

    try:
        with _admin(cluster) as admin:
            sample = take_sample(admin, with_sizes=False)
            few = under_replication.find(admin, sample.view)
    except LogbusError as error:
        return _unchecked("replicas", error, "describe")
    rows = partitions(sample)
    for cause in partition_causes(rows):
        return Finding("replicas", cause.state, cause.found, cause.cure)
    text = f"{len(rows)} partitions, all replicas in sync"
    if few is not None:
        return Finding("replicas", "info", f"{text}; {few.found()}", few.cure())
    return Finding("replicas", "ok", text)


def open_transactions(cluster: ChosenCluster) -> Finding:
    """Check for transactions that have been open for long and hide records from consumers."""
    from broker_lite.client.administration import transactions

    try:
        with _admin(cluster) as admin:
            view = admin.cluster()
            tps = [tp for tp, _ in view.rows]
            held = admin.run(transactions.holders, tps)
    except LogbusError:
        return Finding(
            "transactions",
            "info",
            "not checked: a broker does not answer",
            "see the finding 'cluster'",
        )
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
            f"{row.start_offset} --yes; find all with: logbus transactions hanging"
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


def disks(cluster: ChosenCluster) -> Finding:
    """Check the disks of the cluster's brokers, as the brokers report them."""
    from broker_lite.observing.sample import take_sample
    from broker_lite.observing.verdict import disk_causes

    try:
        with _admin(cluster) as admin:
            sample = take_sample(admin, with_sizes=False)
    except LogbusError as error:
        return _unchecked("brokers' disks", error, "describe")
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


def access(cluster: ChosenCluster) -> Finding:
    """Check for settings that let others use the cluster without a login."""
    from broker_lite.observing.exposure import exposure_cause

    try:
        hosts, settings = _broker_settings(cluster)
    except LogbusError as error:
        return _unchecked("access", error, "describe_configs")
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


def zookeeper_servers(cluster: ChosenCluster) -> Finding:
    """Check the versions of the ZooKeeper servers that the brokers use."""
    from broker_lite.observing.exposure import zookeeper_cause

    name = "zookeeper servers"
    try:
        _, settings = _broker_settings(cluster)
        own = settings[min(settings)]
        has_tls = own.get(_ZK_TLS) == "true"
        versions = {
            address: _zookeeper_version(address, own, has_tls=has_tls)
            for address in own.get("zookeeper.connect", "").partition("/")[0].split(",")
        }
    except LogbusError as error:
        return _unchecked(name, error, "describe_configs")
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
    """Return the version of a ZooKeeper server. Raises OSError and ValueError."""
    from broker_lite.metadata.zookeeper_tls import ZooKeeperTls

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
        raise ValueError(f"{address} does not answer srvr with a version: {answer[:80]!r}")
    return tuple(map(int, found.groups()))


_ZK_TLS = "zookeeper.ssl.client.enable"
_ZK_CA = "zookeeper.ssl.truststore.location"
_ZK_CERTIFICATE = "zookeeper.ssl.keystore.location"


def _broker_settings(cluster: ChosenCluster) -> tuple[set[str], dict[int, dict[str, str]]]:
    with _admin(cluster) as admin:
        brokers = admin.cluster(()).brokers
        described = admin.describe_configs(brokers=brokers)
    settings = {
        int(name): {key: entry.value or "" for key, entry in rows.items()}
        for (_, name), rows in described.items()
    }
    return {endpoint.host for endpoint in brokers.values()}, settings


def znodes(cluster: ChosenCluster) -> Finding:
    """Check that the brokers reach ZooKeeper, and can read all users, access control lists and
    quotas."""
    from broker_lite.observing.verdict import unreadable_causes, zookeeper_causes

    try:
        with _admin(cluster) as admin:
            reports = admin.broker_reports()
    except LogbusError as error:
        return _unchecked("znodes", error, "describe")
    found = [*zookeeper_causes(reports), *unreadable_causes(reports)]
    if found:
        more = f" ({len(found) - 1} more: logbus health)" if len(found) > 1 else ""
        return Finding("znodes", found[0].state, found[0].found + more, found[0].cure)
    if any(report.version is None for report in reports):
        return _unchecked("znodes", ClusterAuthorizationError(), "describe")
    return Finding("znodes", "ok", "brokers read all users, ACLs and quotas")


CHECKS: tuple[Callable[[], Finding], ...] = (
    java,
    zookeeper_jars,
    pyspark,
    pandas,
    pyarrow,
    kafka_tables,
    event_loop,
    checksums,
    spark_python,
    lookup,
    source_tree,
    spark_settings,
    ports,
    file_limit,
    disk,
)
CLUSTER_CHECKS: tuple[Callable[[ChosenCluster], Finding], ...] = (
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


def _version(
    package: str,
    lowest: tuple[int, ...],
    below: tuple[int, ...] | None,
    extra: str,
    consequence: str,
    *,
    optional: bool = False,
) -> Finding:
    wanted = f">={'.'.join(map(str, lowest))}"
    wanted += f",<{'.'.join(map(str, below))}" if below else ""
    cure = f"pip install '{package}{wanted}'"
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        cure = f"pip install 'pyspark-logbus{extra}'"
        return Finding(package, "ok" if optional else "warning", "not installed", cure)
    number = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if number < lowest or (below is not None and number >= below):
        return Finding(package, "warning", f"{version}: {consequence}", cure)
    return Finding(package, "ok", version)


def _is_taken(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
