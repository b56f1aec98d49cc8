"""Client quotas: their entities and keys, the quota that applies to a client, and token buckets.

An entity is the set of clients that a quota limits: a user, a client id, both together, or an IP
address. Entities, keys and precedence are Kafka's (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599,
KIP-612). A quota of user and client id overrides a quota of the user, which overrides a quota of
the client id. A quota of a named user or client overrides the default quota. Each broker counts
only its own requests."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import InvalidRequestError
from broker_lite.security.acls import canonical_host

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS = (
    PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE,
)  # fmt: skip
KEYS: Mapping[str, tuple[str, ...]] = {
    USER: CLIENT_KEYS,
    CLIENT_ID: CLIENT_KEYS,
    IP: (CONNECTION_CREATION_RATE,),
}
"""The quota keys of each entity type."""
BURST_S: Mapping[str, float] = {CONTROLLER_MUTATION_RATE: 11.0}
"""Size of a full token bucket by quota key, in seconds of the quota's rate; 1 for other keys. 11
seconds is Kafka's default for controller mutations: eleven windows of one second."""
NAME_LENGTH_MAX = 255
WAIT_MS_MAX = 3_600_000
"""Maximum milliseconds for which a client waits after one answer (``throttle_time_ms``). If the
wait is longer, the next answer contains the rest."""
DEFAULT = None
"""The name that stands for the default entity of a type."""


class Entity(NamedTuple):
    """The clients to which a quota applies, as pairs of entity type and name, sorted by type. The
    name ``DEFAULT`` stands for all clients without a quota of their own."""

    parts: tuple[tuple[str, str | None], ...]

    def name(self, entity_type: str) -> str | None:
        """Return the entity's name for a type. Raises KeyError if the entity has no such type."""
        return dict(self.parts)[entity_type]

    @property
    def types(self) -> frozenset[str]:
        return frozenset(entity_type for entity_type, _ in self.parts)

    def __str__(self) -> str:
        return ", ".join(
            f"{entity_type} {'(default)' if name is DEFAULT else repr(name)}"
            for entity_type, name in self.parts
        )


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity with these pairs of type and name. Raises InvalidRequestError for invalid
    pairs."""
    given = list(parts)
    pairs = dict(given)
    if not pairs or len(pairs) < len(given):
        raise InvalidRequestError("a quota needs a user, a client id or an ip, each at most once")
    for entity_type, name in given:
        if entity_type not in KEYS:
            raise InvalidRequestError(
                f"entity type {entity_type[:40]!r} does not exist; give {', '.join(KEYS)}"
            )
        if name is not DEFAULT and not (0 < len(name) <= NAME_LENGTH_MAX and name.isprintable()):
            raise InvalidRequestError(
                f"the {entity_type} {name[:40]!r} is empty, longer than {NAME_LENGTH_MAX} "
                "characters, or has control characters"
            )
    if IP in pairs and len(pairs) > 1:
        raise InvalidRequestError(
            "a quota of an ip cannot also name a user or a client id; name the ip alone"
        )
    address = pairs.get(IP)
    if address is not None:
        pairs[IP] = canonical_host(address)
        try:
            ipaddress.ip_address(pairs[IP] or "")
        except ValueError:
            raise InvalidRequestError(f"ip {address[:40]!r} is not an IP address") from None
    return Entity(tuple(sorted(pairs.items())))


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise InvalidRequestError unless the entity may have a quota with this key and value."""
    known = KEYS[entity.parts[0][0]]
    if key not in known:
        raise InvalidRequestError(
            f"quota {key[:60]!r} does not exist for {entity}; give {', '.join(known)}"
        )
    if not _is_rate(value):
        raise InvalidRequestError(
            f"{key}={value}: give a number above 0; to remove the quota, delete it"
        )
    if key == CONNECTION_CREATION_RATE and value != int(value):
        raise InvalidRequestError(f"{key}={value}: give a whole number of connections a second")


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


Values = Mapping[str, float]
"""The quotas of one entity, by quota key."""

_ORDER = (
    (True, True, (USER, CLIENT_ID)),
    (True, False, (USER, CLIENT_ID)),
    (True, False, (USER,)),
    (False, True, (USER, CLIENT_ID)),
    (False, False, (USER, CLIENT_ID)),
    (False, False, (USER,)),
    (False, True, (CLIENT_ID,)),
    (False, False, (CLIENT_ID,)),
)
"""Kafka's order of precedence of entities. Each row: whether the entity names the user (False: the
default user), whether it names the client id, and the entity's types."""


class Limit(NamedTuple):
    """A rate per second that limits a client, and the key of the token bucket that enforces it.
    Clients with the same key share a bucket."""

    rate: float
    bucket: tuple[str, ...]


class QuotaTable:
    """All quotas of a cluster, to look up those that limit a client.

    Quotas come from ZooKeeper, where other tools may write too. The table ignores a rate that
    ``check_value`` refuses: a rate of 0 gives an endless wait."""

    def __init__(self, quotas: Mapping[Entity, Values]) -> None:
        self._quotas = quotas

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def limits(self, user: str, client_id: str) -> dict[str, Limit]:
        """Return the quotas that apply to a client, by quota key."""
        names = {USER: user, CLIENT_ID: client_id}
        limits: dict[str, Limit] = {}
        for names_user, names_client, types in _ORDER:
            is_named = {USER: names_user, CLIENT_ID: names_client}
            entity = Entity(
                tuple(sorted((each, names[each] if is_named[each] else DEFAULT) for each in types))
            )
            shared = tuple(f"{each}={names[each]}" for each in types)
            for key, rate in self._quotas.get(entity, {}).items():
                if _is_rate(rate):
                    limits.setdefault(key, Limit(rate, (key, *shared)))
        return limits

    def connection_limit(self, address: str, network: str) -> Limit | None:
        """Return the limit of new connections per second for an IP address; None if no quota
        applies.

        If the default quota applies, all addresses of ``network`` (a /64 of IPv6, see
        ``login_failures.network_of``) share a bucket."""
        for name, sharer in ((address, address), (DEFAULT, network)):
            rate = self._quotas.get(Entity(((IP, name),)), {}).get(CONNECTION_CREATION_RATE)
            if rate is not None and _is_rate(rate):
                return Limit(rate, (CONNECTION_CREATION_RATE, sharer))
        return None


class TokenBucket:
    """A token bucket that refills at ``rate`` per second and holds at most ``burst_s`` seconds of
    the rate.

    A request takes all its tokens together, so the number of tokens (``left``) may be negative.
    All times are in ms of a monotonic clock."""

    __slots__ = ("_at_ms", "_burst_s", "left", "rate")

    def __init__(self, rate: float, now_ms: float, burst_s: float = 1.0) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._at_ms = now_ms
        self.left = self.capacity

    @property
    def capacity(self) -> float:
        return max(self.rate * self._burst_s, 1.0)

    def spend(self, amount: float, now_ms: float) -> int:
        """Take ``amount`` tokens; a negative amount gives tokens back. Return the milliseconds
        until the bucket has 0 tokens or more again, at most ``WAIT_MS_MAX``."""
        refilled = self.left + self.rate * max(now_ms - self._at_ms, 0) / 1000
        self._at_ms = now_ms
        self.left = min(refilled, self.capacity) - amount
        return math.ceil(min(-self.left / self.rate * 1000, WAIT_MS_MAX)) if self.left < 0 else 0

    @property
    def full_at_ms(self) -> float:
        """The time at which the bucket is full if no more tokens are taken."""
        return self._at_ms + (self.capacity - self.left) / self.rate * 1000

    def is_full(self, now_ms: float) -> bool:
        return self.left + self.rate * (now_ms - self._at_ms) / 1000 >= self.capacity


class Component(NamedTuple):
    """One condition of a DescribeClientQuotas filter: the entity must have this type.

    With ``is_any``, any name of the type matches, otherwise only ``name``. ``DEFAULT`` is the name
    of the type's default entity."""

    entity_type: str
    name: str | None
    is_any: bool = False


def selects(components: Iterable[Component], entity: Entity, *, strict: bool) -> bool:
    """Return whether the entity meets all conditions and, with ``strict``, has no other entity
    types."""
    names = dict(entity.parts)
    conditions = list(components)
    if strict and entity.types != {each.entity_type for each in conditions}:
        return False
    return all(
        each.entity_type in names and (each.is_any or names[each.entity_type] == each.name)
        for each in conditions
    )
