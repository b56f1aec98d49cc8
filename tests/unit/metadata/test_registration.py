"""Tests of how a broker writes its registration and broker settings to ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.notices import encode_notices
from broker_lite.metadata.registration import ATTEMPTS_MAX, Registrar, write_broker_config
from broker_lite.metadata.store import Create, Operation, Refused, Set, Znode
from broker_lite.model import Endpoint


class Store:
    """A metadata store; its first ``conflicts`` writes fail, as if the znode /changes had just
    changed."""

    session_id = 1

    def __init__(self, conflicts: int) -> None:
        self.conflicts = conflicts
        self.znodes = {znodes.CHANGES: Znode(encode_notices(()), 0, 1, 0)}
        self.writes = 0

    async def get(self, path: str, watch: bool = False) -> Znode | None:
        return self.znodes.get(path)

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        self.writes += 1
        if self.writes <= self.conflicts:
            return cast(Refused, "bad version")
        for operation in operations:
            assert isinstance(operation, (Create, Set))
            self.znodes[operation.path] = Znode(operation.data, 0, 1, 0)
        return None


async def connected() -> None:
    """Return at once, because this stand-in for ZooKeeper is always connected."""


def registrar(store: Store) -> Registrar:
    own = znodes.Registration(7, Endpoint("test", 1), "D" * 22, 1)
    store.znodes[znodes.broker_path(7)] = Znode(znodes.encode_registration(own), 0, 1, 1)
    return Registrar(cast(Any, store), own, patience_ms=0, wait_connected=connected)


def test_draining_a_broker_fails_after_50_write_conflicts() -> None:
    store = Store(conflicts=ATTEMPTS_MAX)
    with pytest.raises(WriteConflictError, match="/changes changed during each of 50 writes"):
        asyncio.run(registrar(store).drain())


def test_write_of_the_draining_state_is_retried_after_version_conflicts() -> None:
    store = Store(conflicts=ATTEMPTS_MAX - 1)
    asyncio.run(registrar(store).drain())
    path = znodes.broker_path(7)
    assert znodes.decode_registration(path, store.znodes[path].data).draining


def test_broker_settings_are_written_to_and_removed_from_zookeeper() -> None:
    store = Store(conflicts=1)

    def write(broker_id: int, **changes: str | None) -> dict[int, dict[str, str]]:
        asyncio.run(write_broker_config(cast(Any, store), broker_id, changes, connected))
        path = znodes.BROKER_CONFIGS
        return znodes.decode_broker_configs(path, store.znodes[path].data)

    assert write(1, a="1", b="2") == {1: {"a": "1", "b": "2"}}
    assert write(2, a="3") == {1: {"a": "1", "b": "2"}, 2: {"a": "3"}}
    writes = store.writes
    assert write(2, a="3", c=None)[2] == {"a": "3"}
    assert store.writes == writes
    assert write(1, a=None, b=None) == {2: {"a": "3"}}
