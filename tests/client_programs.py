"""Other people's clients that are programs: where their sources lie, and what each is called."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

JAVA, NODE, GO, SARAMA = (
    Path(__file__).parent / "compat" / name for name in ("java", "node", "go", "sarama")
)

SPARK_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.0",
    "org.apache.kafka:kafka-clients:3.9.1",
)
"""The newest of each that the registry has; 4.2.0 runs on Spark 4.3."""

Note = Callable[[str, str, str], None]
"""Keeps a client's name, what it asked for, and what it was answered."""


def kcat_program() -> str | None:
    """None where it is not installed."""
    return shutil.which("kcat")


@cache
def names() -> dict[str, str]:
    """Each client's name with its version. A client that is not installed stays without one."""
    (tools,) = re.findall(r"<kafka.version>(.+)</kafka.version>", (JAVA / "pom.xml").read_text())
    packages = json.loads((NODE / "package.json").read_text())["dependencies"]
    go = _version(GO / "go.mod", "franz-go")
    rdkafka = confluent_kafka.libversion()[0]
    return {
        "librdkafka": f"confluent-kafka {version('confluent-kafka')} (librdkafka {rdkafka})",
        "kafka-python": f"kafka-python {version('kafka-python')}",
        "aiokafka": f"aiokafka {version('aiokafka')}",
        "kcat": _kcat_name(),
        "java": f"Apache Kafka {tools} tools",
        "kafkajs": f"kafkajs {packages['kafkajs']}",
        "platformatic": f"@platformatic/kafka {packages['@platformatic/kafka']}",
        "franz-go": f"franz-go {go}",
        "sarama": f"sarama {_version(SARAMA / 'go.mod', 'IBM/sarama')}",
        "old sarama": f"sarama {_version(SARAMA / 'old.mod', 'Shopify/sarama')}",
        "spark": f"Spark's Kafka connector {SPARK_CONNECTOR[0].rpartition(':')[2]}",
    }


def _version(module: Path, name: str) -> str:
    """Of a dependency that Go's module file names."""
    return re.findall(rf"{name} v(\S+)", module.read_text())[0]


def _kcat_name() -> str:
    program = kcat_program()
    if program is None:
        return "kcat"
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+).*librdkafka (\S+)", said)
    return f"kcat {found[1]} (librdkafka {found[2]})" if found else "kcat"
