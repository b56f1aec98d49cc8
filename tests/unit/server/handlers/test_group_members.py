"""Tests of the APIs of group members, in every version, and of groups whose coordinator changes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.handler_members import SUBSCRIPTION, Member, both, coordinator, gathered
from support.handler_world import World, handler, received, run, struct, versions

from broker_lite.errors import (
    CoordinationUnavailableError,
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, encode_call
from broker_lite.wire.calls import members


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_join_group_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        one, two = Member(world), Member(world)
        assert await both(one.join(version), two.join(version)) == [0, 0]
        leader, other = (one, two) if one.answer.members else (two, one)
        assert {row.member_id for row in leader.answer.members} == {one.id, two.id}
        assert {row.metadata for row in leader.answer.members} == {SUBSCRIPTION}
        assert other.answer.members == [] and other.answer.leader == leader.id
        assert one.answer.protocol_name == "range"
        assert (one.generation, two.generation) == (1, 1)
        if version >= 7:
            assert one.answer.protocol_type == "consumer"
        assert await one.heartbeat() == 0
        # Each answer reports errors in its own version's fields.
        assert await Member(world, "").join(version) == InvalidGroupIdError.code
        short = Member(world, "h")
        code = InvalidSessionTimeoutError.code
        assert await short.join(version, session_timeout_ms=10) == code

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_sync_group_returns_assignments_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        one = Member(world)
        assert await one.join() == 0
        answer = await one.sync(version, **{one.id: b"\0work"})
        assert (answer.error_code, answer.assignment) == (0, b"\0work")
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
            answer = await one.ask("SyncGroup", 5, assignments=[], protocol_name="sticky")
            assert answer.error_code == InconsistentGroupProtocolError.code
        answer = await one.ask("SyncGroup", version, assignments=[], generation_id=7)
        assert (answer.error_code, answer.assignment) == (IllegalGenerationError.code, b"")

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeats_are_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        (one,) = await gathered(world, 1)
        assert await one.heartbeat(version) == 0
        assert await one.heartbeat(version, generation_id=9) == IllegalGenerationError.code
        assert await one.heartbeat(version, member_id="x") == UnknownMemberIdError.code
        stranger = Member(world, "no-such-group")
        assert await stranger.heartbeat(version) == UnknownMemberIdError.code
        if version >= 3:
            fields = {"group_instance_id": "i"}
            assert await one.heartbeat(version, **fields) == UnknownMemberIdError.code

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leave_group_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        one, two = await gathered(world, 2)
        assert set(await two.leave(version)) == {0}
        assert await one.heartbeat() == RebalanceInProgressError.code
        assert UnknownMemberIdError.code in await two.leave(version)
        assert UnknownMemberIdError.code in await Member(world, "nobody").leave(version)

    run(body)


def test_silent_member_is_removed_after_its_session_timeout() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        for _ in range(3):
            await asyncio.sleep(3)
            assert await one.heartbeat() == 0
        await asyncio.sleep(1.1)
        assert await one.heartbeat() == RebalanceInProgressError.code
        assert await one.join() == 0
        assert (one.generation, len(one.answer.members)) == (2, 1)
        assert await two.heartbeat() == UnknownMemberIdError.code
        assert await two.commit(5) == UnknownMemberIdError.code

    run(body)


def test_only_members_of_the_current_generation_commit() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        nobody = Member(world)
        assert await nobody.commit(1) == 0
        one, two = await gathered(world, 2)
        assert await nobody.commit(2) == UnknownMemberIdError.code
        assert await both(one.commit(3), two.commit(4)) == [0, 0]
        old = one.generation
        joining = asyncio.ensure_future(one.join())
        await asyncio.sleep(0.01)
        assert await two.commit(5) == 0, "a member may commit until it rejoins"
        assert await two.join() == 0
        await joining
        assert await two.commit(6) == RebalanceInProgressError.code
        await both(one.sync(), two.sync())
        two.generation = old
        assert await two.commit(7) == IllegalGenerationError.code
        found = await world.brokers[1].registry.groups.fetch("g")
        assert found[TopicPartition("t", 0)].offset == 5
        await both(one.leave(), two.leave())
        assert await nobody.commit(8) == 0

    run(body)


def test_group_survives_deletion_and_recreation_of_its_topic() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        assert await one.commit(5) == 0
        await world.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
        assert await one.commit(6) == UnknownTopicOrPartitionError.code
        assert await both(one.heartbeat(), two.heartbeat()) == [0, 0]
        await world.make_topic("t")
        assert await world.brokers[1].registry.groups.fetch("g") == {}, (
            "the offsets of the deleted topic are gone"
        )
        assert await one.commit(1) == 0
        assert await both(one.heartbeat(), two.heartbeat()) == [0, 0]

    run(body)


def test_replaced_process_of_a_static_member_is_fenced() -> None:
    async def body(world: World) -> None:
        await world.start()
        (one,) = await gathered(world, 1, group_instance_id="i")
        again = Member(world)
        assert await again.join(group_instance_id="i") == 0
        assert again.generation == 1 and again.answer.skip_assignment
        assert (await again.sync(group_instance_id="i")).assignment == b"work 0"
        fenced = FencedInstanceIdError.code
        assert await one.heartbeat(group_instance_id="i") == fenced
        assert (
            await one.ask("SyncGroup", 5, assignments=[], group_instance_id="i")
        ).error_code == (fenced)

    run(body)


def test_process_that_replaces_a_static_member_reads_its_last_commit() -> None:
    """Regression: the join of the replacing process did not wait for the former process's
    pending commit."""

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        (one,) = await gathered(world, 1, group_instance_id="i")
        assert await one.commit(4) == 0
        committing = asyncio.ensure_future(one.commit(5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await Member(world).join(group_instance_id="i") == 0
        found = await world.brokers[1].registry.groups.fetch("g")
        assert found[TopicPartition("t", 0)].offset == 5
        assert await committing == 0

    run(body)


def test_group_id_may_be_any_text_up_to_the_length_limit() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        for name in ("a/b ünicode%", "..", "\0", "/", "x" * 300, "ü" * 125):
            member = Member(world, name)
            assert await member.join() == 0
            assert (await member.sync()).error_code == 0
            assert await member.commit(3) == 0
            assert (await world.brokers[1].registry.groups.fetch(name)) != {}
        for name in ("", "x" * 1000):
            stranger = Member(world, name)
            code = InvalidGroupIdError.code
            assert await stranger.join() == code
            assert await stranger.heartbeat() == code
            assert (await stranger.sync()).error_code == code
            assert await stranger.commit(1) == code
            assert (await stranger.leave())[0] == code

    run(body)


def test_full_group_refuses_further_members() -> None:
    async def body(world: World) -> None:
        await world.start(group_size_max=3)
        one, two = await gathered(world, 2)
        joining = [asyncio.ensure_future(Member(world).join()) for _ in range(20)]
        await asyncio.sleep(1)
        refused = [task for task in joining if task.done()]
        assert [task.result() for task in refused] == [GroupMaxSizeReachedError.code] * 19
        assert await both(one.heartbeat(), two.heartbeat()) == [RebalanceInProgressError.code] * 2
        assert await both(one.join(), two.join(), *joining) == [
            0, 0, *(task.result() for task in joining)
        ]  # fmt: skip
        assert one.generation == 2

    run(body)


def test_memory_of_group_metadata_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, the broker refuses new members and larger assignments."""

    async def body(world: World) -> None:
        await world.start()
        one, two = await gathered(world, 2)
        said = 2 * (len(SUBSCRIPTION) + len("range")) + len(b"work 0" + b"work 1")
        assert world.brokers[1].groups._held_bytes == said
        monkeypatch.setattr(world.brokers[1].groups, "_bytes_max", said + 10)
        other = Member(world, "other")
        assert await other.join() == GroupMaxSizeReachedError.code
        assert await both(one.join(), two.join()) == [0, 0]
        leader, second = (one, two) if one.answer.members else (two, one)
        refused = await leader.sync(**{leader.id: b"too much work, and some more"})
        assert refused.error_code == wire_code(CoordinationUnavailableError())
        assert (await leader.sync(**{leader.id: b"work 0 and 1"})).assignment == b"work 0 and 1"
        await both(leader.leave(), second.leave())
        assert world.brokers[1].groups._held_bytes == 0
        assert await other.join() == 0

    run(body)


def test_concurrent_joins_do_not_exceed_the_memory_limit_of_group_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: more members joined at the same time than the memory limit allowed.

    Also, the process that replaces a static member was refused at the limit, although its metadata
    replaces that of the former process.
    """

    async def body(world: World) -> None:
        await world.start()
        assert await Member(world).join(group_instance_id="i") == 0
        each = len(SUBSCRIPTION) + len("range")
        monkeypatch.setattr(world.brokers[1].groups, "_bytes_max", 2 * each)
        joining = [asyncio.ensure_future(Member(world).join()) for _ in range(5)]
        await asyncio.sleep(1)
        refused = [task.result() for task in joining if task.done()]
        assert refused == [GroupMaxSizeReachedError.code] * 4
        [waiting] = [task for task in joining if not task.done()]
        again = Member(world)
        assert await both(again.join(group_instance_id="i"), waiting) == [0, 0]
        assert world.brokers[1].groups._held_bytes == 2 * each

    run(body)


def test_ten_thousand_unused_member_ids_do_not_disturb_the_group() -> None:
    """A client requests ids without joining. The group has the default limit of 1,000 members."""

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        limit = world.brokers[1].config.group_size_max
        assert limit == 1000
        join = members.JoinGroupRequest(
            "g", 10_000, 60_000, "", None, (members.JoinProtocol("range", SUBSCRIPTION),)
        )
        frame = memoryview(encode_call(join, 3, "c"))[4:]
        header = received(frame)
        given, codes = [], Counter[int]()
        for _ in range(10_000):
            message = tables.decode(header.api_key, join.VERSION, frame, header.body_at)
            answer = await handler(header.api_key)(world.brokers[1], header, message)
            codes[answer.error_code] += 1
            given += [answer.member_id] * (answer.error_code == MemberIdRequiredError.code)
        free = limit - 2
        assert codes == {
            MemberIdRequiredError.code: free,
            GroupMaxSizeReachedError.code: 10_000 - free,
        }
        assert len(set(given)) == free
        for each in (one, two):
            assert await each.heartbeat() == 0 and await each.commit(3) == 0
        assert (one.generation, two.generation) == (1, 1)
        # An unused member id is released after the session timeout.
        for _ in range(3):
            await asyncio.sleep(5)
            assert await both(one.heartbeat(), two.heartbeat()) == [0, 0]
        three = Member(world)
        joining = asyncio.ensure_future(three.join())
        await asyncio.sleep(1)
        assert await both(one.heartbeat(), two.heartbeat()) == [RebalanceInProgressError.code] * 2
        assert await both(one.join(), two.join(), joining) == [0, 0, 0]
        assert {each.generation for each in (one, two, three)} == {2}

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups_returns_members_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(3)
        one, two = await gathered(world, 2)
        answer = await world.ask("DescribeGroups", version, broker=one.broker, groups=["g"])
        (row,) = answer.groups
        assert (row.error_code, row.group_state, row.protocol_data) == (0, "Stable", "range")
        assert {each.member_id: each.member_assignment for each in row.members} == {
            one.id: b"work 0", two.id: b"work 1",
        }  # fmt: skip
        assert {each.member_metadata for each in row.members} == {SUBSCRIPTION}
        other = one.broker % 3 + 1
        answer = await world.ask("DescribeGroups", version, broker=other, groups=["g"])
        assert answer.groups[0].error_code == NotCoordinatorError.code

    run(body)


def test_group_with_members_is_listed_and_cannot_be_deleted() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        await world.make_topic("u")
        (one,) = await gathered(world, 1)
        assert await one.commit(3) == 0
        answer = await world.ask("ListGroups", 5, states_filter=["stable"])
        assert [(row.group_id, row.group_state) for row in answer.groups] == [("g", "Stable")]
        assert (await world.ask("ListGroups", 5, states_filter=["Empty"])).groups == []
        answer = await world.ask("DeleteGroups", 2, groups_names=["g"])
        assert answer.results[0].error_code == NonEmptyGroupError.code

        async def delete_offset(topic: str) -> int:
            path = "OffsetDeleteRequestTopic"
            part = struct("OffsetDelete", f"{path}.OffsetDeleteRequestPartition", partition_index=0)
            rows = [struct("OffsetDelete", path, name=topic, partitions=[part])]
            answer = await world.ask("OffsetDelete", 0, group_id="g", topics=rows)
            assert answer.error_code == 0
            return int(answer.topics[0].partitions[0].error_code)

        assert await delete_offset("t") == GroupSubscribedToTopicError.code
        assert await delete_offset("u") == 0
        assert await one.heartbeat() == 0
        await one.leave()
        assert await delete_offset("t") == 0
        answer = await world.ask("DeleteGroups", 2, groups_names=["g"])
        assert answer.results[0].error_code == 0

    run(body)


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_group_can_be_deleted_right_after_its_last_member_left(is_pipelined: bool) -> None:
    """DeleteGroups arrives before the coordinator has written the empty generation to ZooKeeper, or
    even before the answer to LeaveGroup."""

    async def body(world: World) -> None:
        await world.start()
        (one,) = await gathered(world, 1)
        leaving = asyncio.ensure_future(one.leave())
        if not is_pipelined:
            await leaving
        deleting = asyncio.ensure_future(world.ask("DeleteGroups", 2, groups_names=["g"]))
        assert await leaving == [0, 0]
        assert (await deleting).results[0].error_code == 0
        assert await one.listed() == []

    run(body)


def test_group_can_be_deleted_right_after_its_static_member_expired() -> None:
    """ZooKeeper is unavailable while the static member's group session times out."""

    async def body(world: World) -> None:
        await world.start()
        (one,) = await gathered(world, 1, group_instance_id="i")
        group = world.brokers[one.broker].groups.find("g")
        assert group is not None
        await asyncio.sleep(9.9)  # The static member's session times out after 10 s.
        world.service.stop()
        while group.size:
            await asyncio.sleep(0.01)
        deleting = asyncio.ensure_future(world.ask("DeleteGroups", 2, groups_names=["g"]))
        await asyncio.sleep(0.1)
        world.service.start()
        assert (await deleting).results[0].error_code == 0
        assert await one.listed() == []

    run(body)


@pytest.mark.parametrize("after_s", [0.5, 1.0])
def test_member_can_join_a_group_despite_repeated_attempts_to_delete_it(after_s: float) -> None:
    """Regression: on a slow ZooKeeper, three deletions kept members from joining for 30 s, because
    each attempt to delete a group replaced its coordinator."""

    async def body(world: World) -> None:
        await world.start(group_initial_rebalance_delay_ms=3000)
        await world.make_topic("t")
        assert await Member(world).commit(3) == 0
        world.service.delay_s = 0.1
        deletions = [
            asyncio.ensure_future(world.ask("DeleteGroups", 2, groups_names=["g"])) for _ in "abc"
        ]
        await asyncio.sleep(after_s)
        one, refused = Member(world), []
        while code := await one.join():
            refused.append(code)
            one.id = ""
            await asyncio.sleep(0.1)
        assert set(refused) <= {NotCoordinatorError.code}
        assert len(refused) <= 5
        for deletion in deletions:
            assert (await deletion).results[0].error_code == NonEmptyGroupError.code

    run(body)


def test_group_keeps_members_and_generation_when_its_coordinator_dies() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        assert await one.commit(5) == 0
        dead = one.broker
        moved = [group for group in map(str, range(100)) if coordinator(world, group) == dead]
        stayed = {group: coordinator(world, group) for group in map(str, range(100))}
        await world.brokers[dead].registry.close()
        world.brokers[dead].groups.close()
        del world.brokers[dead]
        while not all(len(p.registry.snapshot.brokers) == 2 for p in world.brokers.values()):
            await asyncio.sleep(0.1)
        for group, before in stayed.items():
            assert (coordinator(world, group) != before) == (group in moved)
        # The new coordinator does not know the live members, so it must not report Empty.
        for member in (one, two):
            member.broker = coordinator(world, "g")
        assert await one.listed() == ["PreparingRebalance"]
        assert await one.described() == ("PreparingRebalance", 0)
        assert await one.listed() == ["PreparingRebalance"]
        for member in (one, two):
            assert await member.heartbeat() == UnknownMemberIdError.code
            assert await member.commit(6) == UnknownMemberIdError.code
            member.id = ""
        # Members may still read, so the coordinator waits for their rejoin.
        assert await Member(world).commit(6) == CoordinatorLoadInProgressError.code
        answer = await world.ask("DeleteGroups", 2, broker=one.broker, groups_names=["g"])
        assert answer.results[0].error_code == NonEmptyGroupError.code
        joining = asyncio.ensure_future(one.join())
        await asyncio.sleep(1.0)
        assert not joining.done()
        assert await one.described() == ("PreparingRebalance", 1)
        assert await both(joining, two.join()) == [0, 0]
        assert (one.generation, two.generation) == (2, 2)
        await both(one.sync(), two.sync())
        assert await one.commit(7) == 0
        assert await one.described() == ("Stable", 2)

    run(body)


def test_group_whose_members_died_together_with_its_coordinator_becomes_empty() -> None:
    """No member returns, so only list and describe requests make the next coordinator load the
    group."""

    async def body(world: World) -> None:
        await world.start(2)
        (one,) = await gathered(world, 1)
        old = world.brokers.pop(one.broker)
        await old.registry.close()
        old.groups.close()
        while not all(len(p.registry.snapshot.brokers) == 1 for p in world.brokers.values()):
            await asyncio.sleep(0.1)
        one.broker = coordinator(world, "g")
        assert await one.listed() == ["PreparingRebalance"]
        await world.brokers[one.broker].groups.expire()
        assert await one.described() == ("PreparingRebalance", 0)
        await asyncio.sleep(10 / 3 + 1)
        assert await one.listed() == ["Empty"]
        assert await one.described() == ("Empty", 0)
        answer = await world.ask("DeleteGroups", 2, broker=one.broker, groups_names=["g"])
        assert answer.results[0].error_code == 0

    run(body)


def test_describe_groups_shows_the_state_during_a_rebalance() -> None:
    async def body(world: World) -> None:
        await world.start()
        one, two = await gathered(world, 2)
        joining = asyncio.ensure_future(one.join())
        await asyncio.sleep(0.05)
        assert await one.described() == ("PreparingRebalance", 2)
        assert await one.listed() == ["PreparingRebalance"]
        assert await both(joining, two.join()) == [0, 0]
        assert await one.described() == ("CompletingRebalance", 2)
        assert await one.listed() == ["CompletingRebalance"]
        # Subscriptions appear once the rebalance has assigned partitions.
        answer = await world.ask("DescribeGroups", 6, broker=one.broker, groups=["g"])
        (row,) = answer.groups
        assert row.protocol_data == "" and {each.member_metadata for each in row.members} == {b""}
        await both(one.sync(), two.sync())
        assert await one.described() == ("Stable", 2)

    run(body)


def test_replaced_group_coordinator_answers_waiting_requests_with_not_coordinator() -> None:
    """A ZooKeeper watch tells the coordinator immediately that another broker has taken the group
    over."""

    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        joining = asyncio.ensure_future(one.join())
        await asyncio.sleep(0.05)
        thief = world.brokers[3 - one.broker].registry
        await thief.groups.claim("g")
        assert await asyncio.wait_for(joining, 1) == NotCoordinatorError.code
        # The hash of the group's name still selects this broker as coordinator, so it claims the
        # group again at the next join.
        two.id = ""
        assert await two.join() == 0
        assert two.generation == 2
        await two.sync()
        await thief.groups.commit("g", {TopicPartition("t", 0): CommittedOffset(9)})
        assert await two.commit(1) in (NotCoordinatorError.code, UnknownMemberIdError.code)
        assert (await thief.groups.fetch("g"))[TopicPartition("t", 0)].offset == 9

    run(body)


def test_group_requests_to_a_broker_that_is_not_the_coordinator_get_not_coordinator() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t")
        other = 3 - coordinator(world, "g")
        stranger = Member(world, broker=other)
        code = NotCoordinatorError.code
        assert await stranger.join() == code
        assert (await stranger.sync()).error_code == code
        assert await stranger.heartbeat() == code
        assert await stranger.commit(1) == code
        assert (await stranger.leave())[0] == code
        answer = await world.ask("DeleteGroups", 2, broker=other, groups_names=["g"])
        assert answer.results[0].error_code == code

    run(body)


def test_while_zookeeper_is_down_group_members_stay_and_rebalances_wait() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        world.service.stop()
        assert await both(one.heartbeat(), two.heartbeat()) == [0, 0]
        assert await one.commit(1) == 15
        joining = asyncio.ensure_future(both(one.join(), two.join()))
        await asyncio.sleep(2)
        assert not joining.done()
        world.service.start()
        assert await joining == [0, 0]
        assert (one.generation, two.generation) == (2, 2)

    run(body)
