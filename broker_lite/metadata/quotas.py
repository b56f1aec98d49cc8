"""Client quotas in ZooKeeper, at /quotas/<entity>. An entity is a user, a client id, a user
with a client id, or an IP address.

Every broker keeps all quotas in memory (``MetadataSnapshot.quotas``), and any broker may change
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata.security_znodes import ZnodeKind, replace_value
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.znodes import decode_value, encode_value
from broker_lite.security.quotas import DEFAULT, KEYS, Entity, Values

QUOTAS = "/quotas"
QUOTAS_MAX = 10_000
"""Maximum number of entities with quotas in a cluster."""
_DEFAULT = "*"
"""The name, in a znode's path, of the default for all entities of a type, such as all users.
Percent-encoded names never contain this character."""


def entity_path(entity: Entity) -> str:
    return f"{QUOTAS}/" + "&".join(
        f"{entity_type}={_DEFAULT if name is DEFAULT else quote(name, safe='').replace('.', '%2E')}"
        for entity_type, name in entity.parts
    )


def path_entity(path: str) -> Entity:
    """Return the entity of a znode's path. Raises ValueError for an entity type that this version
    of logbus does not know."""
    pairs = [part.partition("=") for part in path.removeprefix(f"{QUOTAS}/").split("&")]
    if not all(kind in KEYS for kind, _, _ in pairs):
        raise ValueError(f"{path} has an unknown entity type")
    return Entity(
        tuple((kind, DEFAULT if name == _DEFAULT else unquote(name)) for kind, _, name in pairs)
    )


def decode_quotas(path: str, data: bytes) -> Values:
    return {name: float(value) for name, value in decode_value(path, data)["quotas"].items()}


KIND = ZnodeKind[Entity, Values](
    QUOTAS,
    entity_path,
    path_entity,
    lambda values: encode_value({"quotas": dict(values)}),
    decode_quotas,
    empty={},
    bad={},
    cure=lambda _: (
        "Its clients have no quota of this entity until it is set again: logbus quota set"
    ),
)


async def change_quotas(
    store: MetadataStore,
    entity: Entity,
    change: Callable[[Values], Values],
    wait_connected: Callable[[], Awaitable[None]],
) -> int:
    """Replace the quotas of an entity in ZooKeeper by the result of ``change``; try again after a
    conflict with another writer. Return the sequence number of the change notice, by which brokers
    learn of the change."""

    async def check_count() -> None:
        if len(await store.children(QUOTAS) or ()) >= QUOTAS_MAX:
            raise InvalidRequestError(
                f"{QUOTAS_MAX} entities (users, client ids and addresses) have quotas, the "
                "maximum; set a default quota instead"
            )

    return await replace_value(
        store, KIND, entity, change, wait_connected, check_creation=check_count
    )
