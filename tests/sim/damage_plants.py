"""Protocol rules about damage and lost records, each with a switch that removes the rule.

Only runs with certain simulation options can detect the removal of a rule. ``under`` returns these
options. A function that removes a rule is a *plant* (see the module ``plants``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.plants import PLANTS, Patch, Plant, plant

from broker_lite.client import received
from broker_lite.client.fetch.lineage import Lineage
from broker_lite.model import NO_BROKER, OffsetAndEpoch
from broker_lite.replication import controller
from broker_lite.replication.effects import Effect
from broker_lite.replication.election import elect_unclean
from broker_lite.replication.follower import Follower
from broker_lite.server.handlers import fetch
from broker_lite.server.partitions.replica import Replica
from broker_lite.storage.log import Log

__all__ = ["PLANTS", "under"]

PLAIN: Mapping[str, object] = {
    "rots": False, "loses": False, "segment_ms": 0, "searches": False,
}  # fmt: skip
ROTS = {**PLAIN, "rots": True}
LOSES = {**PLAIN, "loses": True}
_WHERE: dict[str, Mapping[str, object]] = {}


def under(function: Plant) -> Mapping[str, object]:
    """Return the simulation options of runs that can detect the rule's removal by this *plant*."""
    return _WHERE.get(function.__name__, PLAIN)


def planted(options: Mapping[str, object]) -> Any:
    """Return a decorator for a function that removes a rule (a *plant*). The decorator stores the
    options of runs that can detect the removal.
    """

    def note(function: Plant) -> Plant:
        _WHERE[function.__name__] = options
        return plant(function)

    return note


# The next functions remove rules about damaged bits on disk.


@planted(ROTS)
def checksums_of_fetched_batches_are_not_compared(patch: Patch) -> None:
    """Plant a fault: a consumer accepts batches without comparing their checksums."""
    patch.setattr(received, "check_crc", lambda buffer, header: None)


@planted(ROTS)
def damage_is_not_repaired(patch: Patch) -> None:
    """Plant a fault: a leader does not repair a batch that was reported as damaged."""
    patch.setattr(Replica, "report_corruption", lambda self, offset, error: None)


@planted(ROTS)
def damaged_follower_truncates_in_the_isr(patch: Patch) -> None:
    """Plant a fault: a follower truncates its corrupt log while it is in the ISR."""
    resume = Follower.resume

    def cutting(self: Follower) -> list[Effect]:
        log = self.log
        if log.damaged_from is None or self.state.leader in (NO_BROKER, log.replica.broker_id):
            return resume(self)
        return [self._truncate(log.damaged_from)] if log.writes_in_flight == 0 else []

    patch.setattr(Follower, "resume", cutting)


@planted(ROTS)
def truncation_in_the_first_batch_moves_the_log_start(patch: Patch) -> None:
    """Plant a fault: a log that is truncated in its first batch starts at the truncation offset."""
    begin_at = Log._begin_at
    wanted = 0

    def cut_at(self: Log, offset: int) -> tuple[int, int]:
        nonlocal wanted
        wanted = offset
        return _cut_at(self, offset)

    def there(self: Log, offset: int, log_start: int, now_ms: int) -> None:
        begin_at(self, wanted, wanted, now_ms)

    _cut_at = Log._cut_at
    patch.setattr(Log, "_cut_at", cut_at)
    patch.setattr(Log, "_begin_at", there)


# The next functions remove rules about unclean elections.


@planted(LOSES)
def readers_go_back_to_the_end_of_their_last_epoch(patch: Patch) -> None:
    """Plant a fault: after a truncation, a reader resumes at the end of the last shared epoch,
    although it has read records below this offset that differ."""

    def cut(
        self: Lineage, diverging: OffsetAndEpoch, offset: int, leader_epoch: int
    ) -> OffsetAndEpoch | None:
        return diverging._replace(leader_epoch=-1) if diverging.offset < offset else None

    patch.setattr(Lineage, "cut", cut)


@planted(LOSES)
def readers_do_not_learn_of_a_truncation(patch: Patch) -> None:
    """Plant a fault: a leader answers a fetch without checking the reader's last leader epoch
    against its log."""
    patch.setattr(fetch, "_diverging", lambda log, wanted: None)


@planted(LOSES)
def unclean_election_ignores_a_live_member(patch: Patch) -> None:
    """Plant a fault: an unclean election ignores an ISR member that is registered but suspected to
    be dead."""

    def careless(state: Any, replicas: Any, live: Any, registered: Any, epoch: int) -> Any:
        return elect_unclean(state, replicas, live, live, epoch)

    patch.setattr(controller, "elect_unclean", careless)
