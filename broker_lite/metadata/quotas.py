"""Client quotas in ZooKeeper, at /quotas/<entity>.

An entity is a user, a client id, a pair of both, or an IP address.

Every broker keeps all quotas in memory (``MetadataSnapshot.quotas``). Any broker may change a
quota: one write sets the entity's znode (compare-and-set) and adds a notice to /changes. The
functions run on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata.loader import Unreadable, ZnodeKind, refreshed
from broker_lite.metadata.notices import security_changed
from broker_lite.metadata.registration import write_cluster_change
from broker_lite.metadata.store import Create, Delete, MetadataStore, Operation, Set
from broker_lite.metadata.znodes import decode_value, encode_value
from broker_lite.security.quotas import DEFAULT, Entity, Values

QUOTAS = "/quotas"
QUOTAS_MAX = 10_000
"""Maximum number of entities with quotas in a cluster."""
_DEFAULT = "*"
"""The name of a type's default in a path. No percent-encoded name contains this character.
"""

ClientQuotas = Mapping[Entity, Values]


def entity_path(entity: Entity) -> str:
    return f"{QUOTAS}/" + "&".join(
        f"{entity_type}={_DEFAULT if name is DEFAULT else quote(name, safe='').replace('.', '%2E')}"
        for entity_type, name in entity.parts
    )


def path_entity(path: str) -> Entity:
    pairs = (part.partition("=") for part in path.removeprefix(f"{QUOTAS}/").split("&"))
    return Entity(
        tuple((kind, DEFAULT if name == _DEFAULT else unquote(name)) for kind, _, name in pairs)
    )


def decode_quotas(path: str, data: bytes) -> Values:
    return {name: float(value) for name, value in decode_value(path, data)["quotas"].items()}


_KIND = ZnodeKind[Entity, Values](
    path_entity,
    decode_quotas,
    {},
    lambda _: "Its clients have no quota of this entity until it is set again: logbus quota set",
)


async def load_quotas(store: MetadataStore, unreadable: Unreadable) -> ClientQuotas:
    """Return all quotas, by entity. Add the znodes that cannot be read to ``unreadable``."""
    names = await store.children(QUOTAS) or []
    return await refresh_quotas(store, {}, [f"{QUOTAS}/{name}" for name in names], unreadable)


async def refresh_quotas(
    store: MetadataStore, known: ClientQuotas, paths: Iterable[str], unreadable: Unreadable
) -> ClientQuotas:
    """Return a copy of the quotas ``known``, with those of the changed znodes at ``paths`` read
    again. If ``paths`` is empty, return ``known`` itself.
    """
    changed = list(paths)
    if not changed:
        return known
    return await refreshed(store, known, changed, _KIND, unreadable)


async def change_quotas(
    store: MetadataStore,
    entity: Entity,
    change: Callable[[Values], Values],
    wait_connected: Callable[[], Awaitable[None]],
) -> None:
    """Replace the quotas of an entity by the result of ``change``, which receives the present
    quotas. ``change`` may be called again after a conflict.
    """
    path = entity_path(entity)

    async def write() -> Operation | None:
        znode = await store.get(path)
        before = {} if znode is None else _KIND.read(path, znode.data, {})
        after = dict(change(before))
        if after == before:
            return None
        data = encode_value({"quotas": after})
        if znode is None:
            if len(await store.children(QUOTAS) or ()) >= QUOTAS_MAX:
                raise InvalidRequestError(
                    f"{QUOTAS_MAX} entities have quotas, the maximum; use defaults"
                )
            return Create(path, data)
        return Set(path, data, znode.version) if after else Delete(path, znode.version)

    await store.write([Create(QUOTAS)])
    await write_cluster_change(store, write, wait_connected, security_changed(path))
