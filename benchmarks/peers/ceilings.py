"""Upper bounds of logbus's ratio in benchmarks where a tool of Kafka is the client of both systems.

Such a benchmark (a row of the table of results) has no floor (a side that does only the necessary
work). Instead, ``peers.missed`` calls the row's ``ceiling``, a function of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peers.meter import CLIENTS
from peers.row import KAFKA, LOGBUS


def without_servers(found: Mapping[str, Any], measure: str, *, count: int) -> float | None:
    """Return the highest possible ratio of a rate: the ratio with servers without processor cost.

    In the time of ``count`` records, all cores together have W seconds; logbus's servers use b of
    them. Without the servers, the same records take W - b, so the rate grows at most by the factor
    W / (W - b). b includes work of the servers before the measurement, such as a group's join, so
    the bound may be too high. The bound holds only if the processor is the limit. The result is
    None if the processes used less than W, because a disk or a timer may then limit the rate, or if
    the servers used all of W.
    """
    ours, theirs = found["sides"][LOGBUS], found["sides"][KAFKA]
    rate = ours["median"][measure]
    window = found["machine"]["cpus"] * count / rate
    spent = {role: each["cpu_s"] for role, each in ours["processes"].items()}
    taken = sum(spent.values()) - spent[CLIENTS]
    if taken >= window or sum(spent.values()) < window:
        return None
    return float(rate / theirs["median"][measure] * window / (window - taken))
