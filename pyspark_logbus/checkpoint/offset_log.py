"""The offset log of a streaming query's checkpoint, as text, and what Kafka's source wrote there.

One file a batch, ``offsets/N``: the version, the batch's metadata, then for each source a line
where the batch ends (Spark's ``OffsetSeqLog``). Kafka's source writes ``{"topic":{"0":42}}``, and
where its first batch begins into ``sources/I/0`` (``KafkaSourceInitialOffsetWriter``). Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_lite.errors import InvalidConfigError, UnsupportedVersionError
from pyspark_logbus.offsets import SourceOffset

VERSION = "v1"

KafkaOffsets = Mapping[str, Mapping[str, int]]
"""Exclusive ends by topic and partition."""


class Batch(NamedTuple):
    """One file's content. ``ends``: a line for each source, ``-`` for one without an offset."""

    metadata: str
    ends: tuple[str, ...]

    def text(self) -> str:
        return "\n".join((VERSION, self.metadata, *self.ends))


def read_batch(name: str, text: str) -> Batch:
    """``name`` is for the error: InvalidConfigError for what Spark did not write, and
    UnsupportedVersionError where it wrote another format."""
    version, *lines = text.split("\n")
    if not re.fullmatch(r"v\d+", version) or not lines:
        raise InvalidConfigError(f"{name} is damaged, or no offset log of Spark's")
    if version != VERSION:
        raise UnsupportedVersionError(
            f"{name} is an offset log of version {version}; version {VERSION} is known "
            "here: begin with a new checkpointLocation, and startingOffsets by logbus mirror "
            "--translate"
        )
    return Batch(lines[0], tuple(lines[1:]))


def kafka_offsets(line: str) -> KafkaOffsets | None:
    """What a line says if Kafka's source wrote it; None for every other source's."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if _is_kafkas(found) else None


def _is_kafkas(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and bool(found)
        and all(
            isinstance(row, dict)
            and row
            and all(number.isdecimal() and type(at) is int for number, at in row.items())
            for row in found.values()
        )
    )


def initial_offsets(data: bytes) -> KafkaOffsets | None:
    """Where a Kafka source's first batch begins: of ``sources/I/0``, which a zero byte begins."""
    version, _, line = data.lstrip(b"\0").decode("utf-8", "replace").partition("\n")
    return kafka_offsets(line) if version == VERSION else None


def line(end: SourceOffset) -> str:
    """As Spark keeps what logbus's source answers: it compares this text."""
    return json.dumps(end.to_json())
