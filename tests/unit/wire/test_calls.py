"""Tests of the client's requests and responses against kafka-python, and of truncated responses."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import random
from typing import Any

import kafka.protocol.admin as admin
import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer
import kafka.protocol.sasl as kafka_sasl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire_samples import message, plain

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_EPOCH, NO_PRODUCER, NO_TIMESTAMP, NULL_TOPIC_ID
from broker_lite.wire import calls, tables
from broker_lite.wire.api import (
    VERSIONS,
    ApiKey,
    decode_call,
    encode_call,
    is_served,
    parse_header,
)
from broker_lite.wire.calls import (
    acls,
    broker_transactions,
    cluster,
    configs,
    envelope,
    group_removal,
    group_transactions,
    groups,
    log_dirs,
    members,
    offsets,
    producers,
    quotas,
    replicas,
    sasl,
    sinks,
    topics,
    transaction_admin,
    transaction_search,
    transactions,
    users,
    verification,
)

ID = "AAECAwQFBgcICQoLDA0ODw"

CASES: list[tuple[Any, Any, Any, dict[str, Any]]] = [
    (
        cluster.ApiVersionsRequest("logbus", "1.0"),
        metadata.ApiVersionsRequest,
        metadata.ApiVersionsResponse,
        {"client_software_name": "logbus", "client_software_version": "1.0"},
    ),
    (
        sasl.SaslHandshakeRequest("SCRAM-SHA-256"),
        kafka_sasl.SaslHandshakeRequest,
        kafka_sasl.SaslHandshakeResponse,
        {"mechanism": "SCRAM-SHA-256"},
    ),
    (
        sasl.SaslAuthenticateRequest(b"n,,n=a,r=b"),
        kafka_sasl.SaslAuthenticateRequest,
        kafka_sasl.SaslAuthenticateResponse,
        {"auth_bytes": b"n,,n=a,r=b"},
    ),
    (
        users.AlterUsersRequest(
            (users.Deletion("a", 1),), (users.Upsertion("b", 2, 4096, b"salt", b"salted"),)
        ),
        admin.AlterUserScramCredentialsRequest,
        admin.AlterUserScramCredentialsResponse,
        {
            "deletions": [{"name": "a", "mechanism": 1}],
            "upsertions": [
                {
                    "name": "b",
                    "mechanism": 2,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": b"salted",
                }
            ],
        },
    ),
    (
        cluster.MetadataRequest(("a", "b"), (ID,)),
        metadata.MetadataRequest,
        metadata.MetadataResponse,
        {
            "topics": [
                {"topic_id": NULL_TOPIC_ID, "name": "a"},
                {"topic_id": NULL_TOPIC_ID, "name": "b"},
                {"topic_id": ID, "name": None},
            ],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    ),
    (
        cluster.MetadataRequest(None),
        metadata.MetadataRequest,
        metadata.MetadataResponse,
        {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    ),
    (
        topics.CreateTopicsRequest(
            (
                topics.CreatableTopic("a", 3, 1, (), (("k", "v"), ("n", None))),
                topics.CreatableTopic("b", -1, -1, (topics.ReplicaAssignment(0, (1, 2)),)),
            ),
            5000,
            True,
        ),
        admin.CreateTopicsRequest,
        admin.CreateTopicsResponse,
        {
            "topics": [
                {
                    "name": "a",
                    "num_partitions": 3,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "k", "value": "v"}, {"name": "n", "value": None}],
                },
                {
                    "name": "b",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}],
                    "configs": [],
                },
            ],
            "timeout_ms": 5000,
            "validate_only": True,
        },
    ),
    (
        topics.DeleteTopicsRequest(("a",), (ID,), 700),
        admin.DeleteTopicsRequest,
        admin.DeleteTopicsResponse,
        {
            "topics": [
                {"name": "a", "topic_id": NULL_TOPIC_ID},
                {"name": None, "topic_id": ID},
            ],
            "timeout_ms": 700,
        },
    ),
    (
        replicas.ElectLeadersRequest(1, (replicas.TopicPartitions("a", (0, 2)),), 700),
        admin.ElectLeadersRequest,
        admin.ElectLeadersResponse,
        {
            "election_type": 1,
            "topic_partitions": [{"topic": "a", "partitions": [0, 2]}],
            "timeout_ms": 700,
        },
    ),
    (
        replicas.ElectLeadersRequest(0, None),
        admin.ElectLeadersRequest,
        admin.ElectLeadersResponse,
        {"election_type": 0, "topic_partitions": None, "timeout_ms": 60_000},
    ),
    (
        replicas.AlterPartitionReassignmentsRequest(
            700,
            (
                replicas.ReassignableTopic(
                    "a",
                    (
                        replicas.ReassignablePartition(0, (1, 2)),
                        replicas.ReassignablePartition(1, None),
                    ),
                ),
            ),
            allow_replication_factor_change=False,
        ),
        admin.AlterPartitionReassignmentsRequest,
        admin.AlterPartitionReassignmentsResponse,
        {
            "timeout_ms": 700,
            "allow_replication_factor_change": False,
            "topics": [
                {
                    "name": "a",
                    "partitions": [
                        {"partition_index": 0, "replicas": [1, 2]},
                        {"partition_index": 1, "replicas": None},
                    ],
                }
            ],
        },
    ),
    (
        replicas.ListPartitionReassignmentsRequest(700, (replicas.TopicPartitions("a", (0, 2)),)),
        admin.ListPartitionReassignmentsRequest,
        admin.ListPartitionReassignmentsResponse,
        {"timeout_ms": 700, "topics": [{"name": "a", "partition_indexes": [0, 2]}]},
    ),
    (
        topics.CreatePartitionsRequest(
            (
                topics.PartitionsToCreate("a", 4),
                topics.PartitionsToCreate(
                    "b", 2, (topics.NewPartition((1, 2)), topics.NewPartition((3,)))
                ),
            ),
            700,
            True,
        ),
        admin.CreatePartitionsRequest,
        admin.CreatePartitionsResponse,
        {
            "topics": [
                {"name": "a", "count": 4, "assignments": None},
                {
                    "name": "b",
                    "count": 2,
                    "assignments": [{"broker_ids": [1, 2]}, {"broker_ids": [3]}],
                },
            ],
            "timeout_ms": 700,
            "validate_only": True,
        },
    ),
    (
        topics.DeleteRecordsRequest(
            (topics.DeleteRecordsTopic("a", (topics.DeleteRecordsPartition(1, 1 << 40),)),), 9
        ),
        admin.DeleteRecordsRequest,
        admin.DeleteRecordsResponse,
        {
            "topics": [{"name": "a", "partitions": [{"partition_index": 1, "offset": 1 << 40}]}],
            "timeout_ms": 9,
        },
    ),
    (
        configs.DescribeConfigsRequest(
            (configs.ConfigResource(2, "a"), configs.ConfigResource(4, "1", ("k",))), True, True
        ),
        admin.DescribeConfigsRequest,
        admin.DescribeConfigsResponse,
        {
            "resources": [
                {"resource_type": 2, "resource_name": "a", "configuration_keys": None},
                {"resource_type": 4, "resource_name": "1", "configuration_keys": ["k"]},
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
    (
        configs.IncrementalAlterConfigsRequest(
            (
                configs.AlterConfigsResource(
                    2,
                    "a",
                    (
                        configs.AlterableConfig("k", configs.OPERATION_SET, "v"),
                        configs.AlterableConfig("d", configs.OPERATION_DELETE),
                    ),
                ),
            ),
            True,
        ),
        admin.IncrementalAlterConfigsRequest,
        admin.IncrementalAlterConfigsResponse,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "a",
                    "configs": [
                        {"name": "k", "config_operation": 0, "value": "v"},
                        {"name": "d", "config_operation": 1, "value": None},
                    ],
                }
            ],
            "validate_only": True,
        },
    ),
    (
        offsets.ListOffsetsRequest(
            (offsets.ListOffsetsTopic("a", (offsets.ListOffsetsPartition(1, 5, -2),)),),
            isolation_level=1,
        ),
        consumer.ListOffsetsRequest,
        consumer.ListOffsetsResponse,
        {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [
                {
                    "name": "a",
                    "partitions": [
                        {"partition_index": 1, "current_leader_epoch": 5, "timestamp": -2}
                    ],
                }
            ],
        },
    ),
    (
        groups.FindCoordinatorRequest(("g", "h"), key_type=1),
        metadata.FindCoordinatorRequest,
        metadata.FindCoordinatorResponse,
        {"key_type": 1, "coordinator_keys": ["g", "h"]},
    ),
    (
        groups.OffsetCommitRequest(
            "g",
            (groups.OffsetCommitTopic("a", (groups.OffsetToCommit(1, 2, 3, "m"),), ID),),
            generation_id_or_member_epoch=4,
            member_id="member",
            group_instance_id="instance",
        ),
        consumer.OffsetCommitRequest,
        consumer.OffsetCommitResponse,
        {
            "group_id": "g",
            "generation_id_or_member_epoch": 4,
            "member_id": "member",
            "group_instance_id": "instance",
            "topics": [
                {
                    "name": "a",
                    "partitions": [
                        {
                            "partition_index": 1,
                            "committed_offset": 2,
                            "committed_leader_epoch": 3,
                            "committed_metadata": "m",
                        }
                    ],
                }
            ],
        },
    ),
    (
        groups.OffsetFetchRequest(
            (
                groups.OffsetFetchGroup("g", (groups.OffsetFetchTopic("a", (0, 1)),)),
                groups.OffsetFetchGroup("h"),
            ),
            True,
        ),
        consumer.OffsetFetchRequest,
        consumer.OffsetFetchResponse,
        {
            "groups": [
                {"group_id": "g", "topics": [{"name": "a", "partition_indexes": [0, 1]}]},
                {"group_id": "h", "topics": None},
            ],
            "require_stable": True,
        },
    ),
    (
        groups.ListGroupsRequest(("Empty",), ("classic",)),
        admin.ListGroupsRequest,
        admin.ListGroupsResponse,
        {"states_filter": ["Empty"], "types_filter": ["classic"]},
    ),
    (
        groups.ListUntypedGroupsRequest(("Empty",)),
        admin.ListGroupsRequest,
        admin.ListGroupsResponse,
        {"states_filter": ["Empty"]},
    ),
    (
        groups.DescribeGroupsRequest(("g",)),
        admin.DescribeGroupsRequest,
        admin.DescribeGroupsResponse,
        {"groups": ["g"], "include_authorized_operations": False},
    ),
    (
        group_removal.DeleteGroupsRequest(("g", "h")),
        admin.DeleteGroupsRequest,
        admin.DeleteGroupsResponse,
        {"groups_names": ["g", "h"]},
    ),
    (
        group_removal.OffsetDeleteRequest(
            "g",
            (
                group_removal.OffsetDeleteTopic("t", (0, 3)),
                group_removal.OffsetDeleteTopic("u", ()),
            ),
        ),
        consumer.OffsetDeleteRequest,
        consumer.OffsetDeleteResponse,
        {
            "group_id": "g",
            "topics": [
                {"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 3}]},
                {"name": "u", "partitions": []},
            ],
        },
    ),
    (
        members.JoinGroupRequest(
            "g", 10, 20, "m", "i", (members.JoinProtocol("range", b"x"),), "because"
        ),
        consumer.JoinGroupRequest,
        consumer.JoinGroupResponse,
        {
            "group_id": "g",
            "session_timeout_ms": 10,
            "rebalance_timeout_ms": 20,
            "member_id": "m",
            "group_instance_id": "i",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"x"}],
            "reason": "because",
        },
    ),
    (
        members.SyncGroupRequest("g", 4, "m", None, "range", (members.Assigned("m", b"x"),)),
        consumer.SyncGroupRequest,
        consumer.SyncGroupResponse,
        {
            "group_id": "g",
            "generation_id": 4,
            "member_id": "m",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": "m", "assignment": b"x"}],
        },
    ),
    (
        members.HeartbeatRequest("g", 4, "m", "i"),
        consumer.HeartbeatRequest,
        consumer.HeartbeatResponse,
        {"group_id": "g", "generation_id": 4, "member_id": "m", "group_instance_id": "i"},
    ),
    (
        members.LeaveGroupRequest("g", "m", None, "done"),
        consumer.LeaveGroupRequest,
        consumer.LeaveGroupResponse,
        {
            "group_id": "g",
            "members": [{"member_id": "m", "group_instance_id": None, "reason": "done"}],
        },
    ),
    (
        producers.InitProducerIdRequest("t", 1000, 5, 6),
        producer.InitProducerIdRequest,
        producer.InitProducerIdResponse,
        {
            "transactional_id": "t",
            "transaction_timeout_ms": 1000,
            "producer_id": 5,
            "producer_epoch": 6,
        },
    ),
    (
        transactions.AddPartitionsToTxnRequest("t", 5, 6, (transactions.TxnTopic("a", (1, 2)),)),
        producer.AddPartitionsToTxnRequest,
        producer.AddPartitionsToTxnResponse,
        {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_producer_id": 5,
            "v3_and_below_producer_epoch": 6,
            "v3_and_below_topics": [{"name": "a", "partitions": [1, 2]}],
        },
    ),
    (
        transactions.AddOffsetsToTxnRequest("t", 5, 6, "g"),
        producer.AddOffsetsToTxnRequest,
        producer.AddOffsetsToTxnResponse,
        {"transactional_id": "t", "producer_id": 5, "producer_epoch": 6, "group_id": "g"},
    ),
    (
        transactions.EndTxnRequest("t", 5, 6, True),
        producer.EndTxnRequest,
        producer.EndTxnResponse,
        {"transactional_id": "t", "producer_id": 5, "producer_epoch": 6, "committed": True},
    ),
    (
        transactions.EndOldTxnRequest("t", 5, 6, False),
        producer.EndTxnRequest,
        producer.EndTxnResponse,
        {"transactional_id": "t", "producer_id": 5, "producer_epoch": 6, "committed": False},
    ),
    *(
        (
            kind(
                "t",
                "g",
                5,
                6,
                (groups.OffsetCommitTopic("a", (groups.OffsetToCommit(1, 7, 2, "x"),)),),
                generation_id=4,
                member_id="m",
                group_instance_id="i",
            ),
            producer.TxnOffsetCommitRequest,
            producer.TxnOffsetCommitResponse,
            {
                "transactional_id": "t",
                "group_id": "g",
                "producer_id": 5,
                "producer_epoch": 6,
                "generation_id": 4,
                "member_id": "m",
                "group_instance_id": "i",
                "topics": [
                    {
                        "name": "a",
                        "partitions": [
                            {
                                "partition_index": 1,
                                "committed_offset": 7,
                                "committed_leader_epoch": 2,
                                "committed_metadata": "x",
                            }
                        ],
                    }
                ],
            },
        )
        for kind in (transactions.TxnOffsetCommitRequest, transactions.OldTxnOffsetCommitRequest)
    ),
    (
        transaction_admin.DescribeProducersRequest((transactions.TxnTopic("a", (1, 2)),)),
        admin.DescribeProducersRequest,
        admin.DescribeProducersResponse,
        {"topics": [{"name": "a", "partition_indexes": [1, 2]}]},
    ),
    (
        transaction_admin.DescribeTransactionsRequest(("x",)),
        admin.DescribeTransactionsRequest,
        admin.DescribeTransactionsResponse,
        {"transactional_ids": ["x"]},
    ),
    (
        transaction_admin.ListTransactionsRequest(("Ongoing",), (7,), 5),
        admin.ListTransactionsRequest,
        admin.ListTransactionsResponse,
        {"state_filters": ["Ongoing"], "producer_id_filters": [7], "duration_filter": 5},
    ),
    (
        log_dirs.DescribeLogDirsRequest((log_dirs.DescribableTopic("a", (1, 2)),)),
        admin.DescribeLogDirsRequest,
        admin.DescribeLogDirsResponse,
        {"topics": [{"topic": "a", "partitions": [1, 2]}]},
    ),
]
IDS = [type(case[0]).__name__ for case in CASES]

UNSAID = {
    "topic_id": NULL_TOPIC_ID,
    "commit_ms": NO_TIMESTAMP,
    "group_type": "",
    "producer_id": NO_PRODUCER,
    "producer_epoch": NO_EPOCH,
    "state": None,
    "transaction_versions": b"",
}
"""Values of logbus's fields that Kafka's messages, or their earlier versions, do not have."""


def ours(item: Any) -> Any:
    """Return a decoded response of logbus as dictionaries and lists."""
    if hasattr(item, "_asdict"):
        return {name: ours(value) for name, value in item._asdict().items()}
    if isinstance(item, tuple):
        return [ours(each) for each in item]
    return item


def narrowed(theirs: Any, mine: Any) -> Any:
    """Return kafka-python's response ``theirs`` with only those fields that the response ``mine``
    has."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        return {key: narrowed((UNSAID | theirs)[key], mine[key]) for key in mine}
    if isinstance(theirs, list) and isinstance(mine, list):
        return [narrowed(a, b) for a, b in zip(theirs, mine, strict=True)]
    return theirs


def sample(call: Any, kind: Any, rng: random.Random) -> Any:
    """Return a random kafka-python response that a broker could send to the request ``call``."""
    response = message(kind, call.VERSION, rng)
    if kind is metadata.MetadataResponse:
        for topic in response.topics:
            topic.name = topic.name or ""
            for index, partition in enumerate(topic.partitions):
                partition.partition_index = index
    if kind is metadata.ApiVersionsResponse:
        response.error_code = 0
    if kind is admin.CreateTopicsResponse:
        for topic in response.topics:
            topic.configs = topic.configs or []
    if kind is admin.DeleteTopicsResponse:
        for topic in response.responses:
            topic.name = topic.name or ""
    response.with_header(correlation_id=6)
    return response


def body(octets: bytes) -> memoryview:
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    return memoryview(bytes(octets))[4:]


@pytest.mark.parametrize(("call", "request_kind", "response_kind", "expected"), CASES, ids=IDS)
def test_kafka_python_decodes_requests_of_the_client(
    call: Any, request_kind: Any, response_kind: Any, expected: dict[str, Any]
) -> None:
    octets = bytes(encode_call(call, 5, "client"))
    assert is_served(call.API_KEY, call.VERSION) or call.API_KEY not in VERSIONS
    assert parse_header(body(octets))[:4] == (call.API_KEY, call.VERSION, 5, "client")
    got = request_kind.decode(octets, version=call.VERSION, header=True, framed=True)
    assert plain(got, request_kind._struct, call.VERSION) == expected


@pytest.mark.parametrize(("call", "request_kind", "response_kind", "expected"), CASES, ids=IDS)
def test_client_decodes_kafka_python_responses(
    call: Any, request_kind: Any, response_kind: Any, expected: dict[str, Any]
) -> None:
    rng = random.Random(IDS.index(type(call).__name__))
    for _ in range(20):
        sent = sample(call, response_kind, rng)
        got = ours(decode_call(call, body(sent.encode(header=True, framed=True))))
        theirs = plain(sent, response_kind._struct, call.VERSION)
        if response_kind is metadata.ApiVersionsResponse:
            check_features(got, theirs)
        assert got == narrowed(theirs, got)


def check_features(got: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that logbus decoded the finalized features as kafka-python did. In
    kafka-python, the field names end in ``_level``.
    """
    rows = theirs.pop("finalized_features")
    assert got.pop("finalized_features") == [
        {
            "name": row["name"],
            "min_version": row["min_version_level"],
            "max_version": row["max_version_level"],
        }
        for row in rows
    ]


@pytest.mark.parametrize(("call", "request_kind", "response_kind", "expected"), CASES, ids=IDS)
def test_client_refuses_truncated_responses(
    call: Any, request_kind: Any, response_kind: Any, expected: dict[str, Any]
) -> None:
    frame = body(sample(call, response_kind, random.Random(3)).encode(header=True, framed=True))
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_call(call, frame[:size])


@given(st.binary(max_size=120), st.sampled_from([case[0] for case in CASES]))
def test_random_bytes_are_refused_or_decoded_without_crash(noise: bytes, call: Any) -> None:
    with contextlib.suppress(ProtocolError):
        decode_call(call, memoryview(noise))


def test_kafka_python_ignores_the_topic_id_field_that_logbus_adds_to_offset_fetch() -> None:
    row = groups.FetchedOffset(1, 2, 3, "m", 0, ID, 1_700_000_000_000)
    none = groups.FetchedOffset(2, -1, -1, "", 0)
    group = groups.FetchedOffsetsGroup("g", (groups.FetchedOffsetsTopic("a", (row, none)),), 0)
    response = groups.OffsetFetchResponse(0, (group,))
    octets = tables.encode(ApiKey.OFFSET_FETCH, 8, 6, response)
    assert decode_call(groups.OffsetFetchRequest, body(octets)) == response
    kind = consumer.OffsetFetchResponse
    got = kind.decode(octets, version=8, header=True, framed=True)
    theirs = got.groups[0].topics[0].partitions
    assert [(each.partition_index, each.committed_offset, each.metadata) for each in theirs] == [
        (1, 2, "m"),
        (2, -1, ""),
    ]


def test_offset_fetch_response_with_a_truncated_topic_id_is_refused() -> None:
    row = groups.FetchedOffset(1, 2, 3, "m", 0, ID, 5)
    group = groups.FetchedOffsetsGroup("g", (groups.FetchedOffsetsTopic("a", (row,)),), 0)
    octets = tables.encode(ApiKey.OFFSET_FETCH, 8, 6, groups.OffsetFetchResponse(0, (group,)))
    for size in range(4, len(octets)):
        with pytest.raises(ProtocolError):
            decode_call(groups.OffsetFetchRequest, memoryview(octets)[4:size])
    short = octets.replace(b"\x01\x90\x4e\x18", b"\x01\x90\x4e\x17")
    with pytest.raises(ProtocolError):
        decode_call(groups.OffsetFetchRequest, memoryview(short)[4:])


def test_describe_user_scram_credentials_response_has_tagged_fields_of_logbus() -> None:
    rows = (
        users.DescribedCredential(1, 4096, b"salt of a"),
        users.DescribedCredential(2, 4096, b"salt of a", 1_800_000_000_000),
    )
    answer = users.DescribedUsers(0, None, (users.DescribedUser("a", 0, None, rows),))
    frame = tables.encode(50, 0, 7, answer)
    kind = admin.DescribeUserScramCredentialsResponse
    theirs = kind.decode(frame, version=0, header=True, framed=True)
    assert theirs.results[0].credential_infos[0].iterations == 4096
    request = users.DescribeUsersRequest((users.UserName("a"),))
    assert decode_call(request, memoryview(frame)[4:]) == answer
    sent = memoryview(encode_call(request, 7, "c"))[4:]
    asked = tables.decode(50, 0, sent, parse_header(sent).body_at)
    assert [row.name for row in asked.users] == ["a"]


def test_every_request_of_the_client_has_a_test_case() -> None:
    known = {
        value
        for found in pkgutil.iter_modules(calls.__path__)
        for module in [importlib.import_module(f"{calls.__name__}.{found.name}")]
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "API_KEY")
    }
    not_theirs = {
        acls.DescribeAclsRequest,
        acls.CreateAclsRequest,
        acls.DeleteAclsRequest,
        quotas.DescribeClientQuotasRequest,
        quotas.AlterClientQuotasRequest,
        envelope.EnvelopeRequest,
        broker_transactions.WriteTxnMarkersRequest,
        offsets.OffsetsForBytesRequest,
        offsets.RecordTimesRequest,
        group_transactions.AddGroupRequest,
        group_transactions.EndGroupOffsetsRequest,
        replicas.UnregisterBrokerRequest,
        transaction_search.FindTransactionsRequest,
        sinks.EndBatchRequest,
        sinks.JoinBatchRequest,
        sinks.KeepBatchRequest,
        users.DescribeUsersRequest,
        verification.VerifyPartitionsRequest,
    }
    assert known == {type(case[0]) for case in CASES} | not_theirs


def test_client_decodes_supported_versions_of_an_unsupported_version_response() -> None:
    frame = bytes.fromhex("00000005" + "0023" + "00000001" + "000300000009")
    got = decode_call(cluster.ApiVersionsRequest("a", "b"), memoryview(frame))
    assert got.error_code == 35
    assert got.api_keys == (cluster.VersionRange(3, 0, 9),)


def test_metadata_response_with_a_missing_partition_index_is_refused() -> None:
    kind = metadata.MetadataResponse
    row = kind.MetadataResponseTopic.MetadataResponsePartition
    parts = [
        row(error_code=0, partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[],
            isr_nodes=[], offline_replicas=[])
        for index in (0, 2)
    ]  # fmt: skip
    topic = kind.MetadataResponseTopic(
        error_code=0, name="t", topic_id=None, is_internal=False, partitions=parts
    )
    response = kind(version=12, brokers=[], cluster_id="c", controller_id=1, topics=[topic])
    response.with_header(correlation_id=1)
    with pytest.raises(ProtocolError):
        decode_call(cluster.MetadataRequest(None), body(response.encode(header=True, framed=True)))
