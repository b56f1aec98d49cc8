"""Every path and every JSON that logbus keeps in ZooKeeper, below its chroot. Pure.

    /brokers/ids/<id> (ephemeral) /brokers/disks/<directory id>        who is there, on which disk
    /brokers/topics/<t>                         topic id, assignment
    /brokers/topics/<t>/partitions/<p>/state    leader and ISR
    /controller (ephemeral) /controller_epoch   who decides; each decision checks its version
    /features /config/topics/<t> /cluster/id /latest_producer_id_block /changes
    /consumers/<group>[/offsets/<t>/<p>]        kind, committed offsets
    /consumers/<group>/{coordinator | ids/<consumer> owners/<t>/<p>}   of a Kafka | native group

Values are JSON with "version", the lowest that can say them; a reader refuses one that it does not
know, and nobody writes one before ``/features`` has it as "metadata".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidGroupIdError, UnsupportedVersionError
from broker_lite.model import (
    NO_EPOCH,
    BrokerView,
    CommittedOffset,
    Endpoint,
    LeaderAndIsr,
    ReplicaId,
)

VERSION = 2
"""2: several replicas, brokers that drain, reassignments."""

BROKER_IDS = "/brokers/ids"
BROKER_DISKS = "/brokers/disks"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
FEATURES = "/features"
TOPIC_CONFIGS = "/config/topics"
CLUSTER_ID = "/cluster/id"
PRODUCER_IDS = "/latest_producer_id_block"
CHANGES = "/changes"
CONSUMERS = "/consumers"

PERSISTENT_PATHS = (
    "/brokers",
    BROKER_IDS,
    BROKER_DISKS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    "/cluster",
    CONSUMERS,
)
"""Made by every broker that starts, parents first."""

GROUP_PATH_LENGTH_MAX = 750

_JSON = json.JSONEncoder(separators=(",", ":"))

KIND_KAFKA = "kafka"
KIND_NATIVE = "native"


# Paths.


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def disk_path(directory_id: str) -> str:
    return f"{BROKER_DISKS}/{directory_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def group_path(group: str) -> str:
    """Group names are free text: what a path cannot hold is percent-encoded.

    Raises InvalidGroupIdError for an empty or a far too long name, and for one that is no text.
    """
    try:
        name = quote(group, safe="")
    except UnicodeEncodeError:
        raise InvalidGroupIdError(
            f"group name {group[:40]!r} holds half a surrogate pair, which UTF-8 cannot say: give "
            "text (were these bytes of another encoding?)"
        ) from None
    if name in ("", ".", "..") or len(name) > GROUP_PATH_LENGTH_MAX:
        if name not in (".", ".."):
            raise InvalidGroupIdError(
                f"group name {group[:40]!r} has {len(group)} characters; give 1 to "
                f"{GROUP_PATH_LENGTH_MAX} (each that is not a letter, digit, - . _ or ~ counts 3)"
            )
        name = name.replace(".", "%2E")
    return f"{CONSUMERS}/{name}"


def group_name(encoded: str) -> str:
    """The group whose znode has this name."""
    return unquote(encoded)


def offsets_path(group: str) -> str:
    return f"{group_path(group)}/offsets"


def topic_offsets_path(group: str, topic: str) -> str:
    return f"{group_path(group)}/offsets/{topic}"


def offset_path(group: str, topic: str, partition: int) -> str:
    return f"{group_path(group)}/offsets/{topic}/{partition}"


def coordinator_path(group: str) -> str:
    """Which broker writes a group's offsets: each of its writes checks this version."""
    return f"{group_path(group)}/coordinator"


def claim_path(group: str, claim: str) -> str:
    """There for as long as this claim of the group holds; never set."""
    return f"{coordinator_path(group)}/{claim}"


def consumers_path(group: str) -> str:
    """The consumer registry of a native group."""
    return f"{group_path(group)}/ids"


def consumer_path(group: str, consumer: str) -> str:
    return f"{group_path(group)}/ids/{consumer}"


def owners_path(group: str) -> str:
    """The ownership registry of a native group."""
    return f"{group_path(group)}/owners"


def topic_owners_path(group: str, topic: str) -> str:
    return f"{group_path(group)}/owners/{topic}"


def owner_path(group: str, topic: str, partition: int) -> str:
    return f"{group_path(group)}/owners/{topic}/{partition}"


# Values.


@dataclass(frozen=True, slots=True)
class Registration:
    """/brokers/ids/<id>."""

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    start_counter: int
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    draining: bool = False
    is_full: bool = False

    def view(self, broker_epoch: int) -> BrokerView:
        return BrokerView(
            self.broker_id,
            self.endpoint,
            self.directory_id,
            broker_epoch,
            self.rack,
            self.features,
            self.draining,
            self.is_full,
        )


class Disk(NamedTuple):
    """/brokers/disks/<directory id>: the highest start counter that ever registered."""

    broker_id: int
    start_counter: int


class Move(NamedTuple):
    """A reassignment under way: who joins the replicas, and who leaves once they are in sync."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Assignment(NamedTuple):
    """/brokers/topics/<t>: ``replicas[p]`` are the brokers of partition p, preferred one first."""

    topic_id: str
    replicas: tuple[tuple[int, ...], ...]
    moves: Mapping[int, Move] = {}


class ProducerIdBlock(NamedTuple):
    """/latest_producer_id_block: the block [first, next) belongs to a broker."""

    broker_id: int
    first: int
    next: int


class Coordinator(NamedTuple):
    """/consumers/<group>/coordinator. ``epoch`` counts claims, ``generation`` rebalances of Kafka
    members: neither ever restarts. ``empty_since_ms``: None while there are members. ``claim``: the
    name of the claim's own znode below it, which no other claim of any group ever had. ``members``
    the generation had, and the longest of their session timeouts."""

    broker_id: int
    broker_epoch: int
    epoch: int
    generation: int
    empty_since_ms: int | None
    claim: str = ""
    members: int = 0
    session_timeout_ms: int = 0


class Subscription(NamedTuple):
    """/consumers/<group>/ids/<consumer>: what a consumer of a native group reads, topics by name
    or (``pattern``) all that match as a whole, and with how many streams."""

    topics: tuple[str, ...]
    pattern: str | None
    streams: int
    host: str = ""
    client_id: str = ""


class Owner(NamedTuple):
    """/consumers/<group>/owners/<t>/<p>: which stream of which consumer reads a partition."""

    consumer: str
    stream: int


class FirstLook(NamedTuple):
    """/consumers/<group>/offsets/<t>: how many partitions a topic had when a native group read it
    first. Those behind were added later, and are read from their beginning."""

    topic_id: str
    partition_count: int


def encode_registration(value: Registration) -> bytes:
    flags = {"draining": value.draining, "full": value.is_full}
    later = {name: True for name, is_set in flags.items() if is_set}
    return encode_value(
        {
            "broker": value.broker_id,
            "listeners": [
                {
                    "name": "PLAINTEXT",
                    "host": value.endpoint.host,
                    "port": value.endpoint.port,
                    "inter_broker": True,
                }
            ],
            "directory_id": value.directory_id,
            "start_counter": value.start_counter,
            "rack": value.rack,
            "features": dict(sorted(value.features.items())),
            "partitions": {t: list(p) for t, p in sorted(value.partitions.items())},
            **later,
        },
        2 if later else 1,
    )


def decode_registration(path: str, data: bytes) -> Registration:
    value = decode_value(path, data)
    listener = next(row for row in value["listeners"] if row["inter_broker"])
    return Registration(
        value["broker"],
        Endpoint(listener["host"], listener["port"]),
        value["directory_id"],
        value["start_counter"],
        value["rack"],
        value["features"],
        {topic: tuple(held) for topic, held in value["partitions"].items()},
        bool(value.get("draining")),
        bool(value.get("full")),
    )


def encode_disk(value: Disk) -> bytes:
    return encode_value({"broker": value.broker_id, "start_counter": value.start_counter})


def decode_disk(path: str, data: bytes) -> Disk:
    value = decode_value(path, data)
    return Disk(value["broker"], value["start_counter"])


def encode_assignment(value: Assignment) -> bytes:
    replicas = {str(partition): list(row) for partition, row in enumerate(value.replicas)}
    moves = {
        str(partition): {"adding": list(move.adding), "removing": list(move.removing)}
        for partition, move in sorted(value.moves.items())
    }
    later = {"moves": moves} if moves else {}
    return encode_value(
        {"topic_id": value.topic_id, "partitions": replicas, **later}, 2 if later else 1
    )


def decode_assignment(path: str, data: bytes) -> Assignment:
    value = decode_value(path, data)
    replicas = value["partitions"]
    return Assignment(
        value["topic_id"],
        tuple(tuple(replicas[str(p)]) for p in range(len(replicas))),
        {
            int(partition): Move(tuple(row["adding"]), tuple(row["removing"]))
            for partition, row in value.get("moves", {}).items()
        },
    )


def encode_state(value: LeaderAndIsr) -> bytes:
    return encode_value(
        {
            "leader": value.leader,
            "leader_epoch": value.leader_epoch,
            "leader_broker_epoch": value.leader_broker_epoch,
            "isr": [
                {"broker": replica.broker_id, "directory": replica.directory_id}
                for replica in value.isr
            ],
            "controller_epoch": value.controller_epoch,
        }
    )


def decode_state(path: str, data: bytes, version: int) -> LeaderAndIsr:
    """``version`` is the znode's: it is part of the value and not of its bytes."""
    value = decode_value(path, data)
    return LeaderAndIsr(
        value["leader"],
        value["leader_epoch"],
        tuple(ReplicaId(row["broker"], row["directory"]) for row in value["isr"]),
        value["controller_epoch"],
        version,
        value["leader_broker_epoch"],
    )


def encode_controller(broker_id: int, broker_epoch: int) -> bytes:
    return encode_value({"broker": broker_id, "broker_epoch": broker_epoch})


def decode_controller(path: str, data: bytes) -> tuple[int, int]:
    """The controller's broker id, and the broker epoch in which it was elected."""
    value = decode_value(path, data)
    return int(value["broker"]), int(value["broker_epoch"])


def encode_controller_epoch(epoch: int) -> bytes:
    return encode_value({"epoch": epoch})


def decode_controller_epoch(path: str, data: bytes) -> int:
    return int(decode_value(path, data)["epoch"])


def encode_features(features: Mapping[str, int]) -> bytes:
    return encode_value({"features": dict(sorted(features.items()))})


def decode_features(path: str, data: bytes) -> dict[str, int]:
    return dict(decode_value(path, data)["features"])


def encode_config(config: Mapping[str, str]) -> bytes:
    return encode_value({"config": dict(sorted(config.items()))})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    return dict(decode_value(path, data)["config"])


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_value({"id": cluster_id})


def decode_cluster_id(path: str, data: bytes) -> str:
    return str(decode_value(path, data)["id"])


def encode_producer_ids(value: ProducerIdBlock) -> bytes:
    return encode_value({"broker": value.broker_id, "first": value.first, "next": value.next})


def decode_producer_ids(path: str, data: bytes) -> ProducerIdBlock:
    value = decode_value(path, data)
    return ProducerIdBlock(value["broker"], value["first"], value["next"])


def encode_group(kind: str) -> bytes:
    return encode_value({"kind": kind})


def decode_group(path: str, data: bytes) -> str:
    return str(decode_value(path, data)["kind"])


def encode_coordinator(value: Coordinator) -> bytes:
    return encode_value(
        {
            "broker": value.broker_id,
            "broker_epoch": value.broker_epoch,
            "epoch": value.epoch,
            "generation": value.generation,
            "empty_since_ms": value.empty_since_ms,
            "claim": value.claim,
            "members": value.members,
            "session_timeout_ms": value.session_timeout_ms,
        }
    )


def decode_coordinator(path: str, data: bytes) -> Coordinator:
    value = decode_value(path, data)
    return Coordinator(
        value["broker"],
        value["broker_epoch"],
        value["epoch"],
        value["generation"],
        value["empty_since_ms"],
        value.get("claim", ""),
        value.get("members", 0),
        value.get("session_timeout_ms", 0),
    )


def encode_subscription(value: Subscription) -> bytes:
    return encode_value(
        {
            "topics": list(value.topics),
            "pattern": value.pattern,
            "streams": value.streams,
            "host": value.host,
            "client_id": value.client_id,
        }
    )


def decode_subscription(path: str, data: bytes) -> Subscription:
    value = decode_value(path, data)
    topics, pattern, streams = value["topics"], value["pattern"], value["streams"]
    host, client_id = value.get("host", ""), value.get("client_id", "")
    return Subscription(tuple(topics), pattern, int(streams), str(host), str(client_id))


def encode_owner(value: Owner) -> bytes:
    return encode_value({"consumer": value.consumer, "stream": value.stream})


def decode_owner(path: str, data: bytes) -> Owner:
    value = decode_value(path, data)
    return Owner(str(value["consumer"]), int(value["stream"]))


def encode_first_look(value: FirstLook) -> bytes:
    return encode_value({"topic_id": value.topic_id, "partitions": value.partition_count})


def decode_first_look(path: str, data: bytes) -> FirstLook:
    value = decode_value(path, data)
    return FirstLook(str(value["topic_id"]), int(value["partitions"]))


def encode_offset(value: CommittedOffset) -> bytes:
    return encode_value(
        {
            "offset": value.offset,
            "leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "topic_id": value.topic_id,
            "commit_ms": value.commit_ms,
        }
    )


def decode_offset(path: str, data: bytes) -> CommittedOffset:
    value = decode_value(path, data)
    return CommittedOffset(
        value["offset"],
        value.get("leader_epoch", NO_EPOCH),
        value["metadata"],
        value["topic_id"],
        value["commit_ms"],
    )


def encode_value(value: dict[str, Any], version: int = 1) -> bytes:
    """A znode's bytes; ``version`` is the lowest that can say them."""
    return _JSON.encode({"version": version, **value}).encode()


class _Value(dict[str, Any]):
    """A decoded object that names its path where a key is missing."""

    __slots__ = ("path",)

    path: str

    def __missing__(self, key: str) -> Any:
        raise UnsupportedVersionError(f"znode {self.path} has no {key!r}; it is not logbus's")


def decode_value(path: str, data: bytes) -> dict[str, Any]:
    """What a znode says. Raises UnsupportedVersionError, also where a key is asked for that is
    not there."""
    try:
        value = json.loads(data)
        version = value["version"]
    except (ValueError, KeyError, TypeError):
        raise UnsupportedVersionError(
            f"znode {path} holds {data[:60]!r}, which is not logbus's; give zookeeper.connect a "
            "chroot of its own"
        ) from None
    if not isinstance(version, int) or version > VERSION:
        raise UnsupportedVersionError(
            f"znode {path} has version {version}; this broker reads up to {VERSION}: upgrade it"
        )
    result = _Value(value)
    result.path = path
    return result
