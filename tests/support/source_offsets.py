"""Make source offsets and log end offsets for tests of planning."""

from __future__ import annotations

from broker_lite.model import OffsetAndEpoch
from pyspark_logbus.offset_ranges import Live, LiveTopic
from pyspark_logbus.offsets import SourceOffset, TopicOffsets


def offset(topics, *, cluster="c", ids=None, epoch=0):
    return SourceOffset(
        cluster,
        {
            name: TopicOffsets(
                (ids or {}).get(name, f"id-{name}"),
                {p: OffsetAndEpoch(o, epoch) for p, o in enumerate(ends)},
            )
            for name, ends in topics.items()
        },
    )


def live(topics, *, ids=None, epoch=0):
    return Live(
        "c",
        {
            name: LiveTopic(
                (ids or {}).get(name, f"id-{name}"),
                {p: OffsetAndEpoch(o, epoch) for p, o in enumerate(ends)},
            )
            for name, ends in topics.items()
        },
    )


def ends(at, name="t"):
    return [at.topics[name].partitions[p].offset for p in sorted(at.topics[name].partitions)]
