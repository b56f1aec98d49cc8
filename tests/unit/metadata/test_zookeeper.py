"""Addresses; what needs a ZooKeeper is in tests/contract."""

from __future__ import annotations

import pytest

from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError
from broker_lite.metadata.zookeeper import read_brokers, split_address


def test_addresses() -> None:
    assert split_address("h:1/logbus") == ("h:1", "/logbus")
    assert split_address("a:1, b:2/x/y/") == ("a:1,b:2", "/x/y")
    assert split_address("h:1") == ("h:1", "")
    for bad in ("", "/logbus", "h", "h:x"):
        with pytest.raises(InvalidConfigError, match=r"zookeeper\.connect"):
            split_address(bad)


def test_nobody_there_is_said() -> None:
    with pytest.raises(CoordinationUnavailableError, match="is it running"):
        read_brokers("127.0.0.1:1/logbus", timeout_s=0.2)
