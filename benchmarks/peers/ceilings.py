"""Upper bounds of logbus's ratio in rows in which both sides use a tool of Kafka's as client. Such
a row has no floor. Its ``ceiling`` is a function of this module, which ``peers.missed`` calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peers.meter import CLIENTS
from peers.row import KAFKA, LOGBUS


def only_by_a_floor(_: Mapping[str, Any], __: str) -> None:
    """Return None: flushes may limit this row's rate, and only a measured floor would bound
    that."""


def without_servers(found: Mapping[str, Any], measure: str, *, count: int) -> float | None:
    """Return the highest possible ratio of a rate: that of servers without processor cost.

    While ``count`` records pass, the cores have W seconds, of which logbus's servers took b.
    Without b the same records take W - b, so the rate grows at most by W / (W - b). b includes what
    the servers took before the measurement, such as a group's join, so the bound is rather too
    high. It holds only if the processor is the limit. It is None if the processes took less than
    the cores had, because then the rate may wait for a disk or a timer, and None if the servers
    took all of it.
    """
    ours, theirs = found["sides"][LOGBUS], found["sides"][KAFKA]
    rate = ours["median"][measure]
    window = found["machine"]["cpus"] * count / rate
    spent = {role: each["cpu_s"] for role, each in ours["processes"].items()}
    taken = sum(spent.values()) - spent[CLIENTS]
    if taken >= window or sum(spent.values()) < window:
        return None
    return float(rate / theirs["median"][measure] * window / (window - taken))
