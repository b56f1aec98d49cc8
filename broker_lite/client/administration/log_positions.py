"""Positions in a log, as users type them: an offset, a distance from start or end, or a time.

The forms are ``earliest``, ``latest``, ``N`` (offset N), ``+N`` (N offsets after the earliest),
``-N`` (N offsets before the latest), and a time: ``@2026-11-20``, ``@2026-11-20T10:00:00Z``,
``@1763632800000`` (ms since 1970) or ``@-1h`` (one hour ago; the units are s, m, h and d). Only
``resolve`` and ``resolved_offsets`` do I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from broker_lite.config.time_text import parse_time_ms
from broker_lite.errors import InvalidRequestError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin


Kind = Literal["offset", "after_earliest", "before_latest", "time"]
_NUMBER = re.compile("([+-]?)([0-9]{1,18})")
_KINDS: Mapping[str, Kind] = {"": "offset", "+": "after_earliest", "-": "before_latest"}


class PositionSpec(NamedTuple):
    """A parsed log position. ``kind`` says whether ``value`` is an offset, a number of offsets from
    the log's start or end, or a time in ms since 1970."""

    kind: Kind
    value: int


def parse(text: str, now_ms: int | None = None) -> PositionSpec:
    """Parse a log position, as a user types it. Relative times count from ``now_ms`` (ms since
    1970, by default now).

    Raises InvalidRequestError, which lists the accepted forms."""
    if text in ("earliest", "beginning"):
        return PositionSpec("after_earliest", 0)
    if text in ("latest", "end"):
        return PositionSpec("before_latest", 0)
    if number := _NUMBER.fullmatch(text):
        return PositionSpec(_KINDS[number[1]], int(number[2]))
    if text.startswith("@"):
        time_ms = parse_time_ms(text[1:], int(time.time() * 1000) if now_ms is None else now_ms)
        if time_ms is not None:
            # Use 0 for negative times, to which ListOffsets gives other meanings: -1 is the end of
            # the log.
            return PositionSpec("time", max(time_ms, 0))
    raise InvalidRequestError(
        f"{text!r} is not a position; give earliest, latest, an offset, +N, -N, @2026-11-20, "
        "@2026-11-20T10:00:00Z, @MILLISECONDS or @-1h"
    )


class ResolvedOffset(NamedTuple):
    """The offset for which a log position (``PositionSpec``) stands in one partition.

    ``wanted`` may be outside the log; ``offset`` is the nearest offset in the log."""

    offset: int
    wanted: int


def resolve(
    admin: Admin, partitions: Iterable[TopicPartition], spec: PositionSpec
) -> dict[TopicPartition, int]:
    """Convert a position, such as "10 before the end" or a time, to an offset for each partition.

    An offset outside the log becomes the log's start or end."""
    return {tp: row.offset for tp, row in resolved_offsets(admin, partitions, spec).items()}


def resolved_offsets(
    admin: Admin, partitions: Iterable[TopicPartition], spec: PositionSpec
) -> dict[TopicPartition, ResolvedOffset]:
    """Return, for each partition, the offset for which ``spec`` stands, and the nearest offset in
    the log."""
    tps = list(partitions)
    earliest = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
    latest = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
    timed = admin.list_offsets(dict.fromkeys(tps, spec.value)) if spec.kind == "time" else {}
    resolved = {}
    for partition in tps:
        first, last = earliest[partition].offset, latest[partition].offset
        match spec.kind:
            case "offset":
                wanted = spec.value
            case "after_earliest":
                wanted = first + spec.value
            case "before_latest":
                wanted = last - spec.value
            case "time":
                wanted = timed[partition].offset
                wanted = last if wanted < 0 else wanted
        resolved[partition] = ResolvedOffset(min(max(wanted, first), last), wanted)
    return resolved
