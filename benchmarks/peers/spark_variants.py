"""What each variant of Spark's rows sets: the session of both sides, each side's own options.

``defaults``: everything as it comes. ``as advised``: the session as README.md advises, on both
sides. ``lz4``: that, and both sides' topics compressed. ``tuned``: that, and what users of each
side change for the work, found by trial (benchmarks/README.md, "What Spark's users tune").
"""

from __future__ import annotations

from collections.abc import Mapping

from peers.row import KAFKA, LOGBUS, Variant
from peers.spark_session import CONNECTOR_WORDS, TUNED_WORDS

DEFAULTS, AS_ADVISED, LZ4, TUNED = "defaults", "as advised", "lz4", "tuned"

Options = Mapping[str, Mapping[str, str]]
"""By side."""

SOURCE: Options = {
    LOGBUS: {},
    KAFKA: {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "5000"},
}
"""Of what ``tuned`` reads. Spark's connector asks for the ends of its topic on the connection of a
fetch that waits for more, so it stands still for half a second a task with Kafka's own 500 ms."""
SINK: Options = {
    LOGBUS: {},
    KAFKA: {"kafka.batch.size": "262144", "kafka.linger.ms": "10"},
}
"""Of what ``tuned`` writes: the same words as for the producer's rows. logbus's sink makes batches
of 2 MB by itself."""
TUNED_BOUND = (
    "Spark converts the rows of its Python source, which is most of a read. A tuned Kafka source "
    "no longer waits. *At most*: a Python source that does nothing (the side floor)"
)


def is_advised(chosen: Variant) -> bool:
    """Whether the session has what README.md advises."""
    return chosen.name != DEFAULTS


def reading(chosen: Variant, side: str) -> dict[str, str]:
    """A source's options."""
    return dict(SOURCE[side]) if chosen.name == TUNED else {}


def writing(chosen: Variant, side: str) -> dict[str, str]:
    """A sink's options; compression is not said where there is none."""
    compression = chosen.compression[side]
    return {
        **({} if compression == "none" else {"kafka.compression.type": compression}),
        **(SINK[side] if chosen.name == TUNED else {}),
    }


def variant(name: str, **tuned: Options) -> Variant:
    """A variant of this name; ``tuned``: what its sources and sinks are given, for the table."""
    advised = f"{TUNED_WORDS}, on both sides"
    compression = LZ4 if name == LZ4 else "none"
    words = {
        side: "; ".join(f"its {part} {_said(options[side])}" for part, options in tuned.items())
        for side in (LOGBUS, KAFKA)
    }
    return Variant(
        name,
        settings={
            "spark": f"local[2], 2 GB, {'as it comes' if name == DEFAULTS else advised}",
            "connector": CONNECTOR_WORDS,
            **{f"{side}'s options": said for side, said in words.items() if said},
        },
        compression={LOGBUS: compression, KAFKA: compression},
    )


def _said(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "on its defaults"
