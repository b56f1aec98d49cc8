"""Other people's clients as their package managers bring them, and the table of what they got.

``make compat`` runs them all (mark ``compat``: those that Maven, npm, Go or rsyslog bring; the
plain suite leaves them out) and writes the table to the file that LOGBUS_COMPAT_RESULTS names; a
run of some of them (``PYTEST_ARGS='-k java'``) writes their rows anew and leaves the others.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from client_programs import (
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
from fetched import fetched

RESULTS = "LOGBUS_COMPAT_RESULTS"
HEAD = """# What other people's clients were answered

Written by `make compat`. "refused" is Kafka's own error for what is not served.

| client | asked for | answer |
|---|---|---|
"""

Row = tuple[str, str, str]

_ROWS: list[Row] = []
_RAN: set[str] = set()
_LEFT_OUT: list[pytest.Item] = []


@pytest.fixture(scope="session")
def answered() -> Note:
    """Notes a client, what it asked for and what it was answered. Of a table of cases the same row
    is noted once."""

    def note(client: str, asked: str, answer: str) -> None:
        row = (client, asked, answer)
        if row not in _ROWS:
            _ROWS.append(row)

    return note


@pytest.fixture(scope="session")
def versions() -> dict[str, str]:
    """What each client is called in the table."""
    return names()


def built_class_path(folder: Path, *settings: str) -> str:
    """Apache Kafka's tools and broker, by the user's Maven."""
    listed = folder / "class-path"
    goal = ("dependency:build-classpath", f"-Dmdep.outputFile={listed}", *settings)
    fetched(["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), *goal], folder, "Kafka's tools")
    return listed.read_text("utf-8").strip()


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_class_path(tmp_path_factory.mktemp("maven"))


@pytest.fixture(scope="session")
def old_class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same of the oldest Kafka that a mirror copies from."""
    return built_class_path(tmp_path_factory.mktemp("maven"), f"-Dkafka.version={OLD_KAFKA}")


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Spark's Kafka connector, one by one: a repository that Spark's parent pom names need not be
    reachable."""
    folder = tmp_path_factory.mktemp("jars")
    for each in SPARK_CONNECTOR:
        copy = ["dependency:copy", f"-Dartifact={each}", f"-DoutputDirectory={folder}"]
        fetched(["mvn", "-q", "-B", *copy], folder, "Spark's Kafka connector")
    return [str(jar) for jar in sorted(folder.glob("*.jar"))]


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where node finds kafkajs and its codecs, by the user's npm."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(NODE / "package.json", folder)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    fetched(install, folder, "kafkajs")
    return folder


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The program of go/ around a client, built once by the user's Go."""

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
    """The program, as the user's system has it."""
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
    """The rows of earlier runs that this one says nothing about."""
    text = path.read_text("utf-8") if path.exists() else ""
    noted = {(_cell(client), _cell(asked)) for client, asked, _ in _ROWS}
    found = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", text.removeprefix(HEAD), re.M)
    return [row for row in found if row[:2] not in noted and row[0] not in _RAN]


def _cell(text: str) -> str:
    return text.replace("|", "/")
