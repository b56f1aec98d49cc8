"""Fixtures that fetch third-party clients, and the table of the compatibility tests' results.

``make test`` leaves out the tests with the mark ``compat``, whose clients come from Maven, npm, Go
or Debian. ``make compat`` runs all tests, and writes the table of results to the file that
LOGBUS_COMPAT_RESULTS names. A run of some tests (``PYTEST_ARGS='-k java'``) replaces only the rows
of their clients.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from support.client_programs import (
    GO,
    GO_MODULES,
    JAVA,
    NODE,
    OLD_KAFKA,
    SPARK_CONNECTOR,
    Note,
    go_command,
    kcat_program,
    names,
)
from support.fetched import fetched

RESULTS = "LOGBUS_COMPAT_RESULTS"
HEAD = """# Tested clients

`make compat` writes this page: a row for each test of an unchanged client. *served* means that the
client succeeded. *refused* names Kafka's error, with which the broker answered an unsupported
request.

| client | test | result |
|---|---|---|
"""

Row = tuple[str, str, str]

_ROWS: list[Row] = []
_RAN: set[str] = set()
_LEFT_OUT: list[pytest.Item] = []


@pytest.fixture(scope="session")
def answered() -> Note:
    """Return a function that adds a row to the table of results: a client's name, a request, the
    broker's answer.

    If the runs of a parametrized test have equal rows, only one is added.
    """

    def note(client: str, asked: str, answer: str) -> None:
        row = (client, asked, answer)
        if row not in _ROWS:
            _ROWS.append(row)

    return note


@pytest.fixture(scope="session")
def versions() -> dict[str, str]:
    """Return the name with version of each client, as RESULTS.md shows it."""
    return names()


def built_class_path(folder: Path, *settings: str) -> str:
    """Fetch Apache Kafka's tools and broker with the user's Maven; return their class path."""
    listed = folder / "class-path"
    goal = ("dependency:build-classpath", f"-Dmdep.outputFile={listed}", *settings)
    fetched(["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), *goal], folder, "Kafka's tools")
    return listed.read_text("utf-8").strip()


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_class_path(tmp_path_factory.mktemp("maven"))


@pytest.fixture(scope="session")
def old_class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the class path of the oldest Kafka version from which a mirror copies."""
    return built_class_path(tmp_path_factory.mktemp("maven"), f"-Dkafka.version={OLD_KAFKA}")


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the jars of Spark's Kafka connector.

    Maven fetches each artifact without its dependencies, because it would look for these in a
    repository of Spark's parent pom, which may be unreachable.
    """
    folder = tmp_path_factory.mktemp("jars")
    for each in SPARK_CONNECTOR:
        copy = ["dependency:copy", f"-Dartifact={each}", f"-DoutputDirectory={folder}"]
        fetched(["mvn", "-q", "-B", *copy], folder, "Spark's Kafka connector")
    return [str(jar) for jar in sorted(folder.glob("*.jar"))]


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which npm installed kafkajs and its codecs."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(NODE / "package.json", folder)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    fetched(install, folder, "kafkajs")
    return folder


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that builds a Go client's test program once and returns its path."""

    @cache
    def built(client: str) -> str:
        module, folder = GO_MODULES[client], tmp_path_factory.mktemp("go")
        for file in (GO / "program.go", *module.parent.iterdir()):
            shutil.copy(file, folder)
        command = [go_command(), "build", f"-modfile={module.name}", "-o", "client", "."]
        fetched(command, folder, module.parent.name)
        return str(folder / "client")

    return built


@pytest.fixture(scope="session")
def kcat() -> str:
    """Return the path of the installed kcat."""
    program = kcat_program()
    if program is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    return program


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("/")[2]
    _RAN.add(_cell(name))
    if report.failed:
        _ROWS.append((name, report.when or "", "FAILED"))
    elif report.skipped and isinstance(report.longrepr, tuple):
        _ROWS.append((name, "", report.longrepr[2]))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _LEFT_OUT.extend(items)


def pytest_sessionfinish() -> None:
    if (name := os.environ.get(RESULTS)) and _ROWS:
        path = Path(name)
        rows = [*(_kept(path) if _LEFT_OUT else ()), *_ROWS]
        clients = list(dict.fromkeys(row[0] for row in rows))
        together = sorted(rows, key=lambda row: clients.index(row[0]))
        lines = [f"| {' | '.join(map(_cell, row))} |\n" for row in together]
        path.write_text(HEAD + "".join(lines), "utf-8")


def _kept(path: Path) -> list[Row]:
    """Return the rows of earlier runs that this run does not replace."""
    text = path.read_text("utf-8") if path.exists() else ""
    noted = {(_cell(client), _cell(asked)) for client, asked, _ in _ROWS}
    found = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", text.removeprefix(HEAD), re.M)
    return [row for row in found if row[:2] not in noted and row[0] not in _RAN]


def _cell(text: str) -> str:
    return text.replace("|", "/")
