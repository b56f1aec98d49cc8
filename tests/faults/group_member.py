"""A member of a Kafka group that sends one request at a time with ``PlainConnection``.

The group has the topic's name. A test can send a commit to a suspended broker, which reads the
commit when it resumes.
"""

from __future__ import annotations

import time
from typing import Any

import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
from faults.history import WAIT_S
from faults.replicated import POLL_S, Replicated
from support.patience import until
from support.plain_connection import PlainConnection

from broker_lite.errors import MemberIdRequiredError, error_for
from broker_lite.wire.consumer_protocol import encode_subscription

SESSION_MS = 30_000
"""Session timeout in milliseconds, so long that no member expires during a test."""
REBALANCE_MS = 5_000
"""Rebalance timeout in milliseconds: how long the coordinator waits for a member to rejoin."""


def member_of(cluster: Replicated, topic: str) -> GroupMember:
    return GroupMember(cluster, topic)


class GroupMember:
    """A group member that joins only when ``join`` is called. The caller must close it."""

    def __init__(self, cluster: Replicated, topic: str) -> None:
        self.member_id, self.generation, self.coordinator = "", -1, -1
        self._cluster, self._topic = cluster, topic
        self._left = -1
        self._connection: PlainConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def move_from(self, broker_id: int) -> None:
        """Wait until the group's coordinator is not this broker; connect to the new coordinator."""
        self._left = broker_id
        until(self._find, lambda found: found != broker_id, what="the old coordinator")

    def join(self, member_id: str = "") -> int:
        """Join the group and take all partitions; return the error code of the last request.

        Retry after retriable errors. Without a ``member_id``, also retry after other errors: a new
        coordinator may not know the member id of the former one.
        """
        if self._connection is None:
            self._find()
        self.member_id = member_id
        deadline = time.monotonic() + WAIT_S
        while True:
            protocol = consumer.JoinGroupRequest.JoinGroupRequestProtocol(
                name="range", metadata=encode_subscription(["t"])
            )
            answer = self._ask(
                "JoinGroup", 5, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer", protocols=[protocol], group_instance_id=None,
            )  # fmt: skip
            if answer.error_code == MemberIdRequiredError.code:
                self.member_id = answer.member_id
            elif answer.error_code == 0 or (
                member_id and not error_for(answer.error_code).retriable
            ):
                break
            else:
                assert time.monotonic() < deadline, answer
                time.sleep(POLL_S)
                # The coordinator may not know a member id of the former coordinator.
                self.member_id = member_id
                self._find()
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            row = consumer.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=self.member_id, assignment=b"everything"
            )
            assert self._ask("SyncGroup", 3, assignments=[row]).error_code == 0
        return int(answer.error_code)

    def commit(self, offset: int) -> int:
        """Commit the offset of partition 0; return the error code of the response."""
        self.send_commit(offset)
        return self.committed()

    def send_commit(self, offset: int) -> None:
        request = self._commit(offset)
        request.with_header(correlation_id=1, client_id="faults")
        self._connected.send(request.encode(header=True, framed=True))

    def committed(self) -> int:
        """Return the error code in the response to ``send_commit``."""
        answer = consumer.OffsetCommitResponse.decode(
            bytes(self._connected.receive()), version=7, header=True
        )
        return int(answer.topics[0].partitions[0].error_code)

    @property
    def _connected(self) -> PlainConnection:
        assert self._connection is not None
        return self._connection

    def _commit(self, offset: int) -> Any:
        kind = consumer.OffsetCommitRequest
        row = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        topic = kind.OffsetCommitRequestTopic(name=self._topic, partitions=[row])
        return kind(
            version=7, group_id=self._topic, generation_id_or_member_epoch=self.generation,
            member_id=self.member_id, group_instance_id=None, topics=[topic],
        )  # fmt: skip

    def _ask(self, api: str, version: int, **fields: Any) -> Any:
        if api != "JoinGroup":
            fields |= {"generation_id": self.generation, "group_instance_id": None}
        request = getattr(consumer, f"{api}Request")(
            version=version, group_id=self._topic, member_id=self.member_id, **fields
        )
        return self._connected.call_library(request, getattr(consumer, f"{api}Response"))

    def _find(self) -> int:
        """Ask a broker for the group's coordinator; return the coordinator's broker id. Connect to
        the coordinator, unless its broker is the one given to ``move_from``.
        """
        asked = next(broker for broker in self._cluster.brokers.values() if broker.id != self._left)
        with PlainConnection(asked.endpoint) as connection:
            answer = connection.call_library(
                metadata.FindCoordinatorRequest(version=2, key=self._topic, key_type=0),
                metadata.FindCoordinatorResponse,
            )
        self.coordinator = answer.node_id
        if answer.error_code == 0 and answer.node_id != self._left:
            self.close()
            self._connection = PlainConnection(f"{answer.host}:{answer.port}")
        return int(answer.node_id)
