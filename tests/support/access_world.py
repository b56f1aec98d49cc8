"""One broker with an authorizer in virtual time, with real handlers, replicas and metadata.

The broker has a topic with a record, a group with an offset and a member, an open transaction, a
user and an ACL.
Each of them contains canaries: texts that no response to an unauthorized client may contain.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sim.cluster import SimCluster
from sim.options import Options

from broker_lite.config import BrokerConfig
from broker_lite.config.listeners import ListenerConfig, TlsSettings
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import Endpoint, topic_id_bytes
from broker_lite.security.acls import (
    CLUSTER_NAME,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import Authorizer
from broker_lite.server.network.context import Session
from broker_lite.server.network.logins import Logins
from broker_lite.wire.api import ApiKey
from broker_lite.wire.fetch import FileRange
from support import api_frames
from support.access_cases import INSTANCE, Case
from support.api_frames import GROUP, TOPIC, TOPIC_ID, TRANSACTIONAL_ID, USER, request_frame

BROKERS = ListenerConfig(
    "BROKERS", "SSL", Endpoint("127.0.0.1", 0), None, "listeners", True,
    TlsSettings("", "k", "", "ca", "required", "TLSv1.3", "DEFAULT", "https"), True,
)  # fmt: skip
ADMIN, CLIENT = "User:admin", "User:bob"
ANSWER_S = 60.0
OPEN_MS = 900_000
"""Timeout in virtual milliseconds of the transaction and of the group's member."""
SETTLED_S = 30.0
"""Virtual seconds after which an idle broker has finished all its writes."""
NAMES = {TOPIC: "t-hidden", GROUP: "g-hidden", TRANSACTIONAL_ID: "x-hidden", USER: "u-hidden"}
ABSENT = {TOPIC: "t-absent", GROUP: "g-absent", TRANSACTIONAL_ID: "x-absent", USER: "u-absent",
          TOPIC_ID: "AAAAAAAAAAAAAAAAAAAAAQ"}  # fmt: skip
RECORD, COMMENT, RETENTION = "record-canary", "comment-canary", "86412345"
ACL_PRINCIPAL = "User:principal-canary"
CONTENTS = tuple(text.encode() for text in (RECORD, COMMENT, RETENTION, ACL_PRINCIPAL))

Acls = dict[Pattern, frozenset[Entry]]


def grants(
    *permissions: tuple[ResourceKind, Operation],
    names: Mapping[str, str] = NAMES,
    how: Permission = Permission.ALLOW,
) -> Acls:
    """Return ACLs of CLIENT for pairs of resource kind and operation; ``names`` has the names
    of the resources."""
    found: dict[Pattern, set[Entry]] = {}
    texts = {ResourceKind.TOPIC: names[TOPIC], ResourceKind.GROUP: names[GROUP],
             ResourceKind.TRANSACTIONAL_ID: names[TRANSACTIONAL_ID],
             ResourceKind.CLUSTER: CLUSTER_NAME}  # fmt: skip
    for kind, operation in permissions:
        pattern = Pattern(kind, PatternType.LITERAL, texts[kind])
        found.setdefault(pattern, set()).add(Entry(CLIENT, "*", operation, how))
    return {pattern: frozenset(entries) for pattern, entries in found.items()}


def merged(*parts: Acls) -> Acls:
    """Return one set of ACLs with the ACLs of all ``parts``."""
    found: Acls = {}
    for part in parts:
        for pattern, entries in part.items():
            found[pattern] = found.get(pattern, frozenset()) | entries
    return found


class Reply:
    """Receives the response to one request in place of the client's connection."""

    arrived_ms = 0
    is_open = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self.connection = self
        self.closed = False
        self.frame = b""
        self.refusal = ""
        self.closes = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def build(self, size: int, start: Any) -> None:
        start()

    def hold(self) -> None:
        """Do nothing. The real method keeps the connection from starting further requests until
        ``go_on``."""

    def go_on(self) -> None:
        """Do nothing: the Produce handler calls this when the next request may begin."""

    def close_after(self, reason: str) -> None:
        self.closes = reason

    def answer(self, parts: Sequence[Any]) -> None:
        data = bytearray()
        for part in parts:
            if isinstance(part, FileRange):
                file: Any = part.file
                data += file.pread(part.position, part.length)
            else:
                data += part
        self.frame = bytes(data)
        self._end()

    def refuse(self, reason: str) -> None:
        """Close the connection, and drop the responses of this iteration of the event loop.

        ``ClientConnection`` drops them too, because it sends responses only in the next
        iteration.
        """
        self.refusal, self.frame = reason, b""
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class AccessWorld:
    """One broker with an authorizer, in virtual time."""

    def __init__(self) -> None:
        self.authorizer = Authorizer(BrokerConfig(authorizer="enforce", super_users=ADMIN), BROKERS)
        self.names: dict[str, str] = dict(NAMES)

    async def start(self) -> AccessWorld:
        options = Options(seed=1, safety_s=1.0, brokers=1, replication_factor=1, partitions=1)
        self.cluster = SimCluster(options)
        assert await self.cluster.start(1)
        process = self.cluster.processes[1]
        assert process.parts is not None
        self.parts = dataclasses.replace(
            process.parts,
            authorizer=self.authorizer,
            metrics=Metrics(),
            logins=Logins(clock=process.parts.clock),
        )
        self.dispatcher = Dispatcher(self.cluster.loop, self.parts)
        while not self.snapshot.features:
            await asyncio.sleep(0.1)
        await self._fill()
        return self

    @property
    def snapshot(self) -> MetadataSnapshot:
        return self.parts.registry.snapshot

    async def _fill(self) -> None:
        names = {**self.names, TOPIC_ID: ABSENT[TOPIC_ID]}
        config = api_frames.LIBRARY[ApiKey.CREATE_TOPICS].CreatableTopic.CreatableTopicConfig
        rows = [config(name="retention.ms", value=RETENTION)]
        await self._as_admin(ApiKey.CREATE_TOPICS, 7, names, {"topics.configs": rows})
        while NAMES[TOPIC] not in self.snapshot.topics:
            await asyncio.sleep(0.1)
        self.names[TOPIC_ID] = self.snapshot.topics[NAMES[TOPIC]].topic_id
        await asyncio.sleep(2)
        done = [
            (ApiKey.PRODUCE, 13, {"records": api_frames.batch(RECORD.encode())}),
            (ApiKey.OFFSET_COMMIT, 8, {"committed_offset": 1, "committed_metadata": COMMENT}),
            (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": []}),
            (ApiKey.CREATE_ACLS, 3, {"principal": ACL_PRINCIPAL}),
        ]
        for key, version, fields in done:
            await self._as_admin(key, version, self.names, fields)
        find = {"key_type": 1, "coordinator_keys": [NAMES[TRANSACTIONAL_ID]]}
        while (await self.answer(ApiKey.FIND_COORDINATOR, 4, ADMIN, fields=find))[1] != {0}:
            await asyncio.sleep(0.1)
        await self._open_transaction()
        await self._join_group()
        await asyncio.sleep(SETTLED_S)

    async def _open_transaction(self) -> None:
        """Open a transaction that includes partition 0 of the topic, for the whole test."""
        key = ApiKey.INIT_PRODUCER_ID
        begin = {"producer_id": -1, "producer_epoch": -1, "transaction_timeout_ms": OPEN_MS}
        while True:
            reply, codes = await self.answer(key, 4, ADMIN, fields=begin)
            if codes == {0}:
                break
            await asyncio.sleep(0.1)
        made = api_frames.answer_of(key, 4, reply.frame)
        fields = {f"v3_and_below_{name}": made[name] for name in ("producer_id", "producer_epoch")}
        await self._as_admin(ApiKey.ADD_PARTITIONS_TO_TXN, 3, self.names, fields)

    async def _join_group(self) -> None:
        """Add a static member to the group, which stays for the whole test."""
        join = {"group_instance_id": INSTANCE, "session_timeout_ms": OPEN_MS}
        reply, codes = await self.answer(ApiKey.JOIN_GROUP, 7, ADMIN, fields=join)
        assert codes == {0}, codes
        joined = api_frames.answer_of(ApiKey.JOIN_GROUP, 7, reply.frame)
        fields = {name: joined[name] for name in ("member_id", "generation_id")}
        await self._as_admin(
            ApiKey.SYNC_GROUP, 5, self.names, fields | {"group_instance_id": INSTANCE}
        )

    async def _as_admin(
        self, key: ApiKey, version: int, names: Mapping[str, str], fields: Mapping[str, Any]
    ) -> None:
        reply = await self.send(request_frame(key, version, names, fields), ADMIN)
        answer = api_frames.answer_of(key, version, reply.frame)
        assert api_frames.error_codes(answer) <= {0}, (key, answer)

    def grant(self, acls: Acls) -> None:
        """Replace all ACLs by ``acls``."""
        self.authorizer.apply(MetadataSnapshot(acls=acls))

    async def send(
        self, frame: bytes, principal: str = CLIENT, listener: str = "PLAINTEXT", **session: Any
    ) -> Reply:
        client = Session(1, "127.0.0.1:4711", listener, principal, is_encrypted=True, **session)
        reply: Any = Reply(client)
        self.dispatcher.begin(memoryview(bytearray(frame)), reply)
        await asyncio.wait_for(reply.done, ANSWER_S)
        return reply  # type: ignore[no-any-return]

    async def answer(
        self,
        key: ApiKey,
        version: int,
        principal: str = CLIENT,
        *,
        fields: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        listener: str = "PLAINTEXT",
    ) -> tuple[Reply, set[int]]:
        """Send one request; return its reply and every error code in the response."""
        frame = request_frame(key, version, names or self.names, fields)
        reply = await self.send(frame, principal, listener)
        if not reply.frame:
            return reply, set()
        return reply, api_frames.error_codes(api_frames.answer_of(key, version, reply.frame))

    def canaries(self, case: Case, version: int) -> Iterable[bytes]:
        """Yield the canaries that the request of this case does not contain."""
        frame = request_frame(case.key, version, self.names, case.fields)
        topic_id = topic_id_bytes(self.names[TOPIC_ID])
        for canary in (*(name.encode() for name in NAMES.values()), topic_id, *CONTENTS):
            if canary not in frame:
                yield canary

    def digest(self) -> tuple[object, ...]:
        """Return everything that a request could change: all znodes, the contents of all logs with
        their start and end, and all groups with their members."""
        znodes = {path: node.data for path, node in self.cluster.zk._nodes.items()}
        logs: Any = self.parts.logs
        bounds = {key: (log.log_start_offset, log.log_end_offset) for key, log in logs.logs.items()}
        records = dict(_log_files(self.cluster.disks[1]._root))
        groups: Any = self.parts.groups
        views = {name: held.group.view() for name, held in groups._groups.items()}
        assert znodes and bounds and any(records.values()) and views[NAMES[GROUP]].members
        return znodes, bounds, records, views


def _log_files(folder: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the paths and contents of all segments in a folder of ``MemFiles``."""
    for name, node in folder.names.items():
        if hasattr(node, "names"):
            yield from _log_files(node, f"{path}/{name}")
        elif name.endswith(".log"):
            yield f"{path}/{name}", bytes(node.data)
