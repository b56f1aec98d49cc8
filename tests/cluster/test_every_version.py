"""Send every API in every version that a broker advertises, as kafka-python encodes it.

kafka-python must be able to decode each response, and logbus must know every error code in it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import kafka.protocol.admin as admin
import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer
import kafka.protocol.sasl as sasl
import pytest
from support.api_frames import LIBRARY, error_codes
from support.patience import until
from support.plain_connection import PlainConnection
from support.row_codec import Row, encode_rows
from support.wire_samples import message, plain

from broker_lite.errors import (
    ClusterAuthorizationError,
    CoordinatorNotAvailableError,
    ElectionNotNeededError,
    GroupIdNotFoundError,
    IllegalSaslStateError,
    InvalidProducerIdMappingError,
    NoReassignmentInProgressError,
    NotCoordinatorError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SecurityDisabledError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
    UnknownLeaderEpochError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import LATEST_TIMESTAMP, NO_EPOCH, topic_id_bytes
from broker_lite.wire.api import VERSIONS, ApiKey, is_served, write_request_header
from broker_lite.wire.calls.cluster import MetadataRequest, MetadataResponse
from broker_lite.wire.calls.configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigResource,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from broker_lite.wire.calls.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker_lite.wire.calls.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from broker_lite.wire.consumer_protocol import encode_subscription
from broker_lite.wire.primitives import Writer

pytestmark = pytest.mark.real

NUMBERS = itertools.count()
GROUP, NO_GROUP = "versions", "nobody"
OF_CONTROLLER = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
)
OF_COORDINATOR = {
    ApiKey.OFFSET_COMMIT: GROUP,
    ApiKey.OFFSET_FETCH: GROUP,
    ApiKey.JOIN_GROUP: GROUP,
    ApiKey.SYNC_GROUP: GROUP,
    ApiKey.HEARTBEAT: GROUP,
    ApiKey.LEAVE_GROUP: GROUP,
    ApiKey.DESCRIBE_GROUPS: GROUP,
    ApiKey.DELETE_GROUPS: NO_GROUP,
    ApiKey.OFFSET_DELETE: NO_GROUP,
    ApiKey.TXN_OFFSET_COMMIT: NO_GROUP,
}
"""For each API of a group, the group whose coordinator must answer."""
MODULES = (admin, consumer, metadata, producer, sasl)
EVERY = [
    (ApiKey(key), version)
    for key, (first, last) in VERSIONS.items()
    if key in LIBRARY
    for version in range(first, last + 1)
]


def library(name: str) -> Any:
    for module in MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)


class Target:
    """A new topic, and connections to its leader, the controller and the coordinators."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.connections: list[PlainConnection] = []
        self.any_address = cluster.brokers[0].endpoint
        any_broker = self.connect(self.any_address)
        found = any_broker.call(MetadataRequest(()))
        self.controller = self.connect_to(found, found.controller_id)
        self.name = f"versions-{os.getpid()}-{next(NUMBERS)}"
        made = self.controller.call(CreateTopicsRequest((CreatableTopic(self.name, 1, 1),)))
        assert made.topics[0].error_code == 0
        self.topic_id = made.topics[0].topic_id
        found = self.controller.call(MetadataRequest((self.name,)))
        self.leader_id = found.topics[0].partitions[0].leader_id
        self.leader = self.connect_to(found, self.leader_id)
        self.coordinators: dict[str, PlainConnection] = {}
        for group in (GROUP, NO_GROUP):
            ask = library("FindCoordinatorRequest")(version=0, key=group)
            told = any_broker.call_library(ask, library("FindCoordinatorResponse"))
            self.coordinators[group] = self.connect_to(found, told.node_id)
        # The first lookup of a transaction coordinator creates a topic. Create it before the tests.
        ask = library("FindCoordinatorRequest")(version=4, key_type=1, coordinator_keys=["nobody"])
        any_broker.call_library(ask, library("FindCoordinatorResponse"))
        self.wait_for_leader()

    def whom(self, key: ApiKey) -> PlainConnection:
        """Return the connection to the broker that serves this API. Other brokers forward or refuse
        the API's requests."""
        if key in OF_CONTROLLER:
            return self.controller
        return self.coordinators[OF_COORDINATOR[key]] if key in OF_COORDINATOR else self.leader

    def connect(self, address: str) -> PlainConnection:
        self.connections.append(PlainConnection(address))
        return self.connections[-1]

    def connect_to(self, found: MetadataResponse, broker_id: int) -> PlainConnection:
        (row,) = [row for row in found.brokers if row.node_id == broker_id]
        return self.connect(f"{row.host}:{row.port}")

    def wait_for_leader(self) -> None:
        """Wait until the leader serves the topic's partition."""
        request = ListOffsetsRequest(
            (ListOffsetsTopic(self.name, (ListOffsetsPartition(0, NO_EPOCH, -1),)),)
        )
        until(lambda: not self.leader.call(request).topics[0].partitions[0].error_code)


@pytest.fixture(scope="module")
def target(cluster: LocalCluster) -> Iterator[Target]:
    made = Target(cluster)
    yield made
    for connection in made.connections:
        connection.close()


def fields_of(key: ApiKey, version: int, target: Target) -> dict[str, Any]:
    """Return the field values of a request of the API ``key`` in this version."""
    name, topic_id = target.name, target.topic_id
    by_id = {"topic_id": topic_id_of(topic_id)}
    match key:
        case ApiKey.PRODUCE:
            kind = producer.ProduceRequest.TopicProduceData
            batch = encode_rows([Row(0, 1_700_000_000_000, b"k", b"v", ())])
            rows = [kind.PartitionProduceData(index=0, records=bytes(batch))]
            named = by_id if version >= 13 else {"name": name}
            return {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 5000,
                "topic_data": [kind(**named, partition_data=rows)],
            }
        case ApiKey.FETCH:
            kind = consumer.FetchRequest.FetchTopic
            rows = [kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
            named = by_id if version >= 13 else {"topic": name}
            return {
                "replica_id": -1,
                "max_wait_ms": 100,
                "min_bytes": 0,
                "topics": [kind(**named, partitions=rows)],
                "forgotten_topics_data": [],
                "rack_id": "",
            }
        case ApiKey.LIST_OFFSETS:
            kind = consumer.ListOffsetsRequest.ListOffsetsTopic
            rows = [kind.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            return {"replica_id": -1, "isolation_level": 0,
                    "topics": [kind(name=name, partitions=rows)]}  # fmt: skip
        case ApiKey.METADATA:
            row = metadata.MetadataRequest.MetadataRequestTopic(name=name, topic_id=None)
            return {"topics": [row]}
        case ApiKey.OFFSET_COMMIT:
            kind = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
            rows = [
                kind.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_metadata=""
                )
            ]
            return {"group_id": GROUP, "member_id": "",
                    "topics": [kind(name=name, partitions=rows)]}  # fmt: skip
        case ApiKey.TXN_OFFSET_COMMIT:
            kind = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            rows = [
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_metadata=""
                )
            ]
            return {"transactional_id": "nobody", "group_id": NO_GROUP, "producer_id": 1,
                    "producer_epoch": 0, "topics": [kind(name=name, partitions=rows)]}  # fmt: skip
        case ApiKey.OFFSET_FETCH:
            if version >= 8:
                kind = consumer.OffsetFetchRequest.OffsetFetchRequestGroup
                topic = kind.OffsetFetchRequestTopics(name=name, partition_indexes=[0])
                return {"groups": [kind(group_id=GROUP, topics=[topic])]}
            kind = consumer.OffsetFetchRequest.OffsetFetchRequestTopic
            return {"group_id": GROUP, "topics": [kind(name=name, partition_indexes=[0])]}
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            kind = consumer.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            rows = [kind.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            return {"replica_id": -1, "topics": [kind(topic=name, partitions=rows)]}
        case ApiKey.FIND_COORDINATOR:
            return {"key": GROUP, "coordinator_keys": [GROUP]}
        case ApiKey.DESCRIBE_GROUPS:
            return {"groups": [GROUP]}
        case ApiKey.JOIN_GROUP:
            said = encode_subscription([name])
            row = consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=said)
            return {
                "group_id": GROUP,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": "nobody",
                "protocol_type": "consumer",
                "protocols": [row],
            }
        case ApiKey.SYNC_GROUP:
            return {"group_id": GROUP, "generation_id": 1, "member_id": "nobody",
                    "protocol_type": "consumer", "protocol_name": "range"}  # fmt: skip
        case ApiKey.HEARTBEAT:
            return {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"}
        case ApiKey.LEAVE_GROUP:
            if version < 3:
                return {"group_id": GROUP, "member_id": "nobody"}
            kind = consumer.LeaveGroupRequest.MemberIdentity
            return {"group_id": GROUP, "members": [kind(member_id="nobody")]}
        case ApiKey.CREATE_TOPICS:
            row = admin.CreateTopicsRequest.CreatableTopic(
                name=f"{name}-{version}", num_partitions=1, replication_factor=1,
                assignments=[], configs=[],
            )  # fmt: skip
            return {"topics": [row], "timeout_ms": 5000, "validate_only": True}
        case ApiKey.DELETE_TOPICS:
            if version >= 6:
                row = admin.DeleteTopicsRequest.DeleteTopicState(name="no-such-topic")
                return {"topics": [row], "timeout_ms": 5000}
            return {"topic_names": ["no-such-topic"], "timeout_ms": 5000}
        case ApiKey.DELETE_RECORDS:
            kind = admin.DeleteRecordsRequest.DeleteRecordsTopic
            rows = [kind.DeleteRecordsPartition(partition_index=0, offset=0)]
            return {"topics": [kind(name=name, partitions=rows)], "timeout_ms": 5000}
        case ApiKey.DESCRIBE_CONFIGS:
            kind = admin.DescribeConfigsRequest.DescribeConfigsResource
            return {"resources": [kind(resource_type=2, resource_name=name,
                                       configuration_keys=None)]}  # fmt: skip
        case ApiKey.DESCRIBE_LOG_DIRS:
            return {"topics": None}
        case ApiKey.CREATE_PARTITIONS:
            row = admin.CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=2, assignments=None
            )
            return {"topics": [row], "timeout_ms": 5000, "validate_only": True}
        case ApiKey.ELECT_LEADERS:
            kind = admin.ElectLeadersRequest.TopicPartitions
            return {"election_type": 0, "topic_partitions": [kind(topic=name, partitions=[0])]}
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            kind = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
            rows = [kind.ReassignablePartition(partition_index=0, replicas=None)]
            return {"topics": [kind(name=name, partitions=rows)]}
        case ApiKey.LIST_PARTITION_REASSIGNMENTS:
            return {"topics": None}
        case ApiKey.INCREMENTAL_ALTER_CONFIGS:
            kind = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
            rows = [kind.AlterableConfig(name="retention.ms", config_operation=0, value="9999")]
            return {"resources": [kind(resource_type=2, resource_name=name, configs=rows)]}
        case ApiKey.ALTER_CONFIGS:
            kind = admin.AlterConfigsRequest.AlterConfigsResource
            rows = [kind.AlterableConfig(name="retention.ms", value="9999")]
            return {"resources": [kind(resource_type=2, resource_name=name, configs=rows)]}
        case ApiKey.DELETE_GROUPS:
            return {"groups_names": [NO_GROUP]}
        case ApiKey.OFFSET_DELETE:
            return {"group_id": NO_GROUP, "topics": []}
        case ApiKey.INIT_PRODUCER_ID:
            return {"transactional_id": None, "transaction_timeout_ms": 1000}
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            kind = producer.AddPartitionsToTxnRequest
            if version >= 4:
                return {"transactions": []}
            topic = kind.AddPartitionsToTxnTopic(name=name, partitions=[0])
            return {"v3_and_below_transactional_id": "nobody", "v3_and_below_producer_id": 1,
                    "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [topic]}  # fmt: skip
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return {"transactional_id": "nobody", "producer_id": 1, "producer_epoch": 0,
                    "group_id": NO_GROUP}  # fmt: skip
        case ApiKey.END_TXN:
            return {"transactional_id": "nobody", "producer_id": 1, "producer_epoch": 0,
                    "committed": True}  # fmt: skip
        case ApiKey.DESCRIBE_TRANSACTIONS:
            return {"transactional_ids": ["nobody"]}
        case ApiKey.LIST_TRANSACTIONS:
            return {"state_filters": [], "producer_id_filters": []}
        case ApiKey.API_VERSIONS:
            return {"client_software_name": "tests", "client_software_version": "1"}
    return {}


def topic_id_of(text: str) -> Any:
    return UUID(bytes=topic_id_bytes(text))


NO_TRANSACTION = {
    TransactionalIdAuthorizationError.code,
    InvalidProducerIdMappingError.code,
    TransactionalIdNotFoundError.code,
    CoordinatorNotAvailableError.code,
    NotCoordinatorError.code,
}
"""Errors that a request may get for a transactional id that no producer has initialised."""

ALLOWED = {
    ApiKey.SASL_HANDSHAKE: {IllegalSaslStateError.code},
    ApiKey.SASL_AUTHENTICATE: {IllegalSaslStateError.code},
    ApiKey.DESCRIBE_ACLS: {SecurityDisabledError.code},
    ApiKey.ADD_PARTITIONS_TO_TXN: {*NO_TRANSACTION, ClusterAuthorizationError.code},
    ApiKey.ADD_OFFSETS_TO_TXN: NO_TRANSACTION,
    ApiKey.END_TXN: NO_TRANSACTION,
    ApiKey.DESCRIBE_TRANSACTIONS: NO_TRANSACTION,
    ApiKey.DELETE_TOPICS: {3},
    ApiKey.ELECT_LEADERS: {ElectionNotNeededError.code},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {NoReassignmentInProgressError.code},
    ApiKey.JOIN_GROUP: {UnknownMemberIdError.code},
    ApiKey.SYNC_GROUP: {UnknownMemberIdError.code},
    ApiKey.HEARTBEAT: {UnknownMemberIdError.code},
    ApiKey.LEAVE_GROUP: {UnknownMemberIdError.code},
    ApiKey.DELETE_GROUPS: {GroupIdNotFoundError.code},
    ApiKey.OFFSET_DELETE: {GroupIdNotFoundError.code},
    ApiKey.TXN_OFFSET_COMMIT: NO_TRANSACTION,
}
"""The errors that each API may return in this test."""


@pytest.mark.parametrize(
    ("key", "version"), EVERY, ids=[f"{key.name.lower()}-{version}" for key, version in EVERY]
)
def test_every_version_of_every_api_is_answered(target: Target, key: ApiKey, version: int) -> None:
    name = "".join(word.capitalize() for word in key.name.split("_"))
    request = library(f"{name}Request")(version=version, **fields_of(key, version, target))
    answer = target.whom(key).call_library(request, library(f"{name}Response"))
    assert error_codes(answer.to_dict()) - {0, None} <= ALLOWED.get(key, set())


def test_offset_for_leader_epoch_returns_the_end_offset_of_an_epoch(target: Target) -> None:
    kind = consumer.OffsetForLeaderEpochRequest
    topic = kind.OffsetForLeaderTopic

    def ask(name: str, epoch: int, current: int = -1) -> tuple[int, int, int]:
        rows = [
            topic.OffsetForLeaderPartition(
                partition=0, current_leader_epoch=current, leader_epoch=epoch
            )
        ]
        request = kind(version=4, replica_id=-1, topics=[topic(topic=name, partitions=rows)])
        answer = target.leader.call_library(request, consumer.OffsetForLeaderEpochResponse)
        (row,) = answer.topics[0].partitions
        return row.error_code, row.leader_epoch, row.end_offset

    ends = ListOffsetsRequest(
        (ListOffsetsTopic(target.name, (ListOffsetsPartition(0, NO_EPOCH, LATEST_TIMESTAMP),)),)
    )
    (latest,) = target.leader.call(ends).topics[0].partitions
    epoch = latest.leader_epoch
    assert ask(target.name, epoch) == (0, epoch, latest.offset)
    assert ask(target.name, epoch + 5) == (0, -1, -1)
    assert ask(target.name, epoch, epoch + 1)[0] == UnknownLeaderEpochError.code
    assert ask("no-such-topic", 0) == (UnknownTopicOrPartitionError.code, -1, -1)


def test_settings_can_be_changed_through_any_broker(cluster: LocalCluster, target: Target) -> None:
    """A broker forwards the request to the controller."""
    for number, broker in enumerate(cluster.brokers):
        value = str(70_000 + number)
        row = AlterConfigsResource(2, target.name, (AlterableConfig("retention.ms", 0, value),))
        with PlainConnection(broker.endpoint) as connection:
            answer = connection.call(IncrementalAlterConfigsRequest((row,)))
            assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)
        described = target.controller.call(
            DescribeConfigsRequest((ConfigResource(2, target.name, ("retention.ms",)),))
        )
        assert [each.value for each in described.results[0].configs] == [value]


def test_only_the_leader_of_a_partition_deletes_its_records(
    cluster: LocalCluster, target: Target
) -> None:
    kind = producer.ProduceRequest
    produce = kind(version=13, **fields_of(ApiKey.PRODUCE, 13, target))
    for _ in range(3):
        target.leader.call_library(produce, producer.ProduceResponse)

    def delete(connection: PlainConnection, name: str, offset: int) -> tuple[int, int]:
        topic = DeleteRecordsTopic(name, (DeleteRecordsPartition(0, offset),))
        (row,) = connection.call(DeleteRecordsRequest((topic,))).topics[0].partitions
        return row.error_code, row.low_watermark

    assert delete(target.leader, target.name, 2) == (0, 2)
    assert delete(target.leader, target.name, 1) == (0, 2)
    assert delete(target.leader, target.name, 1 << 40) == (OffsetOutOfRangeError.code, -1)
    assert delete(target.leader, "no-such-topic", 0) == (UnknownTopicOrPartitionError.code, -1)
    for broker in cluster.brokers:
        if broker.id != target.leader_id:
            with PlainConnection(broker.endpoint) as connection:
                assert delete(connection, target.name, 3)[0] == NotLeaderError.code
    code, low = delete(target.leader, target.name, -1)
    assert (code, low >= 3) == (0, True)


def test_unsupported_api_is_refused_and_the_connection_stays_open(target: Target) -> None:
    """Send every API and version that kafka-python has and a broker does not serve."""
    rng = random.Random(1)
    refused = 0
    for module in MODULES:
        for name in dir(module):
            asks = getattr(module, name)
            if not name.endswith("Request") or not hasattr(asks, "valid_versions"):
                continue
            first, last = asks.valid_versions
            for version in range(first, last + 1):
                if is_served(asks.API_KEY, version):
                    continue
                asked = message(asks, version, rng)
                while not _has_rows(plain(asked, asks._struct, version)):
                    asked = message(asks, version, rng)
                answers = getattr(module, name.replace("Request", "Response"))
                answer = target.leader.call_library(asked, answers)
                assert f"error_code={UnsupportedVersionError.code}" in repr(answer)
                refused += 1
    assert refused == 13
    assert target.leader.call(MetadataRequest(())).brokers


def _has_rows(item: Any) -> bool:
    """Return whether every list in the request has elements.

    The response has an error for each element of a list, so an empty list gets no error.
    """
    if isinstance(item, dict):
        return all(map(_has_rows, item.values()))
    return not isinstance(item, list) or (bool(item) and all(map(_has_rows, item)))


def test_request_of_an_unknown_api_closes_only_its_own_connection(target: Target) -> None:
    for key, version in ((9999, 0), (ApiKey.METADATA, 99), (ApiKey.RECORD_TIMES, 7)):
        connection = target.connect(target.any_address)
        writer = Writer()
        write_request_header(writer, key, version, 7, "a client of tomorrow")
        connection.send(len(writer.buffer).to_bytes(4, "big") + writer.buffer)
        with pytest.raises(EOFError):
            connection.receive()
    assert target.leader.call(MetadataRequest(())).brokers
