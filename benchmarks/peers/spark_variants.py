"""The settings of each variant of Spark's rows: the session, and each side's options.

* ``defaults``: no settings.
* ``as advised``: the session of README.md, on both sides.
* ``lz4``: as advised, with both sides' topics compressed.
* ``tuned``: as advised, with what users of each side change for the work, found by trial
  (benchmarks/README.md, "What Spark's users tune").
"""

from __future__ import annotations

from collections.abc import Mapping

from peers.row import KAFKA, LOGBUS, Variant
from peers.spark_session import CONNECTOR_WORDS, TUNED_WORDS

DEFAULTS, AS_ADVISED, LZ4, TUNED = "defaults", "as advised", "lz4", "tuned"

Options = Mapping[str, Mapping[str, str]]
"""Options by side."""

SOURCE: Options = {
    LOGBUS: {},
    KAFKA: {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "5000"},
}
"""Options of ``tuned`` readers.

Spark's connector requests a topic's end offsets on the connection of a waiting fetch, so with
Kafka's default of 500 ms each task pauses for half a second.
"""
SINK: Options = {
    LOGBUS: {},
    KAFKA: {"kafka.batch.size": "262144", "kafka.linger.ms": "10"},
}
"""Options of ``tuned`` writers, as in the producer's rows. logbus's sink makes batches of 2 MB
by default."""
TUNED_BOUND = (
    "Spark converts the rows of its Python source, which is most of a read. A tuned Kafka source "
    "no longer waits. *At most*: a Python source that does nothing (the side floor)"
)


def is_advised(chosen: Variant) -> bool:
    """Return whether the session has the settings that README.md advises."""
    return chosen.name != DEFAULTS


def reading(chosen: Variant, side: str) -> dict[str, str]:
    """Return a source's options."""
    return dict(SOURCE[side]) if chosen.name == TUNED else {}


def writing(chosen: Variant, side: str) -> dict[str, str]:
    """Return a sink's options; without compression the option is left out."""
    compression = chosen.compression[side]
    return {
        **({} if compression == "none" else {"kafka.compression.type": compression}),
        **(SINK[side] if chosen.name == TUNED else {}),
    }


def variant(name: str, **tuned: Options) -> Variant:
    """Return a variant of this name; ``tuned`` describes its sources' and sinks' options for the
    table."""
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
