"""Tests of ZooKeeper addresses, and of closing the metadata store while ZooKeeper hangs.

Tests of the whole interface of the store are in tests/contract.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata.zookeeper import ZooKeeperStore, read_brokers, split_address


def test_zookeeper_address_is_split_into_hosts_and_chroot() -> None:
    assert split_address("h:1/logbus") == ("h:1", "/logbus")
    assert split_address("a:1, b:2/x/y/") == ("a:1,b:2", "/x/y")
    assert split_address("h:1") == ("h:1", "")
    for bad in ("", "/logbus", "h", "h:x"):
        with pytest.raises(InvalidConfigError, match=r"zookeeper\.connect"):
            split_address(bad)


def test_read_brokers_reports_an_unreachable_zookeeper() -> None:
    with pytest.raises(CoordinationUnavailableError, match="is it running"):
        read_brokers("127.0.0.1:1/logbus", timeout_s=0.2)


@pytest.mark.real
def test_close_does_not_block_the_event_loop_while_zookeeper_hangs(tmp_path: Path) -> None:
    """Regression: a stopping broker's event loop blocked for 4 s, until ZooKeeper had ended the
    session."""
    with EmbeddedZooKeeper(tmp_path) as server:
        assert server.pid is not None
        pid = server.pid

        async def body() -> None:
            store = ZooKeeperStore(f"{server.address}/x", session_timeout_ms=6000)
            await store.start(lambda _: None)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.close(), 0.1)

        try:
            asyncio.run(body())
            closing = [row for row in threading.enumerate() if row.name == "zookeeper-close"]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert closing
        for thread in closing:
            thread.join()
