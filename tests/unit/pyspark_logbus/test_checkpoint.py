"""Tests of the conversion of a Spark query's checkpoint from Spark's Kafka source to logbus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_lite.errors import InvalidConfigError, UnsupportedVersionError
from broker_lite.model import OffsetAndEpoch
from pyspark_logbus import offsets
from pyspark_logbus.checkpoint import offset_log
from pyspark_logbus.checkpoint.conversion import ConvertedOffset, convert
from pyspark_logbus.checkpoint.offset_log import KafkaOffsets
from pyspark_logbus.offsets import SourceOffset, TopicOffsets

METADATA = '{"batchWatermarkMs":17,"batchTimestampMs":18,"conf":{"spark.sql.x":"y\u2028z"}}'
FILES = '{"logOffset":3}'


def hundred_less(asked: KafkaOffsets) -> SourceOffset:
    topics = {}
    for topic, rows in asked.items():
        less = {int(number): OffsetAndEpoch(at - 100) for number, at in rows.items()}
        topics[topic] = TopicOffsets(f"id-{topic}", less)
    return SourceOffset("here", topics)


def kafkas(**ends: int) -> str:
    """Return the offsets line of a checkpoint as Spark's Kafka source writes it.

    Each of ``ends`` is the end offset of partition 0 of a topic. Partition 1 ends one offset later.
    """
    return json.dumps({t: {"0": at, "1": at + 1} for t, at in ends.items()}, separators=(",", ":"))


def checkpoint(folder: Path, batches: list[list[str]], commits: int, initial: str = "") -> Path:
    old = folder / "old"
    for name in ("offsets", "commits", "sources/0", "state/0/0"):
        (old / name).mkdir(parents=True)
    for number, lines in enumerate(batches):
        (old / "offsets" / str(number)).write_text("\n".join(["v1", METADATA, *lines]), "utf-8")
        (old / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(commits):
        (old / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (old / "state/0/0/1.delta").write_bytes(b"state")
    if initial:
        (old / "sources/0/0").write_bytes(b"\0v1\n" + initial.encode())
    return old


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


def ends(folder: Path, number: int, source: int = 0) -> SourceOffset:
    batch = offset_log.read_batch("", (folder / "offsets" / str(number)).read_text("utf-8"))
    assert batch.metadata == METADATA
    return offsets.from_json(json.loads(batch.ends[source]))


@pytest.mark.parametrize("commits", [3, 2])
def test_checkpoint_conversion_changes_only_the_offsets_of_the_last_two_batches(
    tmp_path: Path, commits: int
) -> None:
    batches = [[kafkas(t=200 + 50 * number), FILES, "-"] for number in range(3)]
    old, new = checkpoint(tmp_path, batches, commits), tmp_path / "new"
    before = content(old)
    conversion = convert(old, new, hundred_less)
    assert (conversion.batch, conversion.is_completed) == (2, commits == 3)
    assert conversion.offsets == [
        ConvertedOffset(0, "t", 0, 300, 200),
        ConvertedOffset(0, "t", 1, 301, 201),
    ]
    assert content(old) == before
    after = content(new)
    changed = {"offsets/1", "offsets/2"}
    crcs = {f"offsets/.{number}.crc" for number in (1, 2)}
    assert {k: v for k, v in before.items() if k not in changed | crcs} == {
        k: v for k, v in after.items() if k not in changed
    }
    expected = TopicOffsets("id-t", {0: OffsetAndEpoch(150), 1: OffsetAndEpoch(151)})
    assert ends(new, 1) == SourceOffset("here", {"t": expected})
    assert after["offsets/2"].decode().split("\n")[3:] == [FILES, "-"]


def test_converted_checkpoint_has_start_offsets_of_an_uncommitted_first_batch(
    tmp_path: Path,
) -> None:
    old = checkpoint(tmp_path, [[kafkas(t=200)]], 0, initial=kafkas(t=120))
    convert(old, tmp_path / "new", hundred_less)
    end = ends(tmp_path / "new", 0)
    assert end.begin == {"t": TopicOffsets("id-t", {0: OffsetAndEpoch(20), 1: OffsetAndEpoch(21)})}


def test_converted_checkpoint_has_no_start_offsets_for_an_uncommitted_second_batch(
    tmp_path: Path,
) -> None:
    old = checkpoint(tmp_path, [[kafkas(t=200)], [kafkas(t=300)]], 1)
    assert not convert(old, tmp_path / "new", hundred_less).is_completed
    assert [ends(tmp_path / "new", number).begin for number in (0, 1)] == [None, None]


def test_every_kafka_source_of_a_query_is_converted(tmp_path: Path) -> None:
    old = checkpoint(tmp_path, [[kafkas(t=200), FILES, kafkas(u=300, v=400)]], 1)
    conversion = convert(old, tmp_path / "new", hundred_less)
    assert [(row.source, row.topic, row.logbus) for row in conversion.offsets] == [
        (0, "t", 100), (0, "t", 101), (2, "u", 200), (2, "u", 201), (2, "v", 300), (2, "v", 301),
    ]  # fmt: skip
    assert ends(tmp_path / "new", 0, 2).topics.keys() == {"u", "v"}


@pytest.mark.parametrize(
    ("batches", "commits", "error", "text"),
    [
        ([], 0, InvalidConfigError, "is not the checkpoint of a query that has planned a batch"),
        (
            [[FILES, "-", "7", '{"a":{}}', '{"a":{"x":1}}']],
            1,
            InvalidConfigError,
            "has no Kafka source",
        ),
        ([[kafkas(t=200)]], 0, InvalidConfigError, "does not hold its start offsets"),
    ],
)
def test_unconvertible_checkpoint_is_refused_and_creates_no_files(
    tmp_path: Path, batches: Any, commits: int, error: type[Exception], text: str
) -> None:
    old = checkpoint(tmp_path, batches, commits)
    with pytest.raises(error, match=text):
        convert(old, tmp_path / "new", hundred_less)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


def test_checkpoint_conversion_refuses_an_unknown_version_and_an_existing_target(
    tmp_path: Path,
) -> None:
    old = checkpoint(tmp_path, [[kafkas(t=200)]], 1)
    with pytest.raises(InvalidConfigError, match="exists"):
        convert(old, old, hundred_less)
    (old / "offsets" / "0").write_text("v9\n{}\n")
    with pytest.raises(UnsupportedVersionError, match="version v9"):
        convert(old, tmp_path / "new", hundred_less)
    for damaged in ("", "v1", "garbage", "garbage\n{}"):
        (old / "offsets" / "0").write_text(damaged)
        with pytest.raises(InvalidConfigError, match="damaged"):
            convert(old, tmp_path / "new", hundred_less)
