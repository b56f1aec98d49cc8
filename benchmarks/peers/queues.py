"""Run ActiveMQ and RabbitMQ, the other systems of the NetDB'11 paper, with default settings.

They run on loopback. When the context ends, their processes have stopped and their temporary
folders are removed. ActiveMQ is embedded in a small Java program. RabbitMQ is the Debian package,
with an Erlang port mapper of its own, which ends with RabbitMQ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from peers import fetch
from peers.servers import KAFKA_VERSION, free_ports

JAVA = Path(__file__).parent / "netdb11"
ACTIVEMQ_VERSION = "6.1.7"
START_SECONDS = 60
STOP_SECONDS = 20
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
    """Compile the programs into a folder; return the class path."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise fetch.Cannot("the Java compiler is missing: apt-get install openjdk-17-jdk-headless")
    libraries = f"{fetch.artifacts('netdb11', LIBRARIES)}/*"
    sources = [str(path) for path in sorted(JAVA.glob("*.java"))]
    done = subprocess.run(
        [compiler, "-cp", libraries, "-d", str(folder), *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])
    return f"{folder}:{libraries}"


class ActiveMq:
    """Runs an embedded ActiveMQ with a KahaDB store."""

    settings = f"ActiveMQ {ACTIVEMQ_VERSION}, KahaDB on its defaults: journal synced to disk"

    def __init__(self, classes: str) -> None:
        self._classes = classes

    def __enter__(self) -> ActiveMq:
        self._folder = tempfile.TemporaryDirectory(prefix="logbus-bench-activemq-")
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._out = (Path(self._folder.name) / "out").open("wb")
        command = [fetch.java(), "-Xmx1G", "-Xms1G", "-cp", self._classes, "ActiveMqBroker"]
        self._process = subprocess.Popen(
            [*command, str(port), f"{self._folder.name}/data"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
        )
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            self.__exit__()
            raise fetch.Cannot("ActiveMQ did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        _end(self._process)
        self._process.stdout.close()
        self._out.close()
        self._folder.cleanup()

    def processes(self) -> dict[str, list[int]]:
        return {"broker": [self._process.pid]}


class RabbitMq:
    """Runs RabbitMQ from its package, with its own data folder, names and ports."""

    def __enter__(self) -> RabbitMq:
        script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        mapper = shutil.which("epmd")
        if not script.exists() or mapper is None:
            raise fetch.Cannot(
                "RabbitMQ is missing: apt-get install --no-install-recommends rabbitmq-server"
            )
        self._folder = tempfile.mkdtemp(prefix="logbus-bench-rabbitmq-")
        port, mapper_port, nodes = free_ports(3)
        self.address = f"127.0.0.1:{port}"
        settings = os.environ | {
            "HOME": self._folder,
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
        self._out = (Path(self._folder) / "out").open("w+b")
        self._mapper = subprocess.Popen([mapper], env=settings, stdout=self._out, stderr=self._out)
        self._process = subprocess.Popen(
            [str(script)], env=settings, stdout=self._out, stderr=self._out, cwd=self._folder
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        self.settings = f"RabbitMQ {self._version()}, durable classic queue"
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while b"Starting broker... completed" not in self._said():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._said().decode("utf-8", "replace")
                raise fetch.Cannot(f"RabbitMQ did not start: {said[-500:]}")
            time.sleep(0.1)

    def _said(self) -> bytes:
        return (Path(self._folder) / "out").read_bytes()

    def _version(self) -> str:
        words = self._said().decode("utf-8", "replace").split("RabbitMQ ")
        return words[1].split()[0] if len(words) > 1 else ""

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        _end(self._process)
        self._mapper.terminate()
        _end(self._mapper)
        self._out.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def processes(self) -> dict[str, list[int]]:
        return {"broker": [self._process.pid]}


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
