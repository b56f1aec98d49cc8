"""Register a broker in ZooKeeper: its id, its addresses, and the start counter of its data
directory.

The caller holds the lock of the data directory. Another registration with the same directory id
therefore belongs to a dead process, and is deleted without waiting for its ZooKeeper session to
expire.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping

from broker_lite.errors import (
    BrokerIdTakenError,
    InconsistentClusterIdError,
    InvalidConfigError,
    StaleDirectoryError,
    UnsupportedVersionError,
    WriteConflictError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import load_features, load_notices
from broker_lite.metadata.notices import CLUSTER_CHANGED, NoticeContent, announce, encode_notices
from broker_lite.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    Operation,
    Set,
    put,
    write_surely,
)
from broker_lite.metadata.znodes import DiskZnode, Registration

_log = logging.getLogger(__name__)

ATTEMPTS_MAX = 50
POLL_S = 0.1
"""Seconds between two checks whether another registration of the same broker id has ended."""


async def prepare(
    store: MetadataStore,
    cluster_id: str,
    new_id: Callable[[], str],
    features: Mapping[str, int],
) -> str:
    """Create the persistent znodes that are missing, and return the cluster's id.

    ``cluster_id`` is the id in the data directory, or "" for a new directory. A new cluster has the
    feature levels ``features`` from the start: without them, brokers would refuse early requests
    that need a feature, and clients do not retry these. Raises
    InconsistentClusterIdError if the data directory has a cluster id and ZooKeeper has another, or
    none."""
    for path in znodes.PERSISTENT_PATHS:
        if await store.get(path) is None:
            await store.write([Create(path)])
    for path, data in (
        (znodes.FEATURES, znodes.encode_features(features)),
        (znodes.CHANGES, encode_notices(())),
        (znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0)),
    ):
        if await store.get(path) is None:
            await store.write([Create(path, data)])
    while (znode := await store.get(znodes.CLUSTER_ID)) is None:
        if cluster_id:
            raise InconsistentClusterIdError(
                f"the data directory belongs to cluster {cluster_id}, but this ZooKeeper has no "
                "cluster: correct zookeeper.connect, restore ZooKeeper's data, or give an empty "
                "log.dir"
            )
        await store.write([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(new_id()))])
    stored_id = znodes.decode_cluster_id(znodes.CLUSTER_ID, znode.data)
    if cluster_id not in ("", stored_id):
        raise InconsistentClusterIdError(
            f"the data directory belongs to cluster {cluster_id}, but this ZooKeeper is of cluster "
            f"{stored_id}: correct zookeeper.connect or log.dir"
        )
    return stored_id


async def write_cluster_change(
    store: MetadataStore,
    operation: Callable[[], Awaitable[Operation | None]],
    wait_connected: Callable[[], Awaitable[None]],
    content: NoticeContent = CLUSTER_CHANGED,
) -> int:
    """Write an operation together with a change notice, which tells all brokers to read the changed
    znode. Return the notice's sequence number.

    The function ``operation`` returns the operation to write, and is called again after each
    conflict with another writer. If it returns None, nothing is written, and the result is the last
    notice's sequence number.
    Raises WriteConflictError after ``ATTEMPTS_MAX`` conflicts."""
    for _ in range(ATTEMPTS_MAX):
        notices = await load_notices(store)
        next_operation = await operation()
        if next_operation is None:
            return (await load_notices(store)).sequence
        announcement = announce(notices, content)
        write = [next_operation, announcement.write]
        if await write_surely(store, write, wait_connected) is None:
            return announcement.after.sequence
    raise WriteConflictError(
        f"znode {znodes.CHANGES} changed during each of {ATTEMPTS_MAX} writes; try again"
    )


async def write_broker_config(
    store: MetadataStore,
    broker_id: int,
    changes: Mapping[str, str | None],
    wait_connected: Callable[[], Awaitable[None]],
) -> int:
    """Change the settings that ZooKeeper stores for a broker; None in ``changes`` removes a
    setting. Return the sequence number of the change notice, by which brokers learn of the
    change."""

    async def write() -> Operation | None:
        znode = await store.get(znodes.BROKER_CONFIGS)
        path = znodes.BROKER_CONFIGS
        configs = {} if znode is None else znodes.decode_broker_configs(path, znode.data)
        own = {**configs.get(broker_id, {}), **changes}
        after = {key: value for key, value in own.items() if value is not None}
        if after == configs.pop(broker_id, {}):
            return None
        if after:
            configs[broker_id] = after
        data = znodes.encode_broker_configs(configs)
        return put(path, data, znode)

    return await write_cluster_change(store, write, wait_connected)


class Registrar:
    """Registers one broker, and registers it again each time its ZooKeeper session was lost.

    ``patience_ms`` is the time in ms to wait if the broker id is already registered: that
    registration may be of a dead process whose session is about to expire. ``wait_connected`` waits
    until a lost connection to ZooKeeper is restored, as in ``store.write_surely``."""

    def __init__(
        self,
        store: MetadataStore,
        registration: Registration,
        *,
        patience_ms: int,
        wait_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._registration = registration
        self._patience_ms = patience_ms
        self._wait_connected = wait_connected
        self._path = znodes.broker_path(registration.broker_id)
        self._tried = False

    async def register(self) -> int:
        """Register the broker and return its broker epoch.

        Raises StaleDirectoryError, BrokerIdTakenError, UnsupportedVersionError, and
        InvalidConfigError if the data directory belongs to another broker id. After
        CoordinationUnavailableError, the caller must call again once ZooKeeper is connected."""
        self.check_features(await load_features(self._store))
        waited_ms = 0.0
        for _ in range(ATTEMPTS_MAX + int(self._patience_ms / 1000 / POLL_S)):
            disk_write = await self.check_disk()
            occupant = await self._store.get(self._path)
            if occupant is not None and occupant.session_id == self._store.session_id:
                return occupant.created_zxid
            if occupant is not None:
                other = znodes.decode_registration(self._path, occupant.data)
                if other.directory_id == self._registration.directory_id:
                    await self._store.write([Delete(self._path, occupant.version)])
                    continue
                if waited_ms >= self._patience_ms:
                    raise self._id_taken_error(other)
                if waited_ms == 0:
                    _log.warning(
                        "%s; waiting for its session to end", self._id_taken_error(other).message
                    )
                await asyncio.sleep(POLL_S)
                waited_ms += POLL_S * 1000
                continue
            self._tried = True
            data = znodes.encode_registration(self._registration)
            await write_surely(
                self._store,
                [Create(self._path, data, ephemeral=True), disk_write],
                self._wait_connected,
            )
        raise WriteConflictError(
            f"broker {self._registration.broker_id} could not register: its registration keeps "
            "changing. Check that no other process uses the same data directory"
        )

    async def drain(self) -> None:
        """Publish that this broker is draining, that is, about to stop. The controller then moves
        leaders away from it."""
        await self._announce(dataclasses.replace(self._registration, draining=True))

    async def set_full(self, is_full: bool) -> None:
        """Publish whether this broker's disk is full."""
        await self._announce(dataclasses.replace(self._registration, is_full=is_full))

    async def _announce(self, registration: Registration) -> None:
        """Write the changed registration together with a change notice, because brokers do not
        watch the content of registrations."""
        self._registration = registration
        data = znodes.encode_registration(self._registration)

        async def write() -> Operation | None:
            znode = await self._store.get(self._path)
            if znode is None or znode.session_id != self._store.session_id:
                return None
            return Set(self._path, data, znode.version)

        await write_cluster_change(self._store, write, self._wait_connected)

    def check_features(self, raised: Mapping[str, int]) -> None:
        """Raise UnsupportedVersionError if this broker does not support one of the feature levels
        ``raised``, which the cluster has finalized."""
        ours = self._registration.features
        for name, level in raised.items():
            if ours.get(name, 0) < level:
                raise UnsupportedVersionError(
                    f"the cluster uses feature {name} at level {level}; this broker supports up to "
                    f"level {ours.get(name, 0)}: upgrade this broker"
                )

    async def check_disk(self) -> Operation:
        """Compare the data directory's start counter (how often a broker started on it) with the
        one in ZooKeeper, and return the write that stores the directory's in ZooKeeper.

        Raises InvalidConfigError if another broker id owns the directory, and StaleDirectoryError
        if it is an old copy: ZooKeeper has a higher counter, or an equal one of another process."""
        ours = self._registration
        path = znodes.disk_path(ours.directory_id)
        data = znodes.encode_disk(DiskZnode(ours.broker_id, ours.start_counter))
        znode = await self._store.get(path)
        if znode is None:
            return Create(path, data)
        disk = znodes.decode_disk(path, znode.data)
        if disk.broker_id != ours.broker_id:
            raise InvalidConfigError(
                f"broker.id={ours.broker_id}: data directory {ours.directory_id} holds replicas "
                f"of broker {disk.broker_id}: set broker.id={disk.broker_id}, or an empty log.dir"
            )
        # Each start raises the directory's counter. If ZooKeeper has the same counter already,
        # another copy of the directory has registered. But if this process has tried to register
        # before (``_tried``), it may itself have written the counter.
        if disk.start_counter > ours.start_counter or (
            disk.start_counter == ours.start_counter and not self._tried
        ):
            raise StaleDirectoryError(
                f"data directory {ours.directory_id} has start counter {ours.start_counter}, but "
                f"the cluster has seen {disk.start_counter} already: the directory was rolled back "
                "or copied, and acknowledged records may be missing. Use the newest copy, or an "
                "empty log.dir to start as a new replica"
            )
        return Set(path, data, znode.version)

    def _id_taken_error(self, other: Registration) -> BrokerIdTakenError:
        return BrokerIdTakenError(
            f"broker.id={other.broker_id} is taken by the broker at {other.endpoint} with data "
            f"directory {other.directory_id} (this broker's is {self._registration.directory_id}): "
            "give this broker another broker.id, or stop the other one"
        )
