"""Checks of this machine for ``logbus doctor``: Java, packages, settings, ports and disk.

Each check is a function that returns one finding, imports only the packages that it checks, and
never raises."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from broker_lite.cli import output
from broker_lite.errors import LogbusError

JAVA_MIN = 17
"""Lowest major version of Java that is accepted; Spark 4 needs it."""
FILES_MIN = 4096
"""Limit of open files (``ulimit -n``) below which the check warns."""
DISK_FREE_MIN_BYTES = 2 << 30
"""Free bytes on the disk of the data folder below which the check warns."""
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
"""A program, run by Spark's interpreter, that looks data sources up by name as Spark does."""
_HOME = (
    "import importlib.util, os\n"
    "spec = importlib.util.find_spec('pyspark_logbus')\n"
    "print(os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else '')\n"
)
"""A program for Spark's Python interpreter, which prints the folder of that interpreter's
logbus."""
_PACKAGES = ("pyspark_logbus", "broker_lite")


class Finding(NamedTuple):
    """The result of a check: its subject, its severity, what it found, and the remedy (empty if all
    is well)."""

    check: str
    state: Literal["ok", "info", "warning", "critical"]
    found: str
    cure: str = ""


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
        # Run the program in the root folder, so that Python imports the installed package, not a
        # checkout.
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
    """Check that Spark finds ``format("logbus")`` without ``pyspark_logbus.register``."""
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
    """Check that spark-defaults.conf has the two settings that halve a micro-batch's latency. The
    check does not see settings that a program passes to Spark itself."""
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
    taken = [port for port in (9092, 9093, 9094) if is_taken(port)]
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

    # Check the disk that holds the data of this machine's last cluster: ``logbus up --dir`` may
    # have put the data outside the default folder.
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


def is_taken(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


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
