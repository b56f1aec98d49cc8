"""Rules about damage and loss, each with a switch that takes it out, beside those of ``plants``.

What they guard happens in some seeds only: ``under`` are the options with which each is looked for.
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
from broker_lite.storage.bounds import LogBounds

__all__ = ["PLANTS", "under"]

PLAIN: Mapping[str, object] = {"rots": False, "loses": False, "segment_ms": 0}
ROTS = {**PLAIN, "rots": True}
LOSES = {**PLAIN, "loses": True}
_WHERE: dict[str, Mapping[str, object]] = {}


def under(function: Plant) -> Mapping[str, object]:
    """Options of the seeds in which a plant is looked for."""
    return _WHERE.get(function.__name__, PLAIN)


def planted(options: Mapping[str, object]) -> Any:
    """A plant that is looked for under these options."""

    def note(function: Plant) -> Plant:
        _WHERE[function.__name__] = options
        return plant(function)

    return note


# Bits that flip.


@planted(ROTS)
def checksums_of_what_is_read_are_not_compared(patch: Patch) -> None:
    """A consumer takes what came, whatever its checksum says."""
    patch.setattr(received, "check_crc", lambda buffer, header: None)


@planted(ROTS)
def damage_is_not_repaired(patch: Patch) -> None:
    """A leader that is told of a damaged batch does nothing about it."""
    patch.setattr(Replica, "report_corruption", lambda self, offset, error: None)


@planted(ROTS)
def damaged_logs_are_cut_in_the_isr(patch: Patch) -> None:
    """A follower cuts its log at the damage while it counts as in sync."""
    resume = Follower.resume

    def cutting(self: Follower) -> list[Effect]:
        log = self.log
        if log.damaged_from is None or self.state.leader in (NO_BROKER, log.replica.broker_id):
            return resume(self)
        return [self._truncate(log.damaged_from)] if log.writes_in_flight == 0 else []

    patch.setattr(Follower, "resume", cutting)


@planted(ROTS)
def a_cut_in_the_first_batch_begins_the_log_there(patch: Patch) -> None:
    """A log whose first batch is cut begins anew where it was to be cut, not where it began."""
    begin_at = LogBounds._begin_at
    wanted = 0

    def cut_at(self: LogBounds, offset: int) -> tuple[int, int]:
        nonlocal wanted
        wanted = offset
        return _cut_at(self, offset)

    def there(self: LogBounds, offset: int, log_start: int, now_ms: int) -> None:
        begin_at(self, wanted, wanted, now_ms)

    _cut_at = LogBounds._cut_at
    patch.setattr(LogBounds, "_cut_at", cut_at)
    patch.setattr(LogBounds, "_begin_at", there)


# Unclean elections.


@planted(LOSES)
def readers_know_the_last_epoch_only(patch: Patch) -> None:
    """A reader goes on where its last epoch ended, and reads on where that is behind its offset."""

    def cut(
        self: Lineage, told: OffsetAndEpoch, offset: int, leader_epoch: int
    ) -> OffsetAndEpoch | None:
        return told._replace(leader_epoch=-1) if told.offset < offset else None

    patch.setattr(Lineage, "cut", cut)


@planted(LOSES)
def readers_are_not_told_of_a_cut(patch: Patch) -> None:
    """A leader serves what follows a reader's offset, whatever is before it."""
    patch.setattr(fetch, "_diverging", lambda log, wanted: None)


@planted(LOSES)
def unclean_though_a_member_lives(patch: Patch) -> None:
    """Who is in sync and registered, but suspected, does not keep another from being elected."""

    def careless(state: Any, replicas: Any, live: Any, registered: Any, epoch: int) -> Any:
        return elect_unclean(state, replicas, live, live, epoch)

    patch.setattr(controller, "elect_unclean", careless)
