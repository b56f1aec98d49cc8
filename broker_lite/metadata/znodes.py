"""Paths and JSON values of all znodes of logbus. The paths are relative to the chroot.

    /brokers/ids/<id> (ephemeral)               registration of a live broker
    /brokers/disks/<directory id>               owner of a data directory, start counter
    /brokers/topics/<t>                         topic id, assignment of replicas
    /brokers/topics/<t>/partitions/<p>/state    leader and ISR
    /controller (ephemeral)                     current controller
    /controller_epoch                           checked by every write of the controller
    /features                                   feature levels of the cluster
    /config/topics/<t>                          settings of a topic
    /cluster/id                                 id of the cluster
    /latest_producer_id_block                   last block of producer ids that a broker took
    /changes                                    notices to brokers about changed metadata
    /consumers/<group>                          kind of the group: "kafka" or "native"
    /consumers/<group>/offsets/<t>/<p>          committed offset
    /consumers/<group>/coordinator              the broker that may write the group's offsets
    /consumers/<group>/pending/<part>           a part of the offsets of an open transaction
    /consumers/<group>/ids/<consumer>           member of a native group (without a coordinator)
    /consumers/<group>/owners/<t>/<p>           owner of a partition in a native group

Each value is JSON with a "version": the lowest version of the format that can represent the value.
A reader refuses versions that are higher than it supports. A writer does not use a version before
the feature "metadata" in ``/features`` has that level, so that every broker can read the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidGroupIdError, UnsupportedVersionError
from broker_lite.metadata.store import Znode
from broker_lite.model import (
    NO_BROKER,
    NO_EPOCH,
    BrokerView,
    CommittedOffset,
    Endpoint,
    LeaderAndIsr,
    ReplicaId,
    TopicPartition,
)

VERSION = 2
"""Highest version of a znode's JSON that this release of logbus can read. Version 2 added
replication, draining and reassignments."""

BROKER_IDS = "/brokers/ids"
BROKER_DISKS = "/brokers/disks"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
FEATURES = "/features"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
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
"""Paths that a starting broker creates if they are missing, parents first."""

GROUP_PATH_LENGTH_MAX = 750

_JSON = json.JSONEncoder(separators=(",", ":"))

KIND_KAFKA = "kafka"
KIND_NATIVE = "native"


# Functions that convert between names and the paths of znodes.


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
    """Return the path of a group's znode, with the group's name percent-encoded.

    Raises InvalidGroupIdError for a name that is empty, too long, or not valid Unicode."""
    try:
        name = quote(group, safe="")
    except UnicodeEncodeError:
        raise InvalidGroupIdError(
            f"group name {group[:40]!r} contains an unpaired surrogate, which UTF-8 cannot encode: "
            "give valid Unicode text (were these bytes of another encoding?)"
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
    """Return the group's name from the percent-encoded name of its znode."""
    return unquote(encoded)


def offsets_path(group: str) -> str:
    return f"{group_path(group)}/offsets"


def topic_offsets_path(group: str, topic: str) -> str:
    return f"{group_path(group)}/offsets/{topic}"


def offset_path(group: str, topic: str, partition: int) -> str:
    return f"{group_path(group)}/offsets/{topic}/{partition}"


def pending_path(group: str) -> str:
    """Return the path below which the offsets of a group's open transactions are stored."""
    return f"{group_path(group)}/pending"


def part_path(group: str, name: str) -> str:
    return f"{group_path(group)}/pending/{name}"


def coordinator_path(group: str) -> str:
    """Return the path of a group's coordinator znode, whose version every write of the group's
    coordinator checks."""
    return f"{group_path(group)}/coordinator"


def claim_path(group: str, claim: str) -> str:
    """Return the path of the znode that marks a broker's claim (right to write a group's offsets):
    the broker creates it, without a value, when it becomes the group's coordinator, and the next
    coordinator deletes it."""
    return f"{coordinator_path(group)}/{claim}"


def consumers_path(group: str) -> str:
    """Return the path below which the members of a native group (without a coordinator)
    register."""
    return f"{group_path(group)}/ids"


def consumer_path(group: str, consumer: str) -> str:
    return f"{group_path(group)}/ids/{consumer}"


def owners_path(group: str) -> str:
    """Return the path below which a native group (without a coordinator) stores the owner of each
    partition."""
    return f"{group_path(group)}/owners"


def topic_owners_path(group: str, topic: str) -> str:
    return f"{group_path(group)}/owners/{topic}"


def owner_path(group: str, topic: str, partition: int) -> str:
    return f"{group_path(group)}/owners/{topic}/{partition}"


# Types of znode values, and functions that encode and decode them.


@dataclass(frozen=True, slots=True)
class Registration:
    """The value of /brokers/ids/<id>: a live broker.

    ``start_counter`` counts the starts of brokers with this data directory. A broker raises the
    counter before it registers. ``is_full`` tells whether the directory has no space for more
    records."""

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    start_counter: int
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False
    is_full: bool = False
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    """The address of each listener by name, including the address ``endpoint``. If empty, the only
    listener is PLAINTEXT at ``endpoint``."""

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
            self.listeners,
        )


class DiskZnode(NamedTuple):
    """The value of /brokers/disks/<directory id>: the broker that owns a data directory, and the
    directory's start counter at the broker's last registration."""

    broker_id: int
    start_counter: int


class Move(NamedTuple):
    """A partition's reassignment in progress: the brokers to add, and the brokers to remove once
    the added ones are in sync."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Assignment(NamedTuple):
    """The value of /brokers/topics/<t>. ``replicas[p]`` are the broker ids of partition p,
    preferred leader first. ``moves`` has the reassignments in progress, by partition."""

    topic_id: str
    replicas: tuple[tuple[int, ...], ...]
    moves: Mapping[int, Move] = {}


class ProducerIdBlock(NamedTuple):
    """The value of /latest_producer_id_block: the last block of producer ids that a broker took,
    [first, next)."""

    broker_id: int
    first: int
    next: int


class CoordinatorZnode(NamedTuple):
    """The value of /consumers/<group>/coordinator: the broker that may write a group's offsets.

    ``epoch`` counts how often a coordinator was set or removed, and ``generation`` the rebalances
    of Kafka members. Both numbers only grow. ``empty_since_ms`` is None if the group has members or
    the time is unknown. ``claim`` is the name of the child znode that this broker created when it
    became coordinator. ``members`` is the number of members in the generation, and
    ``session_timeout_ms`` the longest of their session timeouts."""

    broker_id: int
    broker_epoch: int
    epoch: int
    generation: int
    empty_since_ms: int | None
    claim: str = ""
    members: int = 0
    session_timeout_ms: int = 0


class TransactionKey(NamedTuple):
    """Identifies one transaction of a producer. ``epoch`` is the producer's epoch during the
    transaction. ``number`` counts the transactions of the transactional id, from 1."""

    producer_id: int
    epoch: int
    number: int


class PendingPart(NamedTuple):
    """The name of a znode below /consumers/<group>/pending. The znode has some of the offsets that
    a transaction commits for the group. ``sequence`` is the znode's number among those of the
    transaction, from 0."""

    transaction: TransactionKey
    sequence: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.transaction))}-{self.sequence}"


class PendingOffsets(NamedTuple):
    """The value of /consumers/<group>/pending/<part>: offsets that become committed when their
    transaction commits."""

    transactional_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


class NativeSubscription(NamedTuple):
    """The value of /consumers/<group>/ids/<consumer>: the subscription of a member of a native
    group (without a coordinator).

    The member reads the named ``topics``, or all topics whose whole name matches the regular
    expression ``pattern``. It divides its partitions over ``streams`` streams, which the
    application reads in parallel."""

    topics: tuple[str, ...]
    pattern: str | None
    streams: int
    host: str = ""
    client_id: str = ""


class OwnerZnode(NamedTuple):
    """The value of /consumers/<group>/owners/<t>/<p>: the member of a native group (without a
    coordinator), and its stream, that reads a partition."""

    consumer: str
    stream: int


class FirstReadZnode(NamedTuple):
    """The value of /consumers/<group>/offsets/<t>: how many partitions a topic had when a native
    group (without a coordinator) first read it. The group reads partitions that are added later
    from their earliest offset."""

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
                    "name": name,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "inter_broker": endpoint == value.endpoint,
                }
                for name, endpoint in (value.listeners or {"PLAINTEXT": value.endpoint}).items()
            ],
            "directory_id": value.directory_id,
            "start_counter": value.start_counter,
            "rack": value.rack,
            "features": dict(sorted(value.features.items())),
            # Brokers of earlier releases require the field ``partitions``, but do not use its
            # content.
            "partitions": {},
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
        bool(value.get("draining")),
        bool(value.get("full")),
        _listeners(value["listeners"]),
    )


def _listeners(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Endpoint]:
    if [row["name"] for row in rows] == ["PLAINTEXT"]:
        return {}
    return {row["name"]: Endpoint(row["host"], row["port"]) for row in rows}


def encode_disk(value: DiskZnode) -> bytes:
    return encode_value({"broker": value.broker_id, "start_counter": value.start_counter})


def decode_disk(path: str, data: bytes) -> DiskZnode:
    value = decode_value(path, data)
    return DiskZnode(value["broker"], value["start_counter"])


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
    """Return the state of a partition from its JSON, and from the znode's ``version``, which is not
    in the JSON."""
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
    """Return the controller's broker id, and the broker epoch that it had at its election."""
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


def encode_broker_configs(configs: Mapping[int, Mapping[str, str]]) -> bytes:
    return encode_value({"brokers": {str(id_): dict(row) for id_, row in sorted(configs.items())}})


def decode_broker_configs(path: str, data: bytes) -> dict[int, dict[str, str]]:
    return {int(id_): row for id_, row in decode_value(path, data)["brokers"].items()}


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


def encode_coordinator(value: CoordinatorZnode) -> bytes:
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


def decode_coordinator(path: str, data: bytes) -> CoordinatorZnode:
    value = decode_value(path, data)
    return CoordinatorZnode(
        value["broker"],
        value["broker_epoch"],
        value["epoch"],
        value["generation"],
        value["empty_since_ms"],
        value.get("claim", ""),
        value.get("members", 0),
        value.get("session_timeout_ms", 0),
    )


def read_coordinator(group: str, znode: Znode | None) -> CoordinatorZnode:
    """Return the value of a group's coordinator znode. If it does not exist (None), return the
    value for a group that never had a coordinator."""
    if znode is None:
        return CoordinatorZnode(NO_BROKER, NO_EPOCH, 0, 0, None)
    return decode_coordinator(coordinator_path(group), znode.data)


def encode_subscription(value: NativeSubscription) -> bytes:
    return encode_value(
        {
            "topics": list(value.topics),
            "pattern": value.pattern,
            "streams": value.streams,
            "host": value.host,
            "client_id": value.client_id,
        }
    )


def decode_subscription(path: str, data: bytes) -> NativeSubscription:
    value = decode_value(path, data)
    topics, pattern, streams = value["topics"], value["pattern"], value["streams"]
    host, client_id = value.get("host", ""), value.get("client_id", "")
    return NativeSubscription(tuple(topics), pattern, int(streams), str(host), str(client_id))


def encode_owner(value: OwnerZnode) -> bytes:
    return encode_value({"consumer": value.consumer, "stream": value.stream})


def decode_owner(path: str, data: bytes) -> OwnerZnode:
    value = decode_value(path, data)
    return OwnerZnode(str(value["consumer"]), int(value["stream"]))


def encode_first_read(value: FirstReadZnode) -> bytes:
    return encode_value({"topic_id": value.topic_id, "partitions": value.partition_count})


def decode_first_read(path: str, data: bytes) -> FirstReadZnode:
    value = decode_value(path, data)
    return FirstReadZnode(str(value["topic_id"]), int(value["partitions"]))


def encode_offset(value: CommittedOffset, *, added_zxid: int | None = None) -> bytes:
    """Encode a committed offset. If a transaction has committed it, ``added_zxid`` is the zxid
    (ZooKeeper transaction id) of the write that stored it as pending."""
    added = {} if added_zxid is None else {"added_zxid": added_zxid}
    return encode_value({**_offset_fields(value), **added})


def decode_offset(path: str, data: bytes) -> CommittedOffset:
    return _offset(decode_value(path, data))


def offset_zxid(path: str, znode: Znode) -> int:
    """Return the zxid (ZooKeeper transaction id) at which an offset was committed or, in a
    transaction, stored as pending."""
    return int(decode_value(path, znode.data).get("added_zxid", znode.modified_zxid))


def _offset_fields(value: CommittedOffset) -> dict[str, Any]:
    return {
        "offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "topic_id": value.topic_id,
        "commit_ms": value.commit_ms,
    }


def _offset(value: Mapping[str, Any]) -> CommittedOffset:
    return CommittedOffset(
        value["offset"],
        value.get("leader_epoch", NO_EPOCH),
        value["metadata"],
        value["topic_id"],
        value["commit_ms"],
    )


def encode_pending(value: PendingOffsets) -> bytes:
    rows = [
        {"topic": key.topic, "partition": key.partition, **_offset_fields(offset)}
        for key, offset in value.offsets.items()
    ]
    return encode_value({"transactional_id": value.transactional_id, "rows": rows})


def decode_pending(path: str, data: bytes) -> PendingOffsets:
    value = decode_value(path, data)
    return PendingOffsets(
        value["transactional_id"],
        {TopicPartition(row["topic"], row["partition"]): _offset(row) for row in value["rows"]},
    )


def decode_part(name: str) -> PendingPart:
    """Decode the name of a znode below /consumers/<group>/pending. Raises UnsupportedVersionError
    if the name has another form."""
    try:
        producer_id, epoch, number, sequence = map(int, name.split("-"))
    except ValueError:
        raise UnsupportedVersionError(
            f"znode {name!r} below a group's pending offsets has a name that logbus does not use; "
            "give zookeeper.connect a chroot that only logbus uses"
        ) from None
    return PendingPart(TransactionKey(producer_id, epoch, number), sequence)


def encode_value(value: dict[str, Any], version: int = 1) -> bytes:
    """Encode a znode's value as JSON. ``version`` is the lowest version of the format that can
    represent the value."""
    return _JSON.encode({"version": version, **value}).encode()


class _Value(dict[str, Any]):
    """The decoded value of a znode. The lookup of a missing field raises UnsupportedVersionError
    with the znode's path."""

    __slots__ = ("path",)

    path: str

    def __missing__(self, key: str) -> Any:
        raise UnsupportedVersionError(
            f"znode {self.path} has no field {key!r}, so another program wrote it; give "
            "zookeeper.connect a chroot that only logbus uses"
        )


def decode_value(path: str, data: bytes) -> dict[str, Any]:
    """Decode the JSON of a znode.

    Raises UnsupportedVersionError if the data is malformed or has a later version. The returned
    mapping also raises it, if a caller looks up a missing field."""
    try:
        value = json.loads(data)
        version = value["version"]
    except (ValueError, KeyError, TypeError):
        raise UnsupportedVersionError(
            f"znode {path} holds {data[:60]!r}, which logbus did not write; give zookeeper.connect "
            "a chroot that only logbus uses"
        ) from None
    if not isinstance(version, int) or version > VERSION:
        raise UnsupportedVersionError(
            f"znode {path} has version {version}; this logbus reads up to {VERSION}: upgrade logbus"
        )
    result = _Value(value)
    result.path = path
    return result
