"""Create the first user of a cluster, by writing directly to ZooKeeper.

If brokers require logins, no client can create this user, because a client needs a user to log in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from broker_lite.errors import CoordinationUnavailableError, NoClusterError
from broker_lite.metadata import credentials
from broker_lite.metadata.security_znodes import replace_value
from broker_lite.metadata.znodes import CHANGES
from broker_lite.metadata.zookeeper.store import ZooKeeperStore
from broker_lite.metadata.zookeeper.tls import ZooKeeperTls
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import (
    ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    UserCredentials,
    derive_keys,
)

SESSION_TIMEOUT_MS = 6000


async def write_first_user(
    zookeeper: str,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    *,
    auth_file: str = "",
    tls: ZooKeeperTls | None = None,
) -> None:
    """Write a user's SCRAM credentials to ZooKeeper.

    ``zookeeper`` is ``host:port,…/chroot``. ``auth_file`` is the file with the brokers' credential
    at ZooKeeper, needed if only brokers may read the znodes. ``tls`` is None for a connection in
    plain text. Raises CoordinationUnavailableError, and NoClusterError if no broker of the cluster
    has ever started."""
    store = ZooKeeperStore(
        zookeeper, session_timeout_ms=SESSION_TIMEOUT_MS, auth_file=auth_file, tls=tls
    )

    def change(before: UserCredentials) -> UserCredentials:
        fresh = {}
        for mechanism in mechanisms:
            salt = os.urandom(SALT_BYTES)
            pair = derive_keys(mechanism, password, salt, ITERATIONS).pair()
            fresh[mechanism] = ScramCredential(salt, ITERATIONS, (pair,))
        return {**before, **fresh}

    async def wait_connected() -> None:
        if not store.connected:
            raise CoordinationUnavailableError(
                f"the connection to ZooKeeper at {zookeeper} was lost; try again"
            )

    await store.start(lambda _: None)
    try:
        if await store.get(CHANGES) is None:
            raise NoClusterError(
                f"ZooKeeper at {zookeeper} has no cluster; start its brokers first, or correct "
                "--zookeeper"
            )
        await replace_value(store, credentials.KIND, name, change, wait_connected)
    finally:
        await store.close()
