"""Tests of DescribeAcls, CreateAcls and DeleteAcls on a simulated ZooKeeper."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest
from support.acl_model import KINDS, random_acls, random_question, reference
from support.handler_world import World, received, run

from broker_lite.config import BrokerConfig
from broker_lite.errors import InvalidRequestError, SecurityDisabledError
from broker_lite.security.acls import Acl
from broker_lite.security.authorizer import AclIndex
from broker_lite.server.dispatch import HANDLERS
from broker_lite.server.network.access import Authorizer
from broker_lite.wire import tables
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.calls.acls import (
    AclRow,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

READ = AclRow(2, "t", 3, "User:bob", "*", 3, 3)
WRITE = READ._replace(operation=4)
OTHER = AclRow(3, "g", 4, "User:bob", "10.0.0.7", 3, 2)
SETS = 30
"""Random sets of ACLs from which all ACLs are deleted, one after another."""
EVERY = AclRow(1, None, 1, None, None, 1, 1)


async def ask(world: World, call: Call[Any], broker: int = 1, mode: str = "enforce") -> Any:
    authorizer = Authorizer(BrokerConfig(authorizer=mode))
    parts = dataclasses.replace(world.brokers[broker], authorizer=authorizer)
    frame = memoryview(encode_call(call, 3, "c"))[4:]
    request = received(frame)
    message = tables.decode(call.API_KEY, call.VERSION, frame, request.body_at)
    answer = await HANDLERS[call.API_KEY](parts, request, message)
    octets = tables.encode(call.API_KEY, call.VERSION, 3, answer)
    return decode_call(call, memoryview(octets)[4:])


def test_created_acls_are_described_by_every_broker_until_each_is_deleted() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        results = await ask(world, CreateAclsRequest((READ, WRITE, OTHER, READ)))
        assert [row.error_code for row in results] == [0, 0, 0, 0]
        await asyncio.sleep(1)
        for broker in (1, 2):
            answer = await ask(world, DescribeAclsRequest(EVERY), broker)
            assert set(answer.acls) == {READ, WRITE, OTHER} and len(answer.acls) == 3
        matching = AclRow(2, "t", 2, None, None, 3, 1)
        assert (await ask(world, DescribeAclsRequest(matching))).acls == (READ,)
        (result,) = await ask(world, DeleteAclsRequest((matching,)), broker=2)
        assert result.deleted == (READ,)
        await asyncio.sleep(1)
        assert set((await ask(world, DescribeAclsRequest(EVERY))).acls) == {WRITE, OTHER}

    run(body)


def test_deletion_of_one_acl_keeps_all_others() -> None:
    """CVE-2024-27309: in Kafka, the deletion of an ACL also removed another ACL of the same
    resource."""

    async def body(world: World) -> None:
        await world.start()
        registry, deleted = world.brokers[1].registry, 0
        for seed in range(SETS):
            rng = random.Random(seed)
            rows = sorted(map(_row, random_acls(rng, rng.choice(KINDS))))
            results = await ask(world, CreateAclsRequest(tuple(rows)))
            left = [row for row, made in zip(rows, results, strict=True) if not made.error_code]
            while left:
                await asyncio.sleep(1)
                gone = left.pop(rng.randrange(len(left)))
                (result,) = await ask(world, DeleteAclsRequest((gone,)))
                assert result.deleted == (gone,)
                await asyncio.sleep(1)
                assert set((await ask(world, DescribeAclsRequest(EVERY))).acls) == set(left), seed
                kept = {
                    Acl(at, each) for at, rows in registry.snapshot.acls.items() for each in rows
                }
                index = AclIndex(registry.snapshot.acls)
                for kind in KINDS:
                    question = random_question(rng, kind)
                    assert index.may(*question) == reference(kept, *question), (seed, question)
                deleted += 1
        assert deleted > SETS

    run(body)


def _row(acl: Acl) -> AclRow:
    (kind, pattern_type, name), (principal, host, operation, permission) = acl
    return AclRow(kind, name, pattern_type, principal, host, operation, permission)


@pytest.mark.parametrize(
    "row",
    [READ._replace(operation=13), READ._replace(kind=6), READ._replace(host="example.org")],
)
def test_invalid_acl_is_refused_and_other_acls_of_its_request_are_created(row: AclRow) -> None:
    async def body(world: World) -> None:
        await world.start()
        results = await ask(world, CreateAclsRequest((row, WRITE)))
        assert [each.error_code for each in results] == [InvalidRequestError.code, 0]
        assert (await ask(world, DescribeAclsRequest(EVERY))).acls == (WRITE,)

    run(body)


def test_acl_beyond_the_limit_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_lite.server.handlers.create_acls.ACLS_MAX", 1)

    async def body(world: World) -> None:
        await world.start()
        results = await ask(world, CreateAclsRequest((READ, WRITE)))
        assert [row.error_code for row in results] == [InvalidRequestError.code] * 2
        assert "the maximum of 1 ACLs" in results[0].error_message
        assert not world.brokers[1].registry.snapshot.acls

    run(body)


def test_acl_requests_without_an_authorizer_are_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        described = await ask(world, DescribeAclsRequest(EVERY), mode="off")
        (created,) = await ask(world, CreateAclsRequest((READ,)), mode="off")
        (deleted,) = await ask(world, DeleteAclsRequest((EVERY,)), mode="off")
        codes = {described.error_code, created.error_code, deleted.error_code}
        assert codes == {SecurityDisabledError.code}
        assert not world.brokers[1].registry.snapshot.acls

    run(body)
