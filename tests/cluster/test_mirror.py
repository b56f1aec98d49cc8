"""Mirror one cluster to another: columnar batches, new records, kills, and other writers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.log_batches import iter_headers
from support.patience import until
from support.row_codec import Row, encode_rows

from broker_lite.bus import Bus, connect
from broker_lite.cli import main as command_line
from broker_lite.client.fetch.position import FetchPosition
from broker_lite.client.received import Record
from broker_lite.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidProducerEpochError,
    LogbusError,
    NonEmptyGroupError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.mirror.claim import MirrorClaim
from broker_lite.mirror.mirror import Mirror
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import CommittedOffset, PartitionKey, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.record.format import HEADER_BYTES
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import read_offsets, write_offsets
from broker_lite.storage.files import OsFiles
from pyspark_logbus.checkpoint import __main__ as checkpoint

WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def source(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Start the mirror's source cluster, which has one broker."""
    return make_module_cluster(1)


@pytest.fixture(scope="module")
def origin(source: LocalCluster) -> Iterator[Bus]:
    with connect(source.bootstrap_servers) as bus:
        yield bus


@pytest.fixture
def copied(origin: Bus) -> str:
    name = f"mirrored-{uuid.uuid4().hex[:8]}"
    origin.create_topic(name, partitions=2, config={"retention.ms": "86400000"})
    return name


@pytest.fixture
def mirror(origin: Bus, bus: Bus, copied: str) -> Iterator[Callable[..., Mirror]]:
    """Yield a function that runs a new Mirror until it has copied all records, as a restarted
    process does."""
    made: list[Mirror] = []

    def run(topics: str = copied) -> Mirror:
        said: list[str] = []
        made.append(
            Mirror(origin.bootstrap_servers, bus.bootstrap_servers, topics=topics, tell=said.append)
        )
        made[-1].said = said  # type: ignore[attr-defined]
        made[-1].run(once=True, stop=threading.Event(), on_sync=lambda: None)
        return made[-1]

    yield run
    for each in made:
        each.close()


def send(bus: Bus, topic: str, first: int, count: int, **options: Any) -> None:
    with bus.producer(**options) as producer:
        for n in range(first, first + count):
            producer.send(
                topic,
                None if n % 9 == 4 else f"value {n}",
                None if n % 2 else f"key {n}",
                headers=[("n", str(n).encode()), ("none", None)] if n % 3 else None,
                partition=n % 2,
                timestamp_ms=1_700_000_000_000 + n,
            )


def rows_of(bus: Bus, topic: str) -> list[list[tuple[Any, ...]]]:
    found: list[list[tuple[Any, ...]]] = [[], []]
    ends = bus.admin.list_offsets({TopicPartition(topic, p): -1 for p in (0, 1)})
    for tp, end in ends.items():
        with bus.consumer(tp, start="earliest") as consumer:
            while len(found[tp.partition]) < end.offset:
                found[tp.partition] += [tuple(record)[2:] for record in consumer.poll(5.0)]
    return found


def test_mirror_copies_arrow_batches_unchanged(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    send(origin, copied, 0, 1000, compression="lz4")
    send(origin, copied, 1000, 10)
    origin.admin.commit_offsets(f"g-{copied}", {TopicPartition(copied, 1): 77})
    done = mirror()
    assert rows_of(bus, copied) == rows_of(origin, copied)
    bodies = []
    for side in (origin, bus):
        reader = MirrorSource(side.bootstrap_servers, "test")
        topic_id = side.admin.cluster((copied,)).topic_id(copied)
        batches = reader.fetch_one(FetchPosition(TopicPartition(copied, 0), topic_id))
        assert batches and all(batch.header.is_columns for batch in batches)
        bodies.append([bytes(batch.buffer[HEADER_BYTES:]) for batch in batches])
        reader.close()
    assert bodies[0] == bodies[1]
    assert bus.admin.describe_configs([copied])["topic", copied]["retention.ms"].value == "86400000"
    committed = bus.admin.committed(f"g-{copied}")[TopicPartition(copied, 1)]
    assert committed.offset == 77 and committed.metadata.startswith("mirrored from ")

    # The group now commits on the target, so the mirror must no longer change its offsets.
    bus.admin.commit_offsets(f"g-{copied}", {TopicPartition(copied, 1): 80})
    origin.admin.commit_offsets(f"g-{copied}", {TopicPartition(copied, 1): 90})
    origin.admin.alter_configs(copied, {"segment.ms": "7200000"})
    bus.admin.alter_configs(copied, {"index.interval.bytes": "8192"})
    # Added partitions are copied with their records.
    origin.admin.create_partitions(copied, 3)
    added = TopicPartition(copied, 2)
    with origin.producer() as producer:
        producer.send(copied, "late", partition=2)
    done = mirror()
    assert done.copies[added].copied == 1
    assert len(bus.admin.cluster((copied,)).topics[copied].partitions) == 3
    with bus.consumer(added, start="earliest") as late:
        assert [record.value for record in late.poll(5.0)] == [b"late"]
    assert bus.admin.describe_configs([copied])["topic", copied]["segment.ms"].value == "7200000"
    assert [row.state for row in done.group_sync.rows if row.group == f"g-{copied}"] == ["own"]
    assert bus.admin.committed(f"g-{copied}")[TopicPartition(copied, 1)].offset == 80
    with bus.consumer(copied, group=f"h-{copied}", start="earliest") as member:
        member.poll(5.0)
        origin.admin.commit_offsets(f"h-{copied}", {TopicPartition(copied, 0): 3})
        origin.admin.alter_configs(copied, {"segment.ms": None})
        assert mirror().copies.aside == {}
    # The mirror updates settings that it copied, and keeps settings that the target changed.
    settings = bus.admin.describe_configs([copied])["topic", copied]
    assert settings["segment.ms"].source == "default"
    assert (settings["index.interval.bytes"].value, settings["retention.ms"].source) == (
        "8192",
        "topic",
    )


def test_mirror_copies_only_committed_records_of_transactions(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    def write(producer: Any, word: str) -> None:
        for number in range(3):
            producer.send(copied, f"{word}-{number}", partition=0)
        producer.send_arrow(copied, pa.table({"value": [f"{word}-columns"]}), partition=0)
        producer.flush()

    def named(*words: str) -> list[str]:
        return [f"{word}-{row}" for word in words for row in (0, 1, 2, "columns")]

    def copies(*words: str) -> None:
        """Run the mirror once; check that the copied topic has these rows at consecutive offsets,
        and no transaction markers.
        """
        mirror()
        tp = TopicPartition(copied, 0)
        end = bus.admin.list_offsets({tp: -1})[tp].offset
        found: list[str] = []
        with bus.consumer(tp, start="earliest") as consumer:
            while len(found) < end:
                found += [record.value.decode() for record in consumer.poll(5.0)]
        assert found == named(*words)

    with (
        origin.producer() as plain,
        origin.producer(transactional_id=f"one-{copied}") as one,
        origin.producer(transactional_id=f"two-{copied}") as two,
    ):
        for producer in (one, two):
            producer.begin()
        write(one, "kept")
        write(two, "void")
        write(plain, "plain")
        two.abort()
        one.commit()
        two.begin()
        write(two, "open")
        write(plain, "late")
        copies("kept", "plain")
        two.commit()
        copies("kept", "plain", "open", "late")


def test_records_that_were_copied_are_not_copied_again_if_the_stored_position_is_lost(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    send(origin, copied, 0, 500)
    first = mirror()
    noted = {tp: bus.admin.committed(first.name, [tp])[tp] for tp in first.copies}
    send(origin, copied, 500, 500)
    mirror()
    # Restore older positions, as if the mirror was killed after it copied records and before it
    # stored its position. Then remove all positions.
    bus.admin.commit_offsets(first.name, noted)
    again = mirror()
    assert {(copy.copied, copy.already) for copy in again.copies.values()} == {(0, 250)}
    bus.admin.commit_offsets(first.name, dict.fromkeys(noted, CommittedOffset(0)))
    bus.delete_topic(first.name)
    again = mirror()
    assert {(copy.copied, copy.already) for copy in again.copies.values()} == {(0, 500)}
    assert rows_of(bus, copied) == rows_of(origin, copied)


def lose_tails(cluster: LocalCluster, topic_id: str, end: int) -> None:
    """Truncate the topic's logs to ``end``, as if the disk had been restored from a backup."""
    broker = cluster.brokers[0]
    broker.kill()
    files, points = OsFiles(), paths.RECOVERY_POINTS
    for partition in (0, 1):
        (folder,) = broker.directory.rglob(f"{topic_id}-{partition}")
        (log,) = folder.glob("*.log")
        data = log.read_bytes()
        log.write_bytes(
            data[: next(at for at, row in iter_headers(data) if row.base_offset >= end)]
        )
        offsets = read_offsets(files, str(folder.parent), points)
        offsets[PartitionKey(topic_id, partition)] = end
        write_offsets(files, str(folder.parent), points, offsets)
    broker.start()


def test_mirror_copies_new_records_at_offsets_that_the_source_had_lost(
    source: LocalCluster, origin: Bus, bus: Bus, copied: str,
    mirror: Callable[..., Mirror],
) -> None:  # fmt: skip
    send(origin, copied, 0, 200)
    send(origin, copied, 200, 100)
    first = mirror()
    # Older mirrors stored no source epoch with a position. Remove it from partition 1.
    there = TopicPartition(copied, 1)
    noted = bus.admin.committed(first.name, [there])[there]
    said = {k: v for k, v in json.loads(noted.metadata).items() if k != "source_epoch"}
    bus.admin.commit_offsets(first.name, {there: noted._replace(metadata=json.dumps(said))})
    lose_tails(source, origin.admin.cluster().topic_id(copied), 100)
    # Partition 0 grows beyond the copied offset again, so only the epoch shows the loss.
    with origin.producer() as producer:
        for n in range(100):
            producer.send(copied, f"instead {n}", partition=0)
    done = mirror()
    assert done.copies.aside == {} and {copy.copied for copy in done.copies.values()} == {100, 0}
    send(origin, copied, 1000, 200)
    done = mirror()
    assert done.translated({copied: {"0": 100, "1": 100}}) == {copied: {"0": 150, "1": 150}}
    assert done.translated({copied: {"0": 99, "1": 99}}) == {copied: {"0": 99, "1": 99}}
    for copy, rows in zip(rows_of(bus, copied), rows_of(origin, copied), strict=True):
        values = [row[3] for row in copy]
        assert values[:100] + values[150:] == [row[3] for row in rows]


def test_two_mirrors_in_opposite_directions_copy_no_record_back(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    there = Mirror(
        origin.bootstrap_servers, bus.bootstrap_servers, topics=copied, tell=lambda _: None
    )
    back = Mirror(
        bus.bootstrap_servers, origin.bootstrap_servers, topics=copied, tell=lambda _: None
    )
    send(origin, copied, 0, 100)
    assert there.open(threading.Event())
    try:
        back.run(once=True, stop=threading.Event(), on_sync=lambda: None)
        assert "copy each record for ever" in back.copies.aside[copied].message
    finally:
        there.claim.release()
        there.close()
        back.close()
    # Mirrors may run one after the other: copies are marked, so only new records are copied back.
    mirror()
    send(bus, copied, 100, 10)
    back = Mirror(
        bus.bootstrap_servers, origin.bootstrap_servers, topics=copied, tell=lambda _: None
    )
    back.run(once=True, stop=threading.Event(), on_sync=lambda: None)
    assert sum(copy.copied for copy in back.copies.values()) == 10
    back.close()
    assert rows_of(bus, copied) == rows_of(origin, copied)


def test_offsets_are_translated_although_another_producer_wrote_to_the_copied_topic(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    tp, group = TopicPartition(copied, 0), f"g-{copied}"
    send(origin, copied, 0, 100)
    mirror()
    send(bus, copied, 5000, 20)
    send(origin, copied, 100, 100)
    origin.admin.commit_offsets(group, {tp: 60})
    done = mirror()
    assert sum(copy.foreign for copy in done.copies.values()) == 20
    assert bus.admin.committed(group)[tp].offset == 70
    assert done.translated({copied: {"0": 49, "1": -2}}) == {copied: {"0": 49, "1": -2}}
    with pytest.raises(InvalidConfigError, match="is not copied"):
        done.translated({copied: {"0": 101}})


def test_zk_based_group_resumes_from_copied_offsets(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    """Copied offsets must not turn the group into a Kafka group, which members of a ZooKeeper-based
    group cannot join."""
    group, native = f"n-{copied}", {"coordination": "zookeeper", "start": "earliest"}
    send(origin, copied, 0, 40)
    mirror()
    send(bus, copied, 5000, 20)
    send(origin, copied, 40, 20)
    with origin.consumer(copied, group=group, auto_commit=False, **native) as member:
        until(lambda: [member.poll(0.05), len(member.assignment())][1] == 2)
        member.seek(TopicPartition(copied, 0), 15)
        member.seek(TopicPartition(copied, 1), 25)
        member.commit()
        done = mirror()
    # Ten foreign records follow the first twenty of each partition.
    assert {row.tp.partition: row.target_offset for row in done.group_sync.rows} == {0: 15, 1: 35}
    (listed,) = [row for row in bus.admin.list_groups() if row.group == group]
    assert (listed.kind, listed.protocol_type) == ("Classic", "")
    found: dict[int, int] = {}
    with bus.consumer(copied, group=group, **native) as member:
        while len(found) < 2:
            for record in member.poll(5.0):
                found.setdefault(record.partition, record.offset)
        with pytest.raises(InconsistentGroupProtocolError):
            bus.consumer(copied, group=group).poll(WAIT_SECONDS)
    assert found == {0: 15, 1: 35}
    (listed,) = [row for row in bus.admin.list_groups() if row.group == group]
    assert (listed.kind, listed.state) == ("Native", "Empty")
    assert {row.state for row in mirror().group_sync.rows if row.group == group} == {"own"}


def test_checkpoint_of_a_spark_query_on_kafka_is_converted_for_the_mirrored_topic(
    origin: Bus,
    bus: Bus,
    copied: str,
    mirror: Callable[..., Mirror],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = tmp_path / "old"
    for name in ("offsets", "commits"):
        (old / name).mkdir(parents=True)
    (old / "commits" / "0").write_text("v1\n{}")

    def carry(new: str, *arguments: str, at: int = 60, topic: str = copied) -> tuple[int, str, str]:
        """Convert the checkpoint of a query that used Spark's Kafka source; return the command's
        exit code, stdout and stderr.
        """
        ends = json.dumps({topic: {"0": at, "1": 50}})
        (old / "offsets" / "0").write_text(f"v1\n{{}}\n{ends}")
        given = [str(old), str(tmp_path / new), "-b", bus.bootstrap_servers, *arguments]
        capsys.readouterr()
        code = command_line.run([*given, "-o", "json"], checkpoint.main, "logbus checkpoint")
        return code, *capsys.readouterr()

    source = ("--from", origin.bootstrap_servers)
    send(origin, copied, 0, 100)
    mirror()
    early = "offset 60 is not copied yet; the target has records before 50"
    assert early in json.loads(carry("early", *source)[2])["message"]
    send(bus, copied, 5000, 20)
    send(origin, copied, 100, 100)
    mirror()
    done = json.loads(carry("new", *source)[1])
    moved = [(row["partition"], row["kafka"], row["logbus"]) for row in done["offsets"]]
    assert done["is_completed"] and moved == [(0, 60, 70), (1, 50, 60)]
    end = json.loads((tmp_path / "new/offsets/0").read_text().splitlines()[2])
    view = bus.admin.cluster((copied,))
    assert end["cluster"] == view.cluster_id
    assert end["topics"][copied]["id"] == view.topic_id(copied)
    assert end["topics"][copied]["offsets"] == {"0": 70, "1": 60}
    # The checkpoint of a query that read this same cluster keeps its offsets.
    assert json.loads(carry("same")[1])["offsets"][0]["logbus"] == 60
    code, _, said = carry("beyond", at=1000)
    assert code == 1 and "name its source with --from" in said
    code, _, said = carry("nowhere", topic=f"{copied}-x")
    assert code == 1 and "copy the topic first" in said
    closed = command_line.run([str(old), str(tmp_path / "x"), "-b", "127.0.0.1:1"], checkpoint.main)
    assert closed == 3, "the exit code of every command without a cluster"
    assert {each.name for each in tmp_path.iterdir()} == {"old", "new", "same"}


def test_mirror_refuses_a_target_topic_with_log_append_time(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    """LogAppendTime overwrites the timestamps by which a restarted mirror recognises copies."""
    bus.create_topic(copied, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    send(origin, copied, 0, 100)
    refused = mirror()
    assert refused.copies == {} and rows_of(bus, copied) == [[], []]
    cure = f"logbus topic alter {copied} -c message.timestamp.type=CreateTime"
    assert cure in refused.copies.aside[copied].message
    bus.admin.alter_configs(copied, {"message.timestamp.type": "CreateTime"})
    assert mirror().copies.aside == {}
    assert rows_of(bus, copied) == rows_of(origin, copied)


def test_mirror_copies_new_records_until_it_is_stopped(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    running = Mirror(
        origin.bootstrap_servers, bus.bootstrap_servers, topics=copied, tell=lambda _: None
    )
    stop, ended = threading.Event(), threading.Event()

    def run() -> None:
        running.run(once=False, stop=stop, on_sync=ended.set)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: copied in bus.topics())
        with bus.consumer(copied, start="earliest") as consumer:
            read: list[Record] = []
            for first in (0, 100):
                send(origin, copied, first, 100)
                until(lambda end=first + 100: read.extend(consumer.poll(1.0)) or len(read) >= end)
    finally:
        stop.set()
        thread.join(WAIT_SECONDS)
        running.close()
    assert ended.is_set() and not thread.is_alive()
    assert rows_of(bus, copied) == rows_of(origin, copied)
    assert sum(copy.copied for copy in mirror().copies.values()) == 0


def test_mirror_copies_records_while_it_copies_the_offsets_of_many_groups(
    origin: Bus, bus: Bus, copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: no record was copied until the offsets of all groups were copied."""
    monkeypatch.setattr("broker_lite.mirror.mirror.CHECK_MS", 0)
    monkeypatch.setattr("broker_lite.mirror.mirror.SYNC_MS", 0)
    count, stop = 20, threading.Event()
    for number in range(count):
        origin.admin.commit_offsets(f"{copied}-{number}", {TopicPartition(copied, 0): 0})
    servers = origin.bootstrap_servers, bus.bootstrap_servers
    running = Mirror(*servers, topics=copied, groups=f"{copied}-.*", tell=lambda _: None)
    committed, copies = running.target.admin.committed, []

    def counting(group: str, *args: Any) -> Any:
        if group.startswith(copied):
            if not copies:
                send(origin, copied, 0, 100)
            copies.append(sum(copy.copied for copy in running.copies.values()))
            if len(copies) == count:
                stop.set()
        return committed(group, *args)

    monkeypatch.setattr(running.target.admin, "committed", counting)
    running.run(once=False, stop=stop, on_sync=lambda: None)
    running.close()
    assert copies[0] == 0 < copies[count - 1]


def test_mirror_stops_copying_a_topic_switched_to_log_append_time(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("broker_lite.mirror.mirror.CHECK_MS", 100)
    monkeypatch.setattr("broker_lite.mirror.mirror.SAVE_MS", 3_600_000)
    running = Mirror(
        origin.bootstrap_servers, bus.bootstrap_servers, topics=copied, tell=lambda _: None
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=lambda: running.run(once=False, stop=stop, on_sync=lambda: None)
    )
    thread.start()
    try:
        # With SAVE_MS of an hour, the mirror stores only its first positions.
        send(origin, copied, 0, 50)
        until(lambda: sum(copy.copied for copy in list(running.copies.values())) == 50)
        send(origin, copied, 50, 50)
        until(lambda: sum(copy.copied for copy in list(running.copies.values())) == 100)
        bus.admin.alter_configs(copied, {"message.timestamp.type": "LogAppendTime"})
        until(lambda: copied in running.copies.aside)
    finally:
        stop.set()
        thread.join(WAIT_SECONDS)
        running.close()
    bus.admin.alter_configs(copied, {"message.timestamp.type": "CreateTime"})
    again = mirror()
    assert {(copy.copied, copy.already) for copy in again.copies.values()} == {(0, 0)}


def test_only_one_mirror_of_a_source_is_active(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    def made() -> Mirror:
        return Mirror(
            origin.bootstrap_servers, bus.bootstrap_servers,
            topics=copied, session_timeout_ms=1000, tell=lambda _: None,
        )  # fmt: skip

    first, second, stop = made(), made(), threading.Event()
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            first.run(once=False, stop=stop, on_sync=lambda: None)
            ended.append(None)
        except LogbusError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        send(origin, copied, 0, 100)
        until(lambda: sum(copy.copied for copy in first.copies.values()) == 100)
        with pytest.raises(NonEmptyGroupError, match="runs already: logbus-mirror at"):
            second.run(once=True, stop=threading.Event(), on_sync=lambda: None)
        # The first mirror must stop writing after another mirror took over its claim.
        taken = MirrorClaim(bus.bootstrap_servers, "other", 1000)
        taken._group = first.name
        taken._join()
        send(origin, copied, 100, 100)
        until(lambda: bool(ended))
        assert isinstance(ended[0], FencedInstanceIdError)
        taken.release()
    finally:
        stop.set()
        thread.join(WAIT_SECONDS)
        first.close()
        second.close()
    # Brokers refuse records that an earlier mirror's producer sends with an older epoch.
    before = mirror()
    signature = before._checkpoint.signature
    assert signature is not None
    send(origin, copied, 200, 100)
    after = mirror()
    assert after._checkpoint.signature is not None
    assert after._checkpoint.signature[1:] == (signature.producer_id, signature.producer_epoch + 1)
    late = MirrorTarget(bus.bootstrap_servers, "late")
    late.begin(signature.producer_id, signature.producer_epoch, lambda: None)
    buffer = encode_rows([Row(0, 1, b"k", b"again", ())])
    piece = RewrittenBatch(buffer, read_header(buffer), ((0, 1),))
    refused = late.write({TopicPartition(copied, 0): [piece]}, lambda *_: None)
    assert [type(error) for error in refused.values()] == [InvalidProducerEpochError]
    late.close()
    assert rows_of(bus, copied) == rows_of(origin, copied)


def test_mirror_without_matching_topics_fails_only_if_it_shall_run_once(
    origin: Bus, bus: Bus, copied: str, mirror: Callable[..., Mirror]
) -> None:
    with pytest.raises(InvalidConfigError, match=f"'no.*' matches no topic at .*{copied}"):
        mirror("no.*")
    said: list[str] = []
    stop = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        stop.set()

    live = Mirror(origin.bootstrap_servers, bus.bootstrap_servers, topics="no.*", tell=tell)
    live.run(once=False, stop=stop, on_sync=lambda: None)
    live.close()
    assert len(said) == 1 and said[0].endswith("; looking for it every 10 s")


def test_mirror_command_reports_the_copied_partitions_and_groups(
    origin: Bus, cluster: LocalCluster, bus: Bus, copied: str, tmp_path: Path
) -> None:
    def run(*arguments: str, code: int = 0, source: str = origin.bootstrap_servers) -> Any:
        to = ("--from", source, "--to", cluster.bootstrap_servers)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", "mirror", *to, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done

    send(origin, copied, 0, 10)
    origin.admin.commit_offsets("cli-group", {TopicPartition(copied, 0): 2})
    done = run("--topics", copied, "--once", "-o", "jsonl")
    report = json.loads(done.stdout)
    assert [row["target_offset"] for row in report["partitions"]] == [5, 5]
    assert "logbus groups describe cli-group" in done.stderr
    again = run("--topics", copied, "--once", "-o", "table").stdout
    assert "cli-group" in again and "SOURCE OFFSET" in again
    origin.delete_topic(copied)
    origin.create_topic(copied, partitions=2)
    done = run("--topics", copied, "--once", code=1)
    assert "deleted and recreated" in done.stderr
    same = run("--once", code=1, source=cluster.bootstrap_servers)
    assert "are the same cluster" in same.stderr
    origin.create_topic(f"{copied}-too")
    some = run("--topics", f"{copied}-too|nosuch", "--once", code=1)
    assert f"there is no topic nosuch at {origin.bootstrap_servers}\n" in some.stderr
    assert "takes JSON like" in run("--translate", "{5", code=1).stderr
    assert "--topics" in run("--topics", "(", code=2).stderr
