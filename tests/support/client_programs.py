"""Third-party clients that run as programs: their sources, versions, and printed results."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import Any

import confluent_kafka

JAVA, NODE, GO = (Path(__file__).parents[1] / "compat" / name for name in ("java", "node", "go"))

GO_MODULES = {
    "franz-go": GO / "franz-go" / "go.mod",
    "sarama": GO / "sarama" / "go.mod",
    "old sarama": GO / "sarama" / "old.mod",
}
"""The go.mod of each Go client. The client's code is in the same folder."""

OLD_KAFKA = "3.1.2"
"""The oldest Kafka version from which a mirror copies."""

LIBRDKAFKA, LIBRDKAFKA_VERSION = "@confluentinc/kafka-javascript@1.10.1", "2.15.1"
"""An npm package that contains librdkafka's source and tests, and the version of librdkafka."""

SPARK_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.0",
    "org.apache.kafka:kafka-clients:3.9.1",
)
"""The newest released versions of these packages; version 4.2.0 runs on Spark 4.3."""

Note = Callable[[str, str, str], None]
"""A function that adds a row to the table: a client's name, its request, the result."""

OwnNote = Callable[[str, str], None]
"""A function that adds a row for the test's only client: its request and the result."""

STEP_SECONDS = 120
"""Seconds without output after which a program is killed.

The total run time has no limit, because a busy machine slows every step.
"""
DUMP_SECONDS = 5
SAID_CHARACTERS = 5000


class Steps:
    """The results that a program with a third-party client printed.

    The program prints a JSON line for each step, with ``step`` and either ``answer`` or ``error``.
    """

    def __init__(self, command: Sequence[str], folder: Path | None = None) -> None:
        lines: SimpleQueue[str] = SimpleQueue()
        self._rows: dict[str, dict[str, Any]] = {}
        with (
            TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            reader = threading.Thread(target=_take, args=(process, lines), daemon=True)
            reader.start()
            try:
                while line := lines.get(timeout=STEP_SECONDS):
                    row = json.loads(line)
                    self._rows[row["step"]] = row
                code = process.wait(STEP_SECONDS)
            except Empty:
                # Go and Java programs print the stacks of all threads on SIGQUIT.
                process.send_signal(signal.SIGQUIT)
                reader.join(DUMP_SECONDS)
                code = None
            finally:
                process.kill()
                reader.join()
            errors.seek(0)
            said = errors.read()
            while not lines.empty():
                said += lines.get()
        last = next(reversed(self._rows), "it began")
        assert code is not None, f"silent after {last!r}: {said[-SAID_CHARACTERS:]}"
        assert code == 0, f"failed after {last!r}: {said[-SAID_CHARACTERS:]}"

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def all(self) -> list[dict[str, Any]]:
        """Return all lines that the program printed, decoded."""
        return list(self._rows.values())

    def answer(self, name: str) -> Any:
        """Return the result of a step of the program; fail if the step had an error."""
        assert "error" not in self._rows[name], self._rows[name]
        return self._rows[name]["answer"]

    def answers(self, *names: str) -> list[Any]:
        """Return the results of several steps; fail if a step had an error."""
        return [self.answer(name) for name in names]

    def error(self, name: str) -> str:
        """Return the error that the program printed for a step that must fail."""
        return str(self._rows[name]["error"])


def _take(process: subprocess.Popen[str], lines: SimpleQueue[str]) -> None:
    """Put all output lines of a program into the queue, then an empty line. Runs in a thread."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


GO_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def assert_go_reads_what_it_wrote(steps: Steps) -> None:
    """Check that a Go client read the two records that it wrote with each codec, and after a
    seek the last record again."""
    expected, at_ms = [], 1_700_000_000_000
    for n, codec in enumerate(GO_CODECS):
        assert steps.answer(f"produce {codec}") == [2 * n, 2 * n + 1]
        expected.append([2 * n, "k", codec, [["h", "1"], ["h", "2"]], at_ms])
        expected.append([2 * n + 1, "gone", None, [], at_ms])
    assert steps.answers("consume", "seek") == [expected, expected[-1:]]


def go_command() -> str:
    """Return the path of Go, whose installer does not add it to PATH."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin") or "go"


def kcat_program() -> str | None:
    """Return the path of kcat, or None if it is not installed."""
    return shutil.which("kcat")


@cache
def names() -> dict[str, str]:
    """Return the display name of each client, with its version if the client is installed."""
    tools, platform = (
        re.findall(r"<kafka.version>(.+)</kafka.version>", (JAVA / name).read_text())[0]
        for name in ("pom.xml", "platform.xml")
    )
    packages = json.loads((NODE / "package.json").read_text())["dependencies"]
    rdkafka = confluent_kafka.libversion()[0]
    return {
        "librdkafka": f"confluent-kafka {version('confluent-kafka')} (librdkafka {rdkafka})",
        "librdkafka suite": f"librdkafka's own tests {LIBRDKAFKA_VERSION}",
        "kafka-python": f"kafka-python {version('kafka-python')}",
        "aiokafka": f"aiokafka {version('aiokafka')}",
        "kcat": _kcat_name(),
        "java": f"Apache Kafka {tools} tools",
        "java clients": f"Apache Kafka {tools} clients",
        "broker": f"Apache Kafka {tools} broker",
        "old broker": f"Apache Kafka {OLD_KAFKA} broker",
        "connect": f"Kafka Connect {platform}",
        "streams": f"Kafka Streams {platform}",
        "kafkajs": f"kafkajs {packages['kafkajs']}",
        "platformatic": f"@platformatic/kafka {packages['@platformatic/kafka']}",
        "franz-go": f"franz-go {_version('franz-go', 'franz-go')}",
        "sarama": f"sarama {_version('sarama', 'IBM/sarama')}",
        "old sarama": f"sarama {_version('old sarama', 'Shopify/sarama')}",
        "spark": f"Spark's Kafka connector {SPARK_CONNECTOR[0].rpartition(':')[2]}",
    }


def _version(client: str, dependency: str) -> str:
    return re.findall(rf"{dependency} v(\S+)", GO_MODULES[client].read_text())[0]


def _kcat_name() -> str:
    program = kcat_program()
    if program is None:
        return "kcat"
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+).*librdkafka (\S+)", said)
    return f"kcat {found[1]} (librdkafka {found[2]})" if found else "kcat"
