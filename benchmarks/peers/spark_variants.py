"""The settings of each variant of the Spark benchmarks.

A benchmark is a *row* of the table of results. It runs once for each *variant*: a combination of
settings of the Spark session with options of the *sides* (the compared systems). The variants:

* ``defaults``: no settings.
* ``as advised``: the session settings that README.md advises, for both sides.
* ``lz4``: as advised, with compressed topics on both sides.
* ``tuned``: as advised, with options that users of each side change for this work. They were found
  by trial.
* ``exactly once`` (writes only): as advised, and logbus's sink writes each row exactly once.
  Spark's connector has no such option: a repeated task writes its rows to Kafka again.
"""

from __future__ import annotations

from collections.abc import Mapping

from peers.row import KAFKA, LOGBUS, Variant, words
from peers.spark_session import CONNECTOR_WORDS, TUNED_WORDS

DEFAULTS, AS_ADVISED, LZ4, TUNED = "defaults", "as advised", "lz4", "tuned"
EXACTLY_ONCE = "exactly once"

Options = Mapping[str, Mapping[str, str]]
"""Options of Spark, by side (logbus or Kafka) and name."""

SOURCE: Options = {KAFKA: {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "5000"}}
"""Options of sources in ``tuned`` variants (settings that users change for this work).

Spark's connector requests a topic's end offsets on the connection of a waiting fetch. The broker
answers the requests of a connection in order, so with Kafka's default of 500 ms for
``fetch.max.wait.ms`` each task pauses for half a second.
"""
SINK: Options = {KAFKA: {"kafka.batch.size": "262144", "kafka.linger.ms": "10"}}
"""Options of sinks in ``tuned`` variants, as of the tuned ProducerPerformance.

logbus's sink needs none: it makes batches of 2 MB by default.
"""
ONCE: Options = {LOGBUS: {"deliveryGuarantee": "exactly_once"}}
"""Options of sinks in the variant ``exactly once``."""
TUNED_BOUND = (
    "Spark converts the rows of its Python source, which is most of a read. With tuned settings, "
    "Kafka's source does not pause in each task. *At most*: a Python source that does nothing (the "
    "side floor)"
)


def is_advised(chosen: Variant) -> bool:
    """Return whether a variant's Spark session has the settings that README.md advises."""
    return chosen.name != DEFAULTS


def reading(chosen: Variant, side: str) -> dict[str, str]:
    """Return the options of the Spark source with which a side (a compared system) reads. They
    depend on the variant of the benchmark (the settings of this run)."""
    return dict(SOURCE.get(side, {})) if chosen.name == TUNED else {}


def writing(chosen: Variant, side: str) -> dict[str, str]:
    """Return the options of the Spark sink with which a side (a compared system) writes in a
    variant. A variant without compression has no compression option."""
    packed = {"kafka.compression.type": chosen.compression}
    return {
        **({} if chosen.compression == "none" else packed),
        **{TUNED: SINK, EXACTLY_ONCE: ONCE}.get(chosen.name, {}).get(side, {}),
    }


def variant(name: str, **parts: Options) -> Variant:
    """Return the variant ``name`` of a Spark benchmark: its settings and compression.

    ``parts`` has the options of each part of the query, such as ``source`` or ``sink``. The variant
    holds them only as text for the report.
    """
    spark = "as it comes" if name == DEFAULTS else f"{TUNED_WORDS}, on both sides"
    changed = {
        f"{side}'s {part}": words(options)
        for part, sides in parts.items()
        for side, options in sides.items()
    }
    settings = {"spark": f"local[2], 2 GB, {spark}", "connector": CONNECTOR_WORDS, **changed}
    return Variant(name, settings, LZ4 if name == LZ4 else "none")


def variants(**tuned: Options) -> tuple[Variant, ...]:
    """Return the variants of most Spark benchmarks. ``tuned``: options of the variant ``tuned``."""
    return (*map(variant, (DEFAULTS, AS_ADVISED, LZ4)), variant(TUNED, **tuned))
