"""Check that the simulator detects the removal of every rule in the plants modules.

README.md says how many seeds each removal takes. For removals that take dozens of seeds, the tests
inject only the needed kinds of faults, or start shortly before a seed that detects the removal.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sim import scenario
from sim.damage_plants import under
from sim.plants import Plant
from sim.transaction_plants import PLANTS

SEEDS_MAX = 500
SAFETY_S = 40.0
BEGINS = {
    "a_cut_in_the_first_batch_begins_the_log_there": 4,
    "aborted_of_one_segment_only": 2,
    "any_disk_leads": 7,
    "any_epoch_is_counted": 8,
    "checksums_of_fetched_batches_are_not_compared": 16,
    "damaged_logs_are_cut_in_the_isr": 5,
    "deposed_coordinators_decide": 23,
    "diverging_log_begins_anew": 22,
    "epoch_ends_at_the_log_end": 24,
    "joining_replica_does_not_count": 86,
    "joins_though_moved_away": 67,
    "joins_without_the_epochs_start": 59,
    "late_verifications_count": 46,
    "leaving_replica_counts_no_more": 24,
    "lost_answers_mean_done": 129,
    "moves_are_not_followed_up": 5,
    "producers_are_not_cut": 10,
    "readers_are_not_told_of_a_cut": 27,
    "readers_know_the_last_epoch_only": 27,
    "state_deleted_before_its_copy_is_committed": 2,
    "strays_stay": 12,
    "truncation_keeps_transactions": 2,
    "versions_are_not_compared": 84,
}
"""The seed at which the search starts, by rule. If the simulator changes, another seed detects the
removal, and the test takes longer."""
FOCUSED: Mapping[str, Mapping[str, object]] = {
    # Detection needs a broker that returns with another disk, whose registration leaders see late.
    "old_registrations_fetch": {
        "faults": (
            "other_disk",
            "slow_watches",
            "slow_zookeeper",
            "power_cut_of_all",
            "disk_rolled_back",
            "pause_and_kill",
        ),
        "fault_pause_s": 1.0,
        "session_timeout_s": 2.0,
        "net_delay_s": 0.03,
        "replica_lag_ms": 1500,
        "replication_factor": 3,
    },
    # Detection needs controllers that are deposed while their writes are in flight.
    "controller_is_not_fenced": {
        "faults": ("suspect_the_controller", "slow_zookeeper", "pause", "expire_session", "kill"),
        "fault_pause_s": 1.0,
    },
    # Detection needs markers that overtake a coordinator's response.
    "late_verifications_count": {"faults": ("delay_messages",), "fault_pause_s": 1.0},
    # Detection needs an ISR member that is suspected just after another member died.
    "unclean_though_a_member_lives": {
        "faults": (
            "suspect_wrongly",
            "suspect_the_controller",
            "kill",
            "kill_and_start_at_once",
            "pause",
            "stop_gracefully",
        ),
        "fault_pause_s": 1.0,
    },
}
"""Faults and timings with which about ten seeds detect the removal, instead of a hundred."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_simulator_detects_every_planted_fault(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    begin = BEGINS.get(plant.__name__, 0)
    options = {**under(plant), **FOCUSED.get(plant.__name__, {})}
    for seed in range(begin, begin + SEEDS_MAX):
        try:
            scenario.run(seed, SAFETY_S, **options)
        except scenario.Failed as failed:
            print(f"{plant.__name__}: seed {seed}: {str(failed).splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice {plant.__name__}")


def test_at_least_twenty_documented_faults_are_planted() -> None:
    assert len(PLANTS) >= 20
    assert all(plant.__doc__ for plant in PLANTS)
    assert {plant.__name__ for plant in PLANTS} >= BEGINS.keys() | FOCUSED.keys()
