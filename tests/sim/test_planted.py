"""Check that the simulator detects each planted fault: the removal of one rule from the code.

README.md says after how many seeds each removal is detected. If it takes dozens of seeds, the tests
inject only the needed kinds of faults, or start at a seed that detects the removal.
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
    "aborted_transactions_of_one_segment_only": 2,
    "acks_all_is_acknowledged_after_leader_append": 5,
    "any_directory_leads": 24,
    "checksums_of_fetched_batches_are_not_compared": 24,
    "damage_is_not_repaired": 4,
    "damaged_follower_truncates_in_the_isr": 10,
    "deposed_controller_is_not_fenced": 2,
    "deposed_coordinators_decide": 31,
    "diverged_follower_deletes_its_log": 22,
    "every_epoch_ends_at_the_log_end": 25,
    "fetches_of_old_registrations_count": 3,
    "flush_does_nothing": 4,
    "follower_truncates_to_the_high_watermark": 2,
    "high_watermark_counts_unflushed_leader_records": 5,
    "high_watermark_ignores_joining_replica": 128,
    "high_watermark_ignores_leaving_replica": 25,
    "leader_counts_fetches_of_any_epoch": 9,
    "lost_response_counts_as_applied": 129,
    "readers_do_not_learn_of_a_truncation": 28,
    "readers_go_back_to_the_end_of_their_last_epoch": 28,
    "reassignments_are_not_completed": 5,
    "records_from_before_a_seek_are_returned": 3,
    "removed_replica_keeps_the_leader_epoch": 39,
    "replica_joins_isr_below_epoch_start": 84,
    "replica_joins_isr_below_high_watermark": 4,
    "restarted_broker_leads_in_its_old_epoch": 2,
    "returning_leader_keeps_its_epoch": 2,
    "rolled_back_directory_registers": 2,
    "sink_writes_committed_batches_again": 1,
    "state_deleted_before_its_copy_is_committed": 26,
    "state_versions_are_not_compared": 104,
    "stray_logs_are_not_deleted": 12,
    "truncation_in_the_first_batch_moves_the_log_start": 4,
    "truncation_keeps_leader_epochs": 7,
    "truncation_keeps_producer_state": 10,
    "truncation_keeps_transactions": 9,
    "unclean_election_ignores_a_live_member": 1,
}
"""For each plant, the seed at which the search starts.

If the simulator changes, another seed detects the plant, and the test takes longer.
"""
FOCUSED: Mapping[str, Mapping[str, object]] = {
    # Detection needs a broker that returns with another disk, whose registration leaders see late.
    "fetches_of_old_registrations_count": {
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
    # Detection needs a controller, a coordinator and a leader on three different brokers.
    "deposed_coordinators_decide": {
        "brokers": 4,
        "partitions": 3,
        "replication_factor": 3,
        "administrates": False,
        "fault_pause_s": 1.0,
    },
    # Detection needs controllers that are deposed while their writes are in flight.
    "deposed_controller_is_not_fenced": {
        "faults": ("suspect_the_controller", "slow_zookeeper", "pause", "expire_session", "kill"),
        "fault_pause_s": 1.0,
    },
    # Detection needs a fetch that arrives after its replica was removed and added again.
    "removed_replica_keeps_the_leader_epoch": {
        "brokers": 4,
        "replication_factor": 3,
        "administrates": True,
        "administrator_pause_s": 2.0,
        "faults": ("delay_messages",),
        "fault_pause_s": 1.0,
    },
    # Detection needs an ISR member that is suspected just after another member died.
    "unclean_election_ignores_a_live_member": {
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
"""Options with which ten seeds, instead of a hundred, suffice to detect a plant."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_simulation_fails_if_any_one_rule_is_removed_from_the_broker(
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


def test_at_least_twenty_rules_can_be_removed_from_the_broker_to_test_the_simulation() -> None:
    assert len(PLANTS) >= 20
    assert all(plant.__doc__ for plant in PLANTS)
    assert {plant.__name__ for plant in PLANTS} >= BEGINS.keys() | FOCUSED.keys()
