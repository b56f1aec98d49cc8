"""Tests of broker settings that depend on each other."""

from __future__ import annotations

import pytest

from broker_lite.config import BrokerConfig


@pytest.mark.parametrize(
    ("authorizer", "local_reads", "tells_paths", "hands_out", "is_private"),
    [
        ("off", "auto", True, False, False),
        ("off", "true", True, False, False),
        ("off", "false", False, False, False),
        ("report", "auto", False, True, True),
        ("enforce", "auto", False, True, True),
        ("enforce", "false", False, False, True),
        ("enforce", "true", True, False, False),
    ],
)
def test_authorizer_and_local_reads_settings_decide_how_clients_open_log_files(
    authorizer: str, local_reads: str, tells_paths: bool, hands_out: bool, is_private: bool
) -> None:
    config = BrokerConfig(authorizer=authorizer, local_reads=local_reads)
    assert config.tells_paths == tells_paths
    assert config.hands_out_descriptors == hands_out
    assert config.keeps_files_private == is_private
