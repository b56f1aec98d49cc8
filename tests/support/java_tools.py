"""Run Apache Kafka's own command line tools, each in a JVM as its shell script does."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from broker_lite.local.zookeeper import find_java
from support.client_programs import JAVA
from support.patience import until

TOOLS = "org.apache.kafka.tools."
TOPICS = f"{TOOLS}TopicCommand"
GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"
PRODUCER = f"{TOOLS}ConsoleProducer"
CONSUMER = f"{TOOLS}consumer.ConsoleConsumer"
PERFORMANCE = f"{TOOLS}ProducerPerformance"
OFFSETS = f"{TOOLS}GetOffsetShell"
REASSIGN = f"{TOOLS}reassign.ReassignPartitionsCommand"
ELECT = f"{TOOLS}LeaderElectionCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TRANSACTIONS = f"{TOOLS}TransactionsCommand"
FEATURES = f"{TOOLS}FeatureCommand"
ACLS = f"{TOOLS}AclCommand"
VERIFICATION = f"{TOOLS}ReplicaVerificationTool"
QUORUM = f"{TOOLS}MetadataQuorumCommand"
SERVERS_FIRST = (TRANSACTIONS, FEATURES, QUORUM)
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m")
TOOL_SECONDS = 90
WAIT_SECONDS = 30


class Tools:
    """Kafka's tools for one cluster. ``command_config`` is a settings file with a login."""

    def __init__(self, class_path: str, servers: str, command_config: str = "") -> None:
        log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
        self._java = [find_java(), *JVM, log, "-cp", class_path]
        self._servers = servers
        self._login = ["--command-config", command_config] if command_config else []

    def __call__(
        self, tool: str, *arguments: str, stdin: str = "", code: int = 0, says: str = ""
    ) -> str:
        """Run a tool; return its stdout and stderr.

        ``code`` is the expected exit code, ``says`` an expected part of the output. The option with
        the servers comes last, except for tools in SERVERS_FIRST.
        """
        servers = ("--bootstrap-server", self._servers)
        arguments = (*arguments, *self._login)
        given = (*servers, *arguments) if tool in SERVERS_FIRST else (*arguments, *servers)
        done = subprocess.run(
            [*self._java, tool, *given],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TOOL_SECONDS,
        )
        assert done.returncode == code, done.stdout
        assert says in done.stdout
        return done.stdout

    @contextmanager
    def running(self, tool: str, *arguments: str) -> Iterator[Iterator[str]]:
        """Run a tool that does not exit by itself; yield its lines for at most TOOL_SECONDS."""
        command = [*self._java, tool, *arguments, "--broker-list", self._servers]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            timer = threading.Timer(TOOL_SECONDS, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                yield iter(process.stdout)
            finally:
                timer.cancel()
                process.kill()

    def produce(self, topic: str, lines: str, *arguments: str) -> None:
        """Produce the records of ``key:value`` lines with Kafka's console producer."""
        keyed = ("parse.key=true", "key.separator=:")
        options = [word for option in keyed for word in ("--reader-property", option)]
        self(PRODUCER, "--topic", topic, *options, *arguments, stdin=lines)

    def consume(self, topic: str, count: int, *printed: str) -> list[str]:
        """Return the lines of Kafka's console consumer for ``count`` records of partition 0."""
        options = [w for name in printed for w in ("--formatter-property", f"print.{name}=true")]
        where = ("--topic", topic, "--partition", "0", "--offset", "earliest")
        said = self(CONSUMER, *where, "--max-messages", str(count), *options)
        return said.splitlines()[:count]

    def eventually(self, says: str, tool: str, *arguments: str) -> str:
        """Run a tool until its output contains ``says``, and return the output.

        A tool may ask a broker that does not know the newest change yet.
        """
        said: str = until(lambda: self(tool, *arguments), lambda said: says in said)
        return said
