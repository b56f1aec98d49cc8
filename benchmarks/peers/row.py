"""What a row of the table is: a piece of work that both sides do, and the goal it is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers.bench import Bench

LOGBUS, KAFKA = "logbus", "kafka"
FLOOR = "floor"
"""A side that is no system: what the work costs where reading or writing cost nothing, or where the
least that can do the work does it. It is held against nobody; the report says beside a missed goal
what it has of the peer's."""
ROUNDS = 5
"""How often each side runs after its first run, which is kept apart."""

Measures = dict[str, float]
"""What one run found, by name; a suffix tells the unit: ``_per_s``, ``_ms``, ``_s``, ``_mb``."""
Processes = dict[str, dict[str, float]]
"""What a run cost by role: ``cpu_s`` and ``peak_mb``."""


def is_floor(side: str) -> bool:
    """Whether a side of this name is no system: ``floor``, or ``floor, …`` where a row has more."""
    return side.partition(",")[0] == FLOOR


@dataclass(frozen=True)
class Goal:
    """The ratio logbus / peer of a measure is to be at least, or at most, ``limit``.

    ``limit`` None: no goal, the figure is shown for what it says. ``variant``: the goal is of that
    variant alone; "" means of each.
    """

    measure: str
    limit: float | None
    better: str = "more"
    variant: str = ""
    of: str = "runs"
    """``runs``: the medians; ``first``: the first run of each side."""

    def __post_init__(self) -> None:
        assert self.better in ("more", "less") and self.of in ("runs", "first")

    @property
    def text(self) -> str:
        if self.limit is None:
            return "none"
        return f"{'≥' if self.better == 'more' else '≤'} {self.limit:g}"

    def is_met(self, ratio: float) -> bool | None:
        """None where there is no goal."""
        if self.limit is None:
            return None
        return ratio >= self.limit if self.better == "more" else ratio <= self.limit


@dataclass(frozen=True)
class Variant:
    """One set of settings that both sides run with.

    ``settings``: who is set how, in words, for the table. ``compression``: by side.
    """

    name: str = "defaults"
    settings: Mapping[str, str] = field(default_factory=dict)
    compression: Mapping[str, str] = field(default_factory=lambda: {LOGBUS: "none", KAFKA: "none"})


@dataclass(frozen=True)
class Side:
    """One side of a variant, ready to run.

    ``run``: does the work once and says what it measured. ``servers``: pids by role (``broker``,
    ``zookeeper``, …), asked before each run; every other process below this one is a client.
    ``settings``: how its servers are set, in words. ``within``: the servers that a run starts and
    ends itself, those that live now by role. ``cannot``: why this side is missing; the others run.
    """

    run: Callable[[], Measures]
    servers: Callable[[], Mapping[str, list[int]]] = dict
    settings: str = ""
    within: Callable[[], Mapping[str, list[int]]] = dict
    cannot: str = ""


def missing(why: object) -> Side:
    """A side that cannot run here."""

    def run() -> Measures:
        raise AssertionError("it is not run")

    return Side(run, cannot=str(why))


@dataclass(frozen=True)
class Row:
    """A row: ``name`` is its result's file and what ``ONLY=`` takes, ``number`` its place.

    ``open``: prepares a variant (servers, topics, input) and gives both sides by name, until the
    context ends. Raises fetch.Cannot where the row cannot run here.
    ``note``: what a reader must know to read the row rightly.
    ``bound``: what bounds the row, measured; the report says it where a goal is not met.
    ``ceiling``: the ratio that a logbus which costs nothing would have in a measure, by a variant
    as it is kept, where none of its sides is a floor; said beside a goal that is not met. None
    where nothing says it.
    ``derive``: measures that follow from what a run measured and what it cost.
    ``quick``: whether ``--quick`` runs it. ``rounds``: 1 for what is the same each time.
    ``seconds_max``: a variant that takes longer has failed.
    ``apart``: each side stands for itself: one that fails, or takes longer than ``seconds_max``
    by itself, is left out and said, and the others go on.
    """

    name: str
    number: int
    work: str
    goals: tuple[Goal, ...]
    open: Callable[[Bench, Variant], AbstractContextManager[Mapping[str, Side]]]
    variants: tuple[Variant, ...] = (Variant(),)
    note: str = ""
    bound: str = ""
    quick: bool = True
    rounds: int = ROUNDS
    seconds_max: float = 600.0
    apart: bool = False
    ceiling: Callable[[Mapping[str, Any], str], float | None] = field(default=lambda *_: None)
    derive: Callable[[Measures, Processes], Measures] = field(default=lambda *_: {})
