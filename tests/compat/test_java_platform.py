"""Test Kafka Connect and Kafka Streams, unchanged, as the user's Maven loads them.

Connect's standalone worker stores its offsets in a file. The distributed worker stores its state in
compacted topics, which logbus refuses. Streams also stores its state in compacted topics unless
topic.cleanup.policy=delete and topic.retention.ms=-1 are set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.client_programs import JAVA, Note
from support.fetched import fetched
from support.member_process import Member, eventually

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_java

pytestmark = [pytest.mark.compat, pytest.mark.timeout(500)]

STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
REFUSED = "cleanup.policy=compact is not built yet"
NOTHING = re.compile(r"^\b$")
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m")
CONVERTERS = {
    f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter"
    for part in ("key", "value")
}
ONCE = {
    "application.id": "streams-once",
    "processing.guarantee": "exactly_once_v2",
    "topic.cleanup.policy": "delete",
    "topic.retention.ms": "-1",
    "commit.interval.ms": "50",
    "statestore.cache.max.bytes": "0",
    "session.timeout.ms": "6000",
}
"""Settings with which Streams counts each word exactly once, and writes each count at once."""

Start = Callable[..., Member]


@pytest.fixture(scope="module")
def platform_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("platform")
    listed = folder / "class-path"
    goal = ("dependency:build-classpath", f"-Dmdep.outputFile={listed}")
    fetched(
        ["mvn", "-q", "-B", "-f", str(JAVA / "platform.xml"), *goal], folder, "Connect, Streams"
    )
    return listed.read_text("utf-8").strip()


@pytest.fixture
def start(platform_path: str, cluster: LocalCluster, tmp_path: Path) -> Start:
    """Return a function that starts a Java class with properties files, given as dictionaries."""

    def run(kind: str, *files: dict[str, str]) -> Member:
        paths = []
        for number, settings in enumerate(files):
            given = (
                settings if number else {"bootstrap.servers": cluster.bootstrap_servers} | settings
            )
            paths.append(tmp_path / f"{number}.properties")
            paths[-1].write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
        java = [find_java(), *JVM, log, "-cp", platform_path]
        return Member([*java, kind, *map(str, paths)], NOTHING, tmp_path)

    return run


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> Callable[[str, str, str], None]:
    return lambda what, asked, answer: answered(versions[what], asked, answer)


def connect_files(folder: Path, *, topic: str) -> tuple[dict[str, str], ...]:
    """Return the settings of a worker and of its connectors, which copy lines from the file in.txt
    of the folder through a topic to out.txt."""
    worker = {
        **CONVERTERS,
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "100",
        "listeners": "http://127.0.0.1:0",
    }
    file = "org.apache.kafka.connect.file.FileStream"
    reads = {"name": "reads", "connector.class": f"{file}SourceConnector", "topic": topic}
    writes = {"name": "writes", "connector.class": f"{file}SinkConnector", "topics": topic}
    source, sink = {"file": str(folder / "in.txt")}, {"file": str(folder / "out.txt")}
    return worker, reads | source, writes | sink


def written(folder: Path) -> list[str]:
    sink = folder / "out.txt"
    return sink.read_text().splitlines() if sink.exists() else []


def test_connect_standalone_worker_resumes_at_its_stored_offsets(
    start: Start, bus: Bus, tmp_path: Path, note: Callable[[str, str, str], None]
) -> None:
    """The worker copies lines from a file through a topic to another file."""
    bus.create_topic("connect-lines", partitions=1)
    source, files = tmp_path / "in.txt", connect_files(tmp_path, topic="connect-lines")
    source.write_text("one\ntwo\n")
    with start(STANDALONE, *files) as running:
        eventually(lambda: written(tmp_path) == ["one", "two"], lambda: running.said)
        running.leave()
    with source.open("a") as more:
        more.write("three\n")
    with start(STANDALONE, *files) as running:
        eventually(lambda: written(tmp_path) == ["one", "two", "three"], lambda: running.said)
    note("connect", "standalone, its file connectors, stopped and started again", "served")


def test_distributed_connect_worker_gets_the_reason_why_compacted_topics_are_refused(
    start: Start, note: Callable[[str, str, str], None]
) -> None:
    topics = {
        f"{part}.storage.{key}": value
        for part in ("config", "offset", "status")
        for key, value in (("topic", f"connect-{part}"), ("replication.factor", "1"))
    }
    worker = {**CONVERTERS, **topics, "group.id": "c", "listeners": "http://127.0.0.1:0"}
    with start(DISTRIBUTED, worker) as running:
        eventually(lambda: REFUSED in "".join(running.said), lambda: running.said)
    note("connect", "distributed: its compacted topics", "refused: InvalidConfig, with the reason")


def test_kafka_streams_counts_words_and_restores_its_store(
    start: Start, bus: Bus, tmp_path: Path, note: Callable[[str, str, str], None]
) -> None:
    bus.create_topic("streams-plaintext-input", partitions=1)
    bus.create_topic("streams-wordcount-output", partitions=1)
    with start(WORD_COUNT, {"state.dir": str(tmp_path / "refused")}) as running:
        eventually(lambda: REFUSED in "".join(running.said), lambda: running.said)
    note(
        "streams", "a store's compacted changelog topic", "refused: InvalidConfig, with the reason"
    )
    newer = {"group.protocol": "streams", "state.dir": str(tmp_path / "newer")}
    with start(WORD_COUNT, newer) as running:
        eventually(lambda: "UnsupportedVersionException" in "".join(running.said),
                   lambda: running.said)  # fmt: skip
    note("streams", "group.protocol=streams", "refused: UnsupportedVersion")
    kept = {
        "topic.cleanup.policy": "delete",
        "topic.retention.ms": "-1",
        "commit.interval.ms": "100",
    }
    counts: Counter[bytes] = Counter()

    def counted(words: dict[bytes, int]) -> bool:
        for row in reader.poll(0.2):
            counts[row.key or b""] = int.from_bytes(row.value or b"", "big")
        return counts == words

    def say(line: bytes) -> None:
        with bus.producer() as producer:
            producer.send("streams-plaintext-input", line).result()

    with bus.consumer("streams-wordcount-output", start="earliest") as reader:
        say(b"one word and one more")
        expected = {b"one": 2, b"word": 1, b"and": 1, b"more": 1}
        with start(WORD_COUNT, kept | {"state.dir": str(tmp_path / "first")}) as running:
            eventually(lambda: counted(expected), lambda: (counts, running.said))
            running.leave()
        # Delete the program's folder: Streams must restore the store from its topic.
        say(b"one")
        with start(WORD_COUNT, kept | {"state.dir": str(tmp_path / "second")}) as running:
            eventually(lambda: counted(expected | {b"one": 3}), lambda: (counts, running.said))
    asked = "word count with topic.cleanup.policy=delete, topic.retention.ms=-1; store restored"
    note("streams", asked, "served")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured") / "cluster"
    with LocalCluster(1, directory=folder, secure=True) as running:
        yield running


@pytest.fixture(scope="module")
def login(secured: LocalCluster) -> dict[str, str]:
    """Return Kafka's settings of a client of the secured cluster, with its addresses."""
    file = Path(str(secured.client_config)).with_suffix(".properties")
    return dict(line.split("=", 1) for line in file.read_text("utf-8").splitlines())


def test_connect_standalone_worker_copies_lines_over_sasl_ssl(
    start: Start,
    secured: LocalCluster,
    login: dict[str, str],
    tmp_path: Path,
    note: Callable[[str, str, str], None],
) -> None:
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic("connect-lines", partitions=1)
    worker, *connectors = connect_files(tmp_path, topic="connect-lines")
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    of_tasks = {
        f"{kind}.{key}": value for kind in ("producer", "consumer") for key, value in login.items()
    }
    with start(STANDALONE, worker | login | of_tasks, *connectors) as running:
        eventually(lambda: written(tmp_path) == ["one", "two"], lambda: running.said)
        running.leave()
    note("connect", f"SASL_SSL with {login['sasl.mechanism']}: standalone", "served")


def test_kafka_streams_counts_words_exactly_once_over_sasl_ssl(
    start: Start,
    secured: LocalCluster,
    login: dict[str, str],
    tmp_path: Path,
    note: Callable[[str, str, str], None],
) -> None:
    settings = {**ONCE, "state.dir": str(tmp_path / "state"), **login}
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        bus.create_topic("streams-plaintext-input", partitions=1)
        bus.create_topic("streams-wordcount-output", partitions=1)
        with bus.producer() as producer:
            for _ in range(20):
                producer.send("streams-plaintext-input", b"once")
        counts: list[int] = []

        def seen() -> bool:
            counts.extend(int.from_bytes(row.value or b"", "big") for row in reader.poll(0.2))
            return len(counts) >= 20

        with (
            bus.consumer("streams-wordcount-output", start="earliest") as reader,
            start(WORD_COUNT, settings) as running,
        ):
            eventually(seen, lambda: (counts, running.said))
            running.leave()
    assert counts == list(range(1, 21))
    asked = f"SASL_SSL with {login['sasl.mechanism']}: word count with exactly_once_v2"
    note("streams", asked, "served")


def test_killed_kafka_streams_application_counts_words_exactly_once(
    start: Start, bus: Bus, tmp_path: Path, note: Callable[[str, str, str], None]
) -> None:
    """Each line adds one to the count of the same word, so the counts must be 1, 2, … up to the
    number of lines."""
    for topic in ("streams-plaintext-input", "streams-wordcount-output"):
        bus.delete_topic(topic, if_exists=True)
        bus.create_topic(topic, partitions=1)
    counts: list[int] = []

    def seen(count: int) -> bool:
        counts.extend(int.from_bytes(row.value or b"", "big") for row in reader.poll(0.2))
        return len(counts) >= count

    with bus.consumer("streams-wordcount-output", start="earliest") as reader:
        # Kill the process twice before it has counted all lines.
        for lines, count in ((200, 50), (400, 250), (600, 600)):
            with bus.producer() as sender:
                for _ in range(200):
                    sender.send("streams-plaintext-input", b"once")
            folder = {"state.dir": str(tmp_path / f"{lines}")}
            with start(WORD_COUNT, ONCE | folder) as running:
                eventually(lambda: seen(count), lambda: (len(counts), running.said))  # noqa: B023
        seen(601)
    assert counts == list(range(1, 601))
    asked = "processing.guarantee=exactly_once_v2, killed twice: each line counted once"
    note("streams", asked, "served")
