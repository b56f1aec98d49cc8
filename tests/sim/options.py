"""The options of a seed: sizes, speeds and kinds of faults (swarm testing).

Each seed leaves out whole kinds of faults, so that the remaining kinds reach deeper states. A seed
also draws the load of its clients, the delay of its network and the rates of its clocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sim import scheduler


@dataclass(frozen=True)
class Options:
    """The options of one simulated run: sizes, speeds and kinds of faults. ``draw`` derives them
    from a seed.
    """

    seed: int
    safety_s: float
    brokers: int = 3
    replication_factor: int = 3
    partitions: int = 2
    producers: int = 2
    row_producers: int = 1
    readers: int = 1
    think_s: float = 0.5
    """Average pause of a producer between two bursts, in seconds."""
    burst: int = 3
    flush_messages: int = 1
    min_insync: int = 0
    """The topic's ``min.insync.replicas``; 0 selects the default, a majority of its replicas."""
    replica_lag_ms: int = 10_000
    fetch_wait_ms: int = 1000
    session_timeout_s: float = 6.0
    net_delay_s: float = 0.002
    clock_rates: bool = False
    hints: bool = True
    """Whether brokers notice at once that a killed process has closed its connections."""
    fault_pause_s: float = 3.0
    faults: Sequence[str] = ()
    administrates: bool = False
    """Whether an administrator reassigns partitions, adds some and elects leaders."""
    administrator_pause_s: float = 8.0
    """Average seconds between two requests of the administrator."""
    rots: bool = False
    """Whether bits on disks are flipped."""
    loses: bool = False
    """Whether the seed also has a topic that allows unclean elections."""
    transacts: bool = False
    """Whether producers use transactions."""
    sinks: bool = True
    """Whether an exactly-once sink writes too, in seeds with transactions."""
    searches: bool = False
    """Whether leaders search for hanging transactions."""
    copy_batches: int = 30
    """Batches after which a coordinator copies its state."""
    segment_ms: int = 0
    """``segment.ms``, so that logs have several segments; 0 is the default: one segment a log."""

    @property
    def least_copies(self) -> int:
        """Return the default ``min.insync.replicas``: a majority of the replicas."""
        return self.replication_factor // 2 + 1


def draw(seed: int, kinds: Sequence[str], safety_s: float) -> Options:
    """Return random options for a seed, with some of ``kinds``, the names of kinds of faults."""
    rng = scheduler.stream(seed, "options")
    # Use a separate random generator, so that new options do not change the draws above.
    extra = scheduler.stream(seed, "administration")
    administrates = extra.random() < 0.3
    return Options(
        seed,
        safety_s,
        brokers=_of(extra, (3, 3, 4)) if administrates else 3,
        administrates=administrates,
        loses=scheduler.stream(seed, "loses").random() < 0.2,
        transacts=scheduler.stream(seed, "transacts").random() < 0.15,
        searches=scheduler.stream(seed, "searches").random() < 0.5,
        copy_batches=_of(scheduler.stream(seed, "copies"), (2, 30)),
        rots=scheduler.stream(seed, "rots").random() < 0.3,
        segment_ms=_of(scheduler.stream(seed, "segments"), (0, 0, 2_000, 10_000)),
        replication_factor=_of(rng, (3, 3, 3, 3, 3, 3, 2, 1)),
        partitions=_of(rng, (1, 1, 2, 3)),
        producers=_of(rng, (1, 1, 2)),
        row_producers=_of(rng, (0, 1, 1, 2)),
        think_s=_of(rng, (0.5, 1.0, 3.0, 5.0)),
        burst=_of(rng, (1, 2, 3, 5)),
        flush_messages=_of(rng, (1, 1, 1, 1, 5)),
        min_insync=_of(rng, (0, 0, 0, 0, 1)),
        replica_lag_ms=_of(rng, (10_000, 10_000, 3_000, 1_500)),
        fetch_wait_ms=_of(rng, (500, 1000, 2000)),
        session_timeout_s=_of(rng, (6.0, 6.0, 2.0)),
        net_delay_s=_of(rng, (0.001, 0.002, 0.002, 0.03)),
        clock_rates=rng.random() < 0.3,
        hints=rng.random() < 0.7,
        fault_pause_s=_of(rng, (1.0, 3.0, 3.0, 8.0)),
        faults=tuple(kind for kind in kinds if rng.random() < 0.5) or (kinds[0],),
    )


def _of(rng: random.Random, values: Sequence[float | int]) -> int:
    return values[rng.randrange(len(values))]  # type: ignore[return-value]
