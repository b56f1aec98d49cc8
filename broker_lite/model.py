"""Value types that several packages share: partitions, offsets, replicas, brokers, topics.

Every type is immutable. An offset named ``end_*``, ``next_*`` or ``log_end_*`` is the one after the
last record; an offset named ``last_*`` is that of the last record. A *position* is a byte position
in a file, never an offset."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

NO_BROKER = -1
NO_OFFSET = -1
NO_EPOCH = -1
FIRST_EPOCH = 0
"""The leader epoch of a new partition's first leader."""
NO_TIMESTAMP = -1
NO_PRODUCER = -1
UNNUMBERED = 0
"""The token of a request event until the coordinator or controller replaces it by a number. By the
number it later finds the request that an answer belongs to."""
NO_TRANSACTION = -1
"""In a message: the sender does not know the transaction's number, which counts the transactions of
the transactional id."""

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

NULL_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id of sixteen zero bytes as text. Kafka's protocol sends it for "no topic id"."""

MIRROR_PREFIX = "logbus-mirror-"
"""Prefix of the names of a group and of a topic on the target cluster of ``logbus mirror``, in
which the mirror stores its progress. The cluster id of the source follows it."""

INTERNAL_PREFIX = "__"
"""Prefix of the names of internal topics, which no topic pattern of a group matches."""

TRANSACTION_STATE = "__transaction_state"
"""The internal topic in which transaction coordinators store their state. Only brokers write it."""

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def topic_id_text(raw: bytes) -> str:
    """Return the text of a topic id of 16 bytes: 22 characters of base64url, as Kafka prints topic
    ids."""
    return base64.urlsafe_b64encode(raw)[:22].decode("ascii")


def topic_id_bytes(text: str) -> bytes:
    """Return the 16 bytes of a topic id from its text."""
    return base64.urlsafe_b64decode(text + "==")


def is_valid_name(name: str) -> bool:
    """Return whether a topic name obeys Kafka's rule: 1 to 249 ASCII letters, digits, ``.``, ``_``
    or ``-``, but not ``.`` or ``..``."""
    return (
        0 < len(name) <= NAME_LENGTH_MAX
        and name not in (".", "..")
        and _NAME.fullmatch(name) is not None
    )


class TopicPartition(NamedTuple):
    """A partition by topic name and number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionKey(NamedTuple):
    """A partition by topic id and number. A topic that is deleted and recreated has a new id."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch of the record before that offset (-1 if unknown)."""

    offset: int
    leader_epoch: int = NO_EPOCH


class CommittedOffset(NamedTuple):
    """A group's committed offset in one partition. ``offset`` is the next offset to read."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: str = NULL_TOPIC_ID
    commit_ms: int = NO_TIMESTAMP


class LogBounds(NamedTuple):
    """The start offset and the end offset (exclusive) of a log's readable records.

    Spark's planner also asks how far a given number of bytes reaches in the log from ``start``.
    ``reach_end`` is the offset after them, at a batch boundary, and ``reach_bytes`` the exact size
    in the log of the batches from ``start`` to ``reach_end``."""

    start: int
    end: int
    reach_end: int
    reach_bytes: int


class ListedOffset(NamedTuple):
    """The offset of one partition in an answer to ListOffsets. ``timestamp_ms`` is the timestamp of
    the record at that offset; -1 unless the request asked for a timestamp and a record matched."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class ReplicaId(NamedTuple):
    """A replica's identity: its broker and its data directory. A broker with a new data directory
    is a new replica."""

    broker_id: int
    directory_id: str


class Endpoint(NamedTuple):
    """The host and port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A live broker, as its registration in ZooKeeper describes it.

    A ``draining`` broker is about to stop. A broker with ``is_full`` has a full disk. In either
    state, a broker hands over the leadership of its partitions and joins no ISR."""

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    broker_epoch: int
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False
    is_full: bool = False
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    """The advertised address of each listener by name. If empty, the broker has one listener,
    PLAINTEXT at ``endpoint``."""

    def at(self, listener: str) -> Endpoint | None:
        """Return the address at which clients reach a listener of the broker; None if the broker
        does not have the listener."""
        if not self.listeners:
            return self.endpoint if listener == "PLAINTEXT" else None
        return self.listeners.get(listener)

    @property
    def takes_records(self) -> bool:
        """Whether the broker may lead and join ISRs: it is not draining, and its disk is not
        full."""
        return not (self.draining or self.is_full)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The state of a partition: its leader, its leader epoch and its in-sync replicas (ISR).

    ``version`` is the version of the state znode; every change is a compare-and-set against it.
    ``leader`` is -1 while no in-sync replica is alive; ``isr`` then holds the last members.
    ``leader_broker_epoch`` is the broker epoch of the process that was elected. A restarted broker
    has a new broker epoch and does not lead until it is elected again, so that a leader epoch
    belongs to one process."""

    leader: int
    leader_epoch: int
    isr: tuple[ReplicaId, ...]
    controller_epoch: int
    version: int = 0
    leader_broker_epoch: int = NO_EPOCH


class UnreadableZnode(NamedTuple):
    """A znode of a user, an access control list or quotas that a broker cannot decode, and the
    ``reason``. ``cure`` says what this means for clients, and what to do."""

    path: str
    reason: str
    cure: str


class StateChange(NamedTuple):
    """A new partition state to write to its znode, if the znode still has the version
    ``state.version``.

    ``topic_id`` is the topic's id when the change was decided. If the topic was deleted and
    recreated since, the change is not written. The versions of the new znodes start at 0 again, so
    the version alone could match."""

    topic: str
    partition: int
    state: LeaderAndIsr
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition in the metadata snapshot.

    During a reassignment ``replicas`` holds the target replicas, then the replicas to be removed.
    ``adding`` and ``removing`` are the replicas that the reassignment adds and removes. The
    controller removes replicas once all others are in sync."""

    partition: int
    replicas: tuple[int, ...]
    state: LeaderAndIsr
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas, the preferred leader first; during a reassignment, those after its end."""
        if not self.removing:
            return self.replicas
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic in the metadata snapshot. Partition ``p`` is ``partitions[p]``."""

    name: str
    topic_id: str
    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether only brokers write and change the topic."""
        return self.name == TRANSACTION_STATE

    def partition(self, number: int) -> PartitionView | None:
        """Return the partition with this number; None if the topic does not have it."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None


class ScramMechanism(StrEnum):
    """The SASL mechanisms in which a client proves its password without sending it (RFC 5802)."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of the hash in ``hashlib``."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
TLS_ONLY = (PLAIN, OAUTHBEARER)
"""The SASL mechanisms that send the secret itself. Brokers and clients use them over TLS only."""
LOGIN_MECHANISMS = (*ScramMechanism, *TLS_ONLY)
"""The names of all SASL mechanisms that logbus supports."""
