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
from broker_lite.metadata.zookeeper.blocking import read_brokers
from broker_lite.metadata.zookeeper.connection import read_auth_file, split_address
from broker_lite.metadata.zookeeper.store import ZooKeeperStore
from broker_lite.metadata.zookeeper.znode_acls import close_znodes


def test_zookeeper_address_is_split_into_hosts_and_chroot() -> None:
    assert split_address("h:1/logbus") == ("h:1", "/logbus")
    assert split_address("a:1, b:2/x/y/") == ("a:1,b:2", "/x/y")
    assert split_address("h:1") == ("h:1", "")
    for bad in ("", "/logbus", "h", "h:x"):
        with pytest.raises(InvalidConfigError, match=r"zookeeper\.connect"):
            split_address(bad)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("brokers:canary\n", 0o640, "other users may read it; run: chmod 600"),
        ("canary\n", 0o600, "write one line name:password"),
        ("a:canary\nb:canary\nc:canary\n", 0o600, "or two while the credential is rotated"),
        ("", 0o600, "write one line name:password"),
    ],
)
def test_error_for_an_unusable_zookeeper_credential_file_names_the_file_but_not_its_content(
    tmp_path: Path, text: str, mode: int, message: str
) -> None:
    file = tmp_path / "auth"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(
        InvalidConfigError, match=f"zookeeper.auth.file={file}: .*{message}"
    ) as said:
        read_auth_file(file)
    assert "canary" not in str(said.value)
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_auth_file(tmp_path / "absent")


@pytest.mark.real
def test_metadata_store_with_a_wrong_credential_fails_at_its_first_read_and_names_the_file(
    tmp_path: Path,
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for file in (own, other):
        file.write_text(f"brokers:{file.name}\n")
        file.chmod(0o600)
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        address = f"{server.address}/x"
        assert close_znodes(address, own, {"/a": b"1"}) == 2

        async def body() -> None:
            for file, is_refused in ((own, False), (other, True)):
                store = ZooKeeperStore(address, session_timeout_ms=6000, auth_file=str(file))
                try:
                    await store.start(lambda _: None)
                    if is_refused:
                        with pytest.raises(InvalidConfigError) as refused:
                            await store.get("/a")
                        assert f"zookeeper.auth.file={other}" in str(refused.value)
                        assert "belong to another credential" in str(refused.value)
                    else:
                        assert (await store.get("/a")).data == b"1"  # type: ignore[union-attr]
                finally:
                    await store.close()

        asyncio.run(body())


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
            # Until the thread that gets the signal has run, the other threads still answer.
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
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
