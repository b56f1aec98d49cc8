"""Run ActiveMQ and RabbitMQ, the other systems of the NetDB'11 paper, with default settings.

They run on loopback. When the context ends, their processes have stopped and their temporary
folders are removed. ActiveMQ is embedded in a small Java program. RabbitMQ is the Debian package,
with an Erlang port mapper of its own, which ends with RabbitMQ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import fetch
from peers.servers import HEAP, KAFKA_VERSION, free_ports, stop

JAVA = Path(__file__).parent / "netdb11"
ACTIVEMQ_VERSION = "6.1.7"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 60
LIBRARIES = (
    f"org.apache.activemq:activemq-broker:{ACTIVEMQ_VERSION}",
    f"org.apache.activemq:activemq-client:{ACTIVEMQ_VERSION}",
    f"org.apache.activemq:activemq-kahadb-store:{ACTIVEMQ_VERSION}",
    f"org.apache.activemq:activemq-openwire-legacy:{ACTIVEMQ_VERSION}",
    "org.apache.activemq.protobuf:activemq-protobuf:1.1",
    "org.fusesource.hawtbuf:hawtbuf:1.11",
    "jakarta.annotation:jakarta.annotation-api:2.1.1",
    "jakarta.jms:jakarta.jms-api:3.1.0",
    "com.rabbitmq:amqp-client:5.26.0",
    "org.slf4j:slf4j-api:2.0.16",
    "org.slf4j:slf4j-nop:2.0.16",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
)
"""The artifacts that the programs in ``netdb11/`` need."""


def class_path(folder: Path) -> str:
    """Compile the Java programs of ``netdb11/`` into a folder; return the class path."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise fetch.Cannot("the Java compiler is missing: apt-get install openjdk-17-jdk-headless")
    libraries = f"{fetch.artifacts('netdb11', LIBRARIES)}/*"
    command = [compiler, "-cp", libraries, "-d", str(folder), *map(str, JAVA.glob("*.java"))]
    subprocess.run(command, check=True)
    return f"{folder}:{libraries}"


class Queue:
    """A queue server in a temporary folder. ``said`` is the output that shows that it has
    started."""

    name: str
    said: str

    def __enter__(self) -> Queue:
        with contextlib.ExitStack() as stack:
            made = tempfile.TemporaryDirectory(prefix="logbus-bench-", ignore_cleanup_errors=True)
            self._folder = Path(stack.enter_context(made))
            self._stack, self._processes = stack, []
            (port,) = free_ports(1)
            self.address = f"127.0.0.1:{port}"
            self.start(port)
            self._wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, port: int) -> None:
        """Run the processes of the server, which listens on ``port``."""
        raise NotImplementedError

    def run(self, *command: str, **settings: Any) -> None:
        with (self._folder / "out").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, **settings)
        self._stack.callback(stop, process)
        self._processes.append(process)

    def processes(self) -> dict[str, list[int]]:
        return {"broker": [self._processes[-1].pid]}

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.said not in (out := (self._folder / "out").read_text("utf-8", "replace")):
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise fetch.Cannot(f"{self.name} did not start: {out[-500:]}")
            time.sleep(0.1)


class ActiveMq(Queue):
    """Runs an embedded ActiveMQ with a KahaDB store."""

    name = "ActiveMQ"
    said = "ready\n"
    settings = f"ActiveMQ {ACTIVEMQ_VERSION}, KahaDB on its defaults: journal synced to disk"

    def __init__(self, classes: str) -> None:
        self._classes = classes

    def start(self, port: int) -> None:
        java = [fetch.java(), *HEAP.split(), "-cp", self._classes, "ActiveMqBroker"]
        self.run(*java, str(port), f"{self._folder}/data", stdin=subprocess.PIPE)


class RabbitMq(Queue):
    """Runs RabbitMQ from its package, with its own data folder, names and ports."""

    name = "RabbitMQ"
    said = "Starting broker... completed"
    settings = "RabbitMQ of the Debian package, durable classic queue"

    def start(self, port: int) -> None:
        mapper = shutil.which("epmd")
        if not RABBITMQ.exists() or mapper is None:
            raise fetch.Cannot(
                "RabbitMQ is missing: apt-get install --no-install-recommends rabbitmq-server"
            )
        mapper_port, nodes = free_ports(2)
        settings = os.environ | {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{self._folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self._folder}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{self._folder}/data",
            "RABBITMQ_LOG_BASE": f"{self._folder}/log",
            "RABBITMQ_PID_FILE": f"{self._folder}/pid",
        }
        self.run(mapper, env=settings)
        self.run(str(RABBITMQ), env=settings, cwd=self._folder)
