"""The permissions that each served API needs, and its response when they are denied.

The table is written by hand from the "Protocol" table of Kafka's documentation on authorization. It
is not derived from the broker's own table ``access.ROWS``. ``test_access_matrix`` compares this
table with the responses of the handlers, and fails for an API without a case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_lite.record.format import ATTRIBUTE_TRANSACTIONAL
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.wire.api import VERSIONS, ApiKey
from broker_lite.wire.calls.group_transactions import AddGroupRequest
from broker_lite.wire.calls.transaction_search import FindTransactionsRequest
from broker_lite.wire.fetch import CLIENT_VERSION
from support import api_frames
from support.api_frames import CALL, TRANSACTIONAL_ID, NameOf, batch

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
CLUSTER, TXN = ResourceKind.CLUSTER, ResourceKind.TRANSACTIONAL_ID
OP = Operation
CODES = {TOPIC: 29, GROUP: 30, CLUSTER: 31, TXN: 53}
"""The code of Kafka's authorization error for each kind of resource."""

Permission = tuple[ResourceKind, Operation]


@dataclass(frozen=True)
class Case:
    """One kind of request of an API and the permissions that it needs.

    The request needs all permissions in ``needs``, or one of the permissions in ``instead``. The
    response to a denied request omits resources of the kinds in ``hides`` without an error.
    """

    key: ApiKey
    needs: tuple[Permission, ...] = ()
    label: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    instead: tuple[Permission, ...] = ()
    hides: tuple[ResourceKind, ...] = ()
    first: int = 0
    last: int = 99
    of_brokers: bool = False
    """Whether only brokers may send the request; ACLs cannot allow it to clients."""

    @property
    def versions(self) -> range:
        first, last = VERSIONS[self.key]
        return range(max(first, self.first), min(last, self.last) + 1)

    def __str__(self) -> str:
        return f"{self.key.name.lower()}{'-' if self.label else ''}{self.label}"


def _c(key: ApiKey, *needs: Permission, label: str = "", **rest: Any) -> Case:
    return Case(key, needs, label, **rest)


def _on(kind: ResourceKind, operation: Operation) -> Permission:
    return kind, operation


_ALTER, _DESCRIBE = _on(CLUSTER, OP.ALTER), _on(CLUSTER, OP.DESCRIBE)
_BROKER = _on(CLUSTER, OP.CLUSTER_ACTION)
_TOPIC_READ, _GROUP_READ = _on(TOPIC, OP.READ), _on(GROUP, OP.READ)
_TOPIC_DESCRIBE, _GROUP_DESCRIBE = _on(TOPIC, OP.DESCRIBE), _on(GROUP, OP.DESCRIBE)
_TXN_WRITE = _on(TXN, OP.WRITE)
_TXN_DESCRIBE = _on(TXN, OP.DESCRIBE)
_OF_BROKER = {"resource_type": 4, "resource_name": "1", "configs.name": "num.partitions",
              "configs.value": "2"}  # fmt: skip
VERIFIES_GROUP = {
    CALL: lambda names: AddGroupRequest(
        names[TRANSACTIONAL_ID], 1, 0, names[api_frames.GROUP], True
    )
}
"""The request of a group coordinator that asks whether a transaction includes the group."""
SEARCHES = {CALL: lambda names: FindTransactionsRequest()}
"""The request of a partition's leader for the last transactions of producers."""
INSTANCE = "i-hidden"
"""The instance id of the group's only member."""
K = ApiKey

CASES: tuple[Case, ...] = (
    _c(K.SASL_HANDSHAKE),
    _c(K.API_VERSIONS),
    _c(K.SASL_AUTHENTICATE),
    _c(K.PRODUCE, _on(TOPIC, OP.WRITE)),
    _c(K.PRODUCE, _on(TOPIC, OP.WRITE), _TXN_WRITE, label="in-transaction",
       fields={"records": batch(producer_id=1, producer_epoch=0, base_sequence=0,
                                attributes=ATTRIBUTE_TRANSACTIONAL)}),
    _c(K.FETCH, _TOPIC_READ),
    _c(K.FETCH, _BROKER, label="of-a-follower", fields={"replica_id": 9}, first=CLIENT_VERSION,
       of_brokers=True),
    _c(K.LIST_OFFSETS, _TOPIC_DESCRIBE),
    _c(K.OFFSET_FOR_LEADER_EPOCH, _TOPIC_DESCRIBE, instead=(_BROKER,)),
    _c(K.METADATA, _TOPIC_DESCRIBE, fields={"topic_id": None}),
    _c(K.METADATA, _TOPIC_DESCRIBE, label="by-id", fields={"topics.name": None}, first=12),
    _c(K.METADATA, _TOPIC_DESCRIBE, label="all", fields={"topics": None}, hides=(TOPIC,),
       first=1),
    _c(K.METADATA, _TOPIC_DESCRIBE, label="all-0", fields={"topics": []}, hides=(TOPIC,),
       last=0),
    _c(K.DESCRIBE_TOPIC_PARTITIONS, _TOPIC_DESCRIBE),
    _c(K.DESCRIBE_TOPIC_PARTITIONS, _TOPIC_DESCRIBE, label="all", fields={"topics": []},
       hides=(TOPIC,)),
    _c(K.OFFSET_COMMIT, _GROUP_READ, _TOPIC_READ),
    _c(K.OFFSET_FETCH, _GROUP_DESCRIBE, _TOPIC_DESCRIBE),
    _c(K.OFFSET_FETCH, _GROUP_DESCRIBE, _TOPIC_DESCRIBE, label="all", fields={"topics": None},
       hides=(TOPIC,), first=2),
    _c(K.FIND_COORDINATOR, _GROUP_DESCRIBE, instead=(_BROKER,)),
    _c(K.FIND_COORDINATOR, _TXN_DESCRIBE, label="of-a-transactional-id", instead=(_BROKER,),
       fields={"key_type": 1, "key": NameOf(TRANSACTIONAL_ID),
               "coordinator_keys": NameOf(TRANSACTIONAL_ID)}, first=1),
    _c(K.JOIN_GROUP, _GROUP_READ),
    _c(K.HEARTBEAT, _GROUP_READ),
    _c(K.LEAVE_GROUP, _GROUP_READ, fields={"group_instance_id": INSTANCE}),
    _c(K.SYNC_GROUP, _GROUP_READ),
    _c(K.DESCRIBE_GROUPS, _GROUP_DESCRIBE),
    _c(K.LIST_GROUPS, _GROUP_DESCRIBE, instead=(_DESCRIBE,), hides=(GROUP,)),
    _c(K.CREATE_TOPICS, _on(TOPIC, OP.CREATE), instead=(_on(CLUSTER, OP.CREATE),)),
    _c(K.DELETE_TOPICS, _on(TOPIC, OP.DELETE), fields={"topic_id": None}),
    _c(K.DELETE_TOPICS, _on(TOPIC, OP.DELETE), label="by-id", fields={"topics.name": None},
       first=6),
    _c(K.DELETE_RECORDS, _on(TOPIC, OP.DELETE)),
    _c(K.CREATE_PARTITIONS, _on(TOPIC, OP.ALTER)),
    _c(K.INIT_PRODUCER_ID, _TXN_WRITE),
    _c(K.INIT_PRODUCER_ID, _on(CLUSTER, OP.IDEMPOTENT_WRITE), label="without-transactions",
       fields={"transactional_id": None}, instead=(_on(TOPIC, OP.WRITE),)),
    _c(K.ADD_PARTITIONS_TO_TXN, _TXN_WRITE, _on(TOPIC, OP.WRITE), last=3),
    _c(K.ADD_PARTITIONS_TO_TXN, _BROKER, label="of-a-broker", first=4,
       of_brokers=True),
    _c(K.ADD_OFFSETS_TO_TXN, _TXN_WRITE, _GROUP_READ),
    _c(K.ADD_OFFSETS_TO_TXN, _TXN_WRITE, _GROUP_READ, label="verified-by-a-client",
       fields=VERIFIES_GROUP, first=AddGroupRequest.VERSION),
    _c(K.ADD_OFFSETS_TO_TXN, label="verified-by-a-broker", fields=VERIFIES_GROUP,
       first=AddGroupRequest.VERSION, of_brokers=True),
    _c(K.END_TXN, _TXN_WRITE),
    _c(K.WRITE_TXN_MARKERS, _BROKER, instead=(_ALTER,)),
    _c(K.TXN_OFFSET_COMMIT, _TXN_WRITE, _GROUP_READ, _TOPIC_READ),
    _c(K.DESCRIBE_ACLS, _DESCRIBE),
    _c(K.CREATE_ACLS, _ALTER),
    _c(K.DELETE_ACLS, _ALTER),
    _c(K.DESCRIBE_CONFIGS, _on(TOPIC, OP.DESCRIBE_CONFIGS)),
    _c(K.DESCRIBE_CONFIGS, _on(CLUSTER, OP.DESCRIBE_CONFIGS), label="of-a-broker",
       fields=_OF_BROKER),
    _c(K.ALTER_CONFIGS, _on(TOPIC, OP.ALTER_CONFIGS)),
    _c(K.ALTER_CONFIGS, _on(CLUSTER, OP.ALTER_CONFIGS), label="of-a-broker", fields=_OF_BROKER),
    _c(K.INCREMENTAL_ALTER_CONFIGS, _on(TOPIC, OP.ALTER_CONFIGS)),
    _c(K.INCREMENTAL_ALTER_CONFIGS, _on(CLUSTER, OP.ALTER_CONFIGS), label="of-a-broker",
       fields=_OF_BROKER),
    _c(K.LIST_CONFIG_RESOURCES, _on(CLUSTER, OP.DESCRIBE_CONFIGS)),
    _c(K.DESCRIBE_LOG_DIRS, _DESCRIBE, fields={"topics": None}, hides=(CLUSTER,), last=2),
    _c(K.DESCRIBE_LOG_DIRS, _DESCRIBE, fields={"topics": None}, label="with-an-error", first=3),
    _c(K.DELETE_GROUPS, _on(GROUP, OP.DELETE)),
    _c(K.OFFSET_DELETE, _on(GROUP, OP.DELETE), _TOPIC_READ),
    _c(K.ELECT_LEADERS, _ALTER),
    _c(K.ALTER_PARTITION_REASSIGNMENTS, _ALTER),
    _c(K.UNREGISTER_BROKER, _ALTER),
    _c(K.LIST_PARTITION_REASSIGNMENTS, _DESCRIBE),
    _c(K.UPDATE_FEATURES, _ALTER),
    _c(K.DESCRIBE_CLIENT_QUOTAS, (CLUSTER, OP.DESCRIBE_CONFIGS)),
    _c(K.ALTER_CLIENT_QUOTAS, (CLUSTER, OP.ALTER_CONFIGS)),
    _c(K.DESCRIBE_USER_SCRAM_CREDENTIALS, _DESCRIBE),
    _c(K.ALTER_USER_SCRAM_CREDENTIALS, _ALTER),
    _c(K.ENVELOPE, _BROKER, of_brokers=True),
    _c(K.DESCRIBE_CLUSTER),
    _c(K.DESCRIBE_PRODUCERS, _TOPIC_READ),
    _c(K.DESCRIBE_TRANSACTIONS, _TXN_DESCRIBE, _TOPIC_DESCRIBE, hides=(TOPIC,)),
    _c(K.LIST_TRANSACTIONS, _TXN_DESCRIBE, instead=(_BROKER,), hides=(TXN,)),
    _c(K.LIST_TRANSACTIONS, _TXN_DESCRIBE, label="searched-by-a-client", instead=(_BROKER,),
       hides=(TXN,), fields=SEARCHES, first=FindTransactionsRequest.VERSION,
       last=FindTransactionsRequest.VERSION),
    _c(K.LIST_TRANSACTIONS, label="searched-by-a-broker", fields=SEARCHES,
       first=FindTransactionsRequest.VERSION, last=FindTransactionsRequest.VERSION,
       of_brokers=True),
    _c(K.OFFSETS_FOR_BYTES, _TOPIC_DESCRIBE),
    _c(K.RECORD_TIMES, _TOPIC_DESCRIBE),
    _c(K.END_GROUP_OFFSETS, _BROKER),
    _c(K.JOIN_BATCH, _TXN_WRITE, _on(TOPIC, OP.WRITE)),
    _c(K.END_BATCH, _TXN_WRITE),
    _c(K.KEEP_BATCH, _TXN_WRITE),
)  # fmt: skip
