"""A request that repeats a resource gets one description of it.

Otherwise a small request could repeat a topic or a group so often that the answer uses up the
broker's memory.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sim import scheduler
from support.access_world import ADMIN, NAMES, AccessWorld
from support.api_frames import GROUP, LIBRARY, TOPIC, answer_of, request_frame

from broker_lite.errors import InvalidRequestError
from broker_lite.wire.api import ApiKey

TIMES = 3
_METADATA = LIBRARY[ApiKey.METADATA].MetadataRequestTopic
_CONFIGS = LIBRARY[ApiKey.DESCRIBE_CONFIGS].DescribeConfigsResource
_PRODUCERS = LIBRARY[ApiKey.DESCRIBE_PRODUCERS].TopicRequest
_OFFSETS = LIBRARY[ApiKey.OFFSET_FETCH].OffsetFetchRequestGroup
_LISTED = LIBRARY[ApiKey.LIST_OFFSETS].ListOffsetsTopic


def answer(key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    """Send a request as the administrator; return the decoded response."""
    found: list[Any] = []

    async def body() -> None:
        world = await AccessWorld().start()
        reply = await world.send(request_frame(key, version, NAMES, fields), ADMIN)
        found.append(answer_of(key, version, reply.frame))

    scheduler.run(body())
    return found[0]


@pytest.mark.parametrize(
    ("key", "version", "field", "row", "rows"),
    [
        (ApiKey.METADATA, 9, "topics", _METADATA(name=NAMES[TOPIC]), "topics"),
        (
            ApiKey.METADATA,
            12,
            "topics",
            _METADATA(topic_id=uuid.UUID(int=0), name=NAMES[TOPIC]),
            "topics",
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            "resources",
            _CONFIGS(resource_type=2, resource_name=NAMES[TOPIC], configuration_keys=None),
            "results",
        ),
        (ApiKey.DESCRIBE_GROUPS, 5, "groups", NAMES[GROUP], "groups"),
        (
            ApiKey.OFFSET_FETCH,
            8,
            "groups",
            _OFFSETS(group_id=NAMES[GROUP], topics=None),
            "groups",
        ),
        (
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            "topics",
            _PRODUCERS(name=NAMES[TOPIC], partition_indexes=[0, 0]),
            "topics",
        ),
    ],
    ids=str,
)
def test_repeated_resource_is_described_once(
    key: ApiKey, version: int, field: str, row: Any, rows: str
) -> None:
    (described,) = answer(key, version, {field: [row] * TIMES})[rows]
    assert not described.get("error_code")
    assert len(described.get("partitions") or [0]) == 1


def test_partition_that_a_request_for_offsets_repeats_is_refused() -> None:
    partition = _LISTED.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=0
    )
    row = _LISTED(name=NAMES[TOPIC], partitions=[partition, partition])
    (topic,) = answer(ApiKey.LIST_OFFSETS, 7, {"topics": [row]})["topics"]
    codes = [each["error_code"] for each in topic["partitions"]]
    assert codes == [InvalidRequestError.code] * 2
