"""Check the rules of form for every file: lengths, imports, names and words."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("broker_lite", "pyspark_logbus")

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 800
DOCSTRING_LINES_MAX = 30
COLUMNS_MAX = 100
POSITIONAL_MAX = 5
NAMES_FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager2"}

MACHINE_PATH = re.compile(
    r"(?<![\w.$}>~/-])/(?:(?:home|Users|work|workspace)/[\w.-]+|root(?:/|\b(?!\w)))"
    r"|\b[A-Za-z]:[\\/]+Users\b"
)
"""Matches paths in folders of people and of build machines; paths such as /tmp are allowed."""

LAZY_IMPORTS = {
    "broker_lite/__main__.py": "python -m broker_lite is the command line, which is lazy too",
    "broker_lite/cli/up_report.py": "`up` is soon ready: only one that has grown needs a client",
    "broker_lite/cli/broker.py": "`logbus --help` must not load the broker",
    "broker_lite/cli/completion.py": "completion answers in 300 ms: most need no client",
    "broker_lite/cli/console.py": "a host without the extra [console] has the other commands",
    "broker_lite/cli/consume.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/context.py": "the client is loaded by the commands that talk to a cluster",
    "broker_lite/cli/cluster_checks.py": "completion of doctor's options needs no client",
    "broker_lite/cli/machine_checks.py": "each check imports what it checks, or says why not",
    "broker_lite/cli/export.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/main.py": "a command's module is loaded when it is called",
    "broker_lite/cli/mirror.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/perf.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/produce.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/status.py": "completion of its options needs no client",
    "broker_lite/cli/storage.py": "`logbus --help` must not load pyarrow",
    "broker_lite/cli/up.py": "`logbus --help` must not load subprocess and sockets",
    "broker_lite/cli/user.py": "kazoo is loaded only where ZooKeeper is written",
    "broker_lite/cli/zookeeper.py": "`logbus --help` must not load kazoo",
    "broker_lite/client/record_files.py": "a console without exports needs no pyarrow.parquet",
    "broker_lite/local/cluster.py": "only a secured cluster loads cryptography and kazoo",
    "broker_lite/bus/aio.py": "kazoo is loaded only by members of native groups",
    "broker_lite/bus/blocking.py": "an admin's bus must not load pyarrow: producer and consumer do",
    "broker_lite/client/discovery.py": "kazoo is loaded only where ZooKeeper is named",
    "broker_lite/server/broker.py": "prometheus_client takes 66 ms; PyJWT is of the extra [oauth]",
    "broker_lite/net/opening.py": "ssl takes 5 ms and 2 MB; only clients that use TLS load it",
    "broker_lite/client/transport/access_tokens.py": "ssl and http; only OAUTHBEARER needs them",
    "broker_lite/record/arrow.py": "pyarrow.compute takes 9 MB of every broker that never needs it",
    "broker_lite/record/newest_time.py": "a broker that decodes no body needs no numpy, no pyarrow",
    "broker_lite/record/records.py": "pyarrow, for codecs; a broker writes its state without it",
    "broker_lite/record/transcode.py": "pyarrow.compute takes 9 MB; only readers of rows need it",
    "broker_lite/server/handlers/list_transactions.py": "only a pattern needs pyarrow's RE2",
    "broker_lite/server/network/listener.py": "cryptography takes 30 ms; only TLS needs it",
    "broker_lite/server/partitions/ranges.py": "brokers that decode no body need no numpy",
    "broker_lite/storage/lookups.py": "a broker that decodes no body needs no numpy, no pyarrow",
    "pyspark_logbus/batch_reader.py": "executors unpickle it and must not import what plans",
    "pyspark_logbus/connection_security.py": "tasks and commits import it; only planning logs in",
    "pyspark_logbus/datasource.py": "each Spark process imports its own part: reader or writer",
    "pyspark_logbus/exactly_once.py": "only a driver that ends a batch needs the client",
    "pyspark_logbus/partition_reader.py": "only a task that loses records needs Admin",
    "pyspark_logbus/stream_reader.py": "executors unpickle it and must not import what plans",
    "pyspark_logbus/testing.py": "pytest loads it in every session where logbus is installed",
    "pyspark_logbus/writers.py": "the process that commits must import neither client nor pyarrow",
}
"""Files that may import inside functions, with the reason. Import cycles are no reason."""

POSITIONAL = {
    (
        "broker_lite/client/producing/aio_producer.py",
        "send",
    ): "the public call, with names that people know",
    ("broker_lite/client/producing/producer.py", "send"): "the public call, with names as above",
    ("broker_lite/client/transactions/producer.py", "send"): "the same call in a transaction",
    ("broker_lite/client/transactions/aio_producer.py", "send"): "the same call in a transaction",
}
"""Functions that may have more than five positional parameters, each with the reason. Functions of
commands may too, because click passes their parameters by name."""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def faults(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    if path.stem in NAMES_FORBIDDEN:
        yield f"{name(path)}: a module's name says what it is; {path.stem} does not"
    if len(lines) > MODULE_LINES_MAX:
        yield f"{name(path)}: {len(lines)} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield f"{name(path)}:{number}: {len(line)} columns"
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree)
    if lines and not docstring:
        yield f"{name(path)}: no module docstring"
    if docstring and len(docstring.splitlines()) > DOCSTRING_LINES_MAX:
        yield f"{name(path)}: a module docstring of {len(docstring.splitlines())} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from function_faults(path, node)


def function_faults(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > FUNCTION_LINES_MAX:
        yield f"{name(path)}:{node.lineno}: {node.name} has {length} lines"
    arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    count = len([each for each in arguments if each not in ("self", "cls")])
    is_command = name(path).startswith("broker_lite/cli/") and node.decorator_list
    if count > POSITIONAL_MAX and not is_command and (name(path), node.name) not in POSITIONAL:
        yield f"{name(path)}:{node.lineno}: {node.name} takes {count} by position"
    if name(path) in LAZY_IMPORTS:
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            yield f"{name(path)}:{inner.lineno}: import hidden in {node.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_follows_the_formal_rules_of_contributing_md(package: str) -> None:
    found = [
        fault for path in sources() if name(path).startswith(package) for fault in faults(path)
    ]
    assert not found, "\n".join(found)


def test_tables_of_exceptions_from_the_rules_name_only_existing_exceptions() -> None:
    rows = [*LAZY_IMPORTS, *(path for path, _ in POSITIONAL)]
    missing = [row for row in rows if not (ROOT / row).is_file()]
    assert not missing


def texts() -> Iterator[tuple[str, str]]:
    """Yield path and content of every text file that git tracks; without git, of every text
    file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split("\0") if listed.returncode == 0 else ()
    paths = [ROOT / name for name in names if name] or [
        path
        for path in ROOT.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    for path in paths:
        data = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in data:
            yield name(path), data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("line", "is_of_a_machine"),
    [
        ("open('/ho" + "me/ann/x.log')", True),
        ("see /Use" + "rs/ann/x", True),
        ("/ro" + "ot/.cache", True),
        ("cd /wo" + "rk/main", True),
        ('"C:\\Use' + 'rs\\ann"', True),
        ('option("checkpointLocation", "/tmp/checkpoint")', False),
        ("$HOME/work/x, ~/root/y, a/home/b", False),
        ("https://example.org/home/page", False),
        ("/var/log and /dev/shm and /consumers/g/offsets", False),
    ],
)
def test_paths_that_exist_only_on_one_machine_are_recognised(
    line: str, is_of_a_machine: bool
) -> None:
    assert bool(MACHINE_PATH.search(line)) is is_of_a_machine


def test_no_file_names_a_path_that_exists_only_on_one_machine() -> None:
    found = [
        f"{tp}:{number}: {line.strip()[:80]}"
        for tp, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_file_has_a_todo_or_fixme() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    found = [
        f"{name(path)}:{number}: {mark}"
        for path in sources()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for mark in marks
        if mark in line
    ]
    assert not found, "\n".join(found)


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name(path))
    assert not {each: found for each, found in homes.items() if len(found) > 1}


WORDS_FORBIDDEN = re.compile(
    r"\b(who" + r"ever|no" + r"body|outr" + r"un|of its own acc" + r"ord)\b", re.IGNORECASE
)
"""Words that hide the subject of a sentence. Name the reader, the client or the broker."""


def test_no_file_has_a_forbidden_word() -> None:
    found = [
        f"{tp}:{number}: {line.strip()}"
        for tp, text in texts()
        if tp.startswith(PACKAGES) and tp.endswith((".py", ".md"))
        for number, line in enumerate(text.splitlines(), 1)
        if WORDS_FORBIDDEN.search(line)
    ]
    assert not found, "\n".join(found)


def test_contributing_md_names_only_existing_files_in_its_walks_through_the_code() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    walks = text.partition("## Four walks")[2].partition("\n## ")[0].split("\n**")[1:]
    assert len(walks) == 4
    for walk in walks:
        files = re.findall(r"`([\w/]+\.py)`", walk)
        assert 10 < len(files) <= 20
        assert not [file for file in files if not (ROOT / file).is_file()]
