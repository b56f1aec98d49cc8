"""Run every code block of the user pages in order, as a reader does.

Pages that start no cluster share one cluster, and each test deletes the topics and groups of its
page. A page that begins with ``<!-- after OTHER -->`` continues with the processes and files of
another page, so one test runs both pages. The tests replace the ports in a page by free ports, so
that tests can run at the same time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from sitegen import blocks, site
from support.kafka_broker import free_ports as unused_ports

from broker_lite.bus import connect
from broker_lite.errors import GroupIdNotFoundError, NonEmptyGroupError
from broker_lite.local.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK_S = 150
"""Seconds after which a shell block is killed; blocks themselves wait for up to 60 s."""
OWN_TESTS = {"how-to/test-with-pytest.md": "tests/spark/test_testing_fixtures.py"}
"""Pages whose blocks another test runs, and the file of that test."""


PORT = re.compile(r"\b(?:19|12|13)\d{3}\b")
"""Matches the port numbers in a page, except logbus's default ports."""
NUMBERED_PORT = re.compile(r"\b((?:19|12|13)\d{2})(?=\$n)")
"""Matches the first four digits of a port whose last digit a script appends."""

_AFTER = re.compile(r"<!-- after (\S+) -->")


def chains() -> list[tuple[str, ...]]:
    """Return chains of pages: a page with blocks to run, then the pages that continue it."""
    names = [path.relative_to(site.PAGES).as_posix() for path in sorted(site.PAGES.rglob("*.md"))]
    names = [name for name in names if name not in OWN_TESTS and any(to_run(name))]
    before = {name: found[1] for name in names if (found := _AFTER.match(text_of(name)))}
    after = {first: name for name, first in before.items()}
    return [tuple(_chain(name, after)) for name in names if name not in before]


def _chain(name: str | None, after: Mapping[str, str]) -> Iterator[str]:
    while name is not None:
        yield name
        name = after.get(name)


def text_of(name: str) -> str:
    return (site.PAGES / name).read_text("utf-8")


def to_run(name: str) -> list[blocks.Block]:
    """Return the code blocks of a page that are marked to run."""
    found = blocks.blocks(text_of(name))
    return [each for each in found if each.language in ("python", "sh") and not each.reason]


KEEPER = """
groups=()
while read -r group; do groups+=("$group"); done
for group in "${groups[@]}"; do kill -9 -- "-$group"; done
find . -name cluster.json | while read -r file; do logbus down --dir "$(dirname "$file")"; done
"""
"""A shell script that ends the processes of a page when its standard input closes.

The test writes the process group of each shell block to the script's pipe. The pipe closes when the
test ends, or when pytest ends, even by SIGKILL.
"""
RELATIVE_CHECKPOINT = re.compile(r'(?<="checkpointLocation", ")(?=[^/])')
KEEPER_S = 60


@pytest.fixture
def keeper(
    pages: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[IO[bytes]]:
    """Start the process KEEPER, which runs the blocks of one page; yield the pipe to it.

    The fixture also sets the working folder and the environment for the blocks of the page.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ".data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    sources = "".join(block.source for name in pages for block in to_run(name))
    cluster: LocalCluster | None = None
    if not re.search(r"logbus (up|broker --config|generate)", sources):
        cluster = request.getfixturevalue("shared_cluster")
        monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(
        ["bash", "-c", KEEPER], stdin=subprocess.PIPE, bufsize=0, start_new_session=True, **quiet
    )
    assert started.stdin is not None
    try:
        yield started.stdin
    finally:
        started.stdin.close()
        started.wait(KEEPER_S)
    if cluster is not None:
        empty(cluster)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[LocalCluster]:
    """The cluster for the examples of all pages that start no cluster themselves."""
    cluster = LocalCluster(brokers=1)
    cluster.start()
    yield cluster
    cluster.kill()


def empty(cluster: LocalCluster) -> None:
    """Delete all topics and groups after the blocks of a page have run."""
    with connect(cluster.bootstrap_servers) as bus:
        for topic in bus.topics():
            if not topic.startswith("__"):
                bus.delete_topic(topic, if_exists=True)
        for listing in bus.admin.list_groups():
            # Leave a group with a killed member, which stays until its session timeout. No other
            # page uses the group.
            with contextlib.suppress(GroupIdNotFoundError, NonEmptyGroupError):
                bus.admin.delete_group(listing.group)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pages", chains(), ids=lambda pages: pages[0])
def test_code_blocks_of_the_page_run(
    pages: tuple[str, ...], keeper: IO[bytes], request: pytest.FixtureRequest
) -> None:
    found = [(name, block) for name in pages for block in to_run(name)]
    ports = free_ports("".join(block.source for _, block in found))
    spark: SparkSession | None = None
    if any("SparkSession" in block.source for _, block in found):
        spark = request.getfixturevalue("spark")
    names: dict[str, Any] = {"__name__": "__page__"}
    try:
        for name, block in found:
            place = f"docs/pages/{name}:{block.line}"
            if block.language == "sh":
                run_shell(place, with_ports(block.source, ports), keeper)
            else:
                run_python(place, "\n" * block.line + with_ports(block.source, ports), names)
    finally:
        for query in spark.streams.active if spark is not None else ():
            query.stop()


def free_ports(source: str) -> dict[str, str]:
    """Return a free port for each port of a page.

    A port whose last digit a script appends (``1909$n``) stands for nine ports. They are replaced
    by nine free ports that differ only in the last digit.
    """
    decades = sorted({*NUMBERED_PORT.findall(source)})
    singles = sorted({port for port in PORT.findall(source) if port[:-1] not in decades})
    found: dict[str, str] = {}
    taken: set[int] = set()
    # Choose ports below the system's range for clients. Several processes run tests at the same
    # time, so begin at a port that depends on the process.
    begin = 2100 + os.getpid() % 900
    for decade in decades:
        first = next(port for port in range(begin, 3200) if is_free_decade(port, taken))
        taken.add(first)
        found |= {decade: str(first)}
        found |= {f"{decade}{last}": f"{first}{last}" for last in range(10)}
    return found | dict(zip(singles, map(str, unused_ports(len(singles))), strict=True))


def is_free_decade(first: int, taken: set[int]) -> bool:
    """Return whether ``first`` is not in ``taken`` and ports 10 * ``first`` + 1 to + 9 are free."""
    if first in taken:
        return False
    with contextlib.ExitStack() as sockets:
        for last in range(1, 10):
            listening = sockets.enter_context(socket.socket())
            try:
                listening.bind(("127.0.0.1", first * 10 + last))
            except OSError:
                return False
    return True


def with_ports(source: str, ports: Mapping[str, str]) -> str:
    """Return a block with its ports replaced by ``ports``."""
    replaced = NUMBERED_PORT.sub(lambda found: ports.get(found[0], found[0]), source)
    return PORT.sub(lambda found: ports.get(found[0], found[0]), replaced)


def test_ports_in_the_code_blocks_of_a_page_are_replaced_by_free_ports() -> None:
    source = "clientPort=1218$n\nzk=127.0.0.1:12181,127.0.0.1:12183\n--port 19192 seq 1000 12\n"
    replaced = with_ports(source, ports := free_ports(source))
    decade = ports["1218"]
    assert f"clientPort={decade}$n\nzk=127.0.0.1:{decade}1,127.0.0.1:{decade}3\n" in replaced
    assert f"--port {ports['19192']} seq 1000 12\n" in replaced and ports["19192"] != "19192"


def run_shell(place: str, source: str, keeper: IO[bytes]) -> None:
    """Run a shell block in its own process group; fail if its exit code is not 0.

    The output goes to a file, because processes in the background would keep a pipe open.
    """
    with tempfile.TemporaryFile() as output:
        shell = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", source],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        keeper.write(b"%d\n" % shell.pid)
        code = shell.wait(BLOCK_S)
        output.seek(0)
        logs = "" if code == 0 else ends_of_logs(Path.cwd())
        assert code == 0, f"{place}\n{source}\n{output.read().decode()[-3000:]}\n{logs}"


def ends_of_logs(folder: Path) -> str:
    """Return the last lines of every log file below a folder, for a failure message."""
    return "\n".join(
        f"{path.relative_to(folder)}:\n{path.read_text('utf-8', 'replace')[-1500:]}"
        for path in sorted(folder.rglob("*.log"))
        if path.parent.name.startswith(("broker", "zk", "zookeeper")) or path.parent == folder
    )


def run_python(place: str, source: str, names: dict[str, Any]) -> None:
    """Run a Python block in the page's namespace. A failure names the page and the line.

    Relative checkpoint paths are made absolute in the page's folder, because all tests share one
    Spark JVM, whose current folder cannot change.
    """
    source = RELATIVE_CHECKPOINT.sub(f"{Path.cwd()}/", source)
    try:
        exec(compile(source, place, "exec"), names)
    except Exception:
        pytest.fail(f"{place}\n{traceback.format_exc()[-3000:]}", pytrace=False)
