"""Parse the offset log of a streaming query's checkpoint, and the offsets of Kafka's source.

Each batch has a file ``offsets/N``: the version, the batch's metadata, then one line for each
source with the batch's end offset (Spark's ``OffsetSeqLog``). Kafka's source writes
``{"topic":{"0":42}}``. It writes the start of its first batch to ``sources/I/0`` for source I
(``KafkaSourceInitialOffsetWriter``). The module does no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_lite.errors import InvalidConfigError, UnsupportedVersionError
from pyspark_logbus.offsets import SourceOffset

VERSION = "v1"
"""The only version of the offset log that Spark writes today."""

KafkaOffsets = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition number: the start or the exclusive end of a batch."""


class MicroBatch(NamedTuple):
    """The content of one file of the offset log.

    ``ends`` has a line for each source. The line is ``-`` for a source without an offset.
    """

    metadata: str
    ends: tuple[str, ...]

    def text(self) -> str:
        return "\n".join((VERSION, self.metadata, *self.ends))


def read_batch(name: str, text: str) -> MicroBatch:
    """Parse one file of the offset log. Error messages contain ``name``.

    Raises InvalidConfigError for a malformed file, and UnsupportedVersionError unless it has
    version v1.
    """
    version, *lines = text.split("\n")
    if not re.fullmatch(r"v\d+", version) or not lines:
        raise InvalidConfigError(
            f"{name} is damaged, or not a file of Spark's offset log; name an intact copy of the "
            "query's checkpointLocation"
        )
    if version != VERSION:
        raise UnsupportedVersionError(
            f"{name} is an offset log of version {version}; logbus reads only {VERSION}. "
            "Start with a new checkpointLocation. As startingOffsets, use the endOffset of the old "
            "query's last progress report. If a mirror copied the topics, convert it: logbus "
            "mirror --translate"
        )
    return MicroBatch(lines[0], tuple(lines[1:]))


def kafka_offsets(line: str) -> KafkaOffsets | None:
    """Return the offsets of a line that Kafka's source wrote; None for any other source."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if _is_kafkas(document) else None


def _is_kafkas(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and bool(document)
        and all(
            isinstance(row, dict)
            and row
            and all(number.isdecimal() and type(at) is int for number, at in row.items())
            for row in document.values()
        )
    )


def initial_offsets(data: bytes) -> KafkaOffsets | None:
    """Return the start offsets in a file ``sources/I/0``, whose first byte is zero."""
    version, _, line = data.lstrip(b"\0").decode("utf-8", "replace").partition("\n")
    return kafka_offsets(line) if version == VERSION else None


def line(end: SourceOffset) -> str:
    """Return the line of the offset log for an end offset: its JSON (``SourceOffset.to_json``)."""
    return json.dumps(end.to_json())
