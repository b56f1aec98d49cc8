"""Define the rows of the comparison. A row is one benchmark: the work that both sides (the compared
systems) do, its variants (sets of settings), and its goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers.bench import Bench

LOGBUS, KAFKA = "logbus", "kafka"
FLOOR = "floor"
"""The name of a side that does only the necessary work, for example with reads that cost nothing.

A floor is no system and has no ratio. The report shows it beside a missed goal.
"""
ROUNDS = 5
"""Number of runs of each side (compared system) after its first run, which is stored separately."""

Measures = dict[str, float]
"""The measures of a run by name, whose suffix is the unit: ``_per_s``, ``_ms``, ``_s``, ``_mb``."""
Processes = dict[str, dict[str, float]]
"""The cost of a run by role (such as the brokers): ``cpu_s`` and ``peak_mb``."""


def is_floor(side: str) -> bool:
    """Return whether a side is a floor: ``floor``, or ``floor, …`` in a row with several floors."""
    return side.partition(",")[0] == FLOOR


def words(settings: Mapping[str, Any]) -> str:
    """Return settings as text, for a table of results."""
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "its defaults"


@dataclass(frozen=True)
class Goal:
    """A limit of a measure's ratio logbus / peer: at least or at most ``limit``.

    ``variant`` restricts the goal to one variant; "" means all variants.
    """

    measure: str
    limit: float
    better: str = "more"
    variant: str = ""

    @property
    def text(self) -> str:
        return f"{'≥' if self.better == 'more' else '≤'} {self.limit:g}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.better == "more" else ratio <= self.limit


@dataclass(frozen=True)
class Variant:
    """Settings with which both sides (the compared systems) of a benchmark run.

    ``settings`` describes them for the table. ``compression`` is the codec of both sides.
    """

    name: str = "defaults"
    settings: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"


@dataclass(frozen=True)
class Side:
    """One side (a compared system) of a variant (a benchmark with certain settings).

    * ``run``: a function that does the work once and returns its measures.
    * ``servers``: a function that is called before each run and returns pids by role (``broker``,
      ``zookeeper``, …). Every other child process is a client.
    * ``settings``: a description of the servers' settings.
    * ``within``: a function that returns the living servers that a run itself started, by role.
    * ``cannot``: the reason why this side cannot run; the other sides run.
    """

    run: Callable[[], Measures]
    servers: Callable[[], Mapping[str, list[int]]] = dict
    settings: str = ""
    within: Callable[[], Mapping[str, list[int]]] = dict
    cannot: str = ""

    @classmethod
    def of(cls, servers: Any, run: Callable[[Any], Measures]) -> Side:
        """Return the side (a compared system) whose work is ``run(servers)``."""
        return cls(partial(run, servers), servers.processes, servers.settings)

    @classmethod
    def missing(cls, why: object) -> Side:
        """Return a side (a compared system) that cannot run on this machine."""
        return cls(dict, cannot=str(why))


@dataclass(frozen=True)
class Row:
    """A row of the table of results: one benchmark.

    * ``name``: the name of the result's file, and the row's name in ``make bench ONLY=ROW``.
    * ``number``: the row's number in the table.
    * ``open``: a function that prepares a variant (servers, topics, input) and yields its sides by
      name. It raises fetch.Cannot if the benchmark cannot run on this machine.
    * ``bound``: a text that says what limits the ratio, for the report of a missed goal.
    * ``ceiling``: a function for rows without a FLOOR. It returns the highest possible ratio of a
      measure in a stored variant; None if the ratio is unknown.
    * ``derive``: a function that computes further measures from a run's measures and cost.
    * ``quick``: whether ``--quick`` runs the row.
    * ``rounds``: the number of rounds; 1 for results that never vary.
    * ``seconds_max``: the time in seconds after which a variant has failed.
    * ``apart``: whether the sides are independent. Then a side that fails or exceeds
      ``seconds_max`` is left out, and the others continue.
    """

    name: str
    number: int
    work: str
    goals: tuple[Goal, ...]
    open: Callable[[Bench, Variant], AbstractContextManager[Mapping[str, Side]]]
    variants: tuple[Variant, ...] = (Variant(),)
    bound: str = ""
    quick: bool = True
    rounds: int = ROUNDS
    seconds_max: float = 600.0
    apart: bool = False
    ceiling: Callable[[Mapping[str, Any], str], float | None] = field(default=lambda *_: None)
    derive: Callable[[Measures, Processes], Measures] = field(default=lambda *_: {})
