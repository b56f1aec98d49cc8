"""A Metadata request that names many topics leaves the event loop to other requests in between."""

from __future__ import annotations

import asyncio

from sim import scheduler
from support.access_world import ADMIN, NAMES, AccessWorld
from support.api_frames import LIBRARY, answer_of, request_frame

from broker_lite.server.handlers.metadata import ROWS_IN_A_TURN
from broker_lite.wire.api import ApiKey

_TOPIC = LIBRARY[ApiKey.METADATA].MetadataRequestTopic
VERSION, SLICES = 9, 8


def turns_for(topic_count: int) -> int:
    """Return the number of iterations of the event loop until the answer to a request for this many
    topics, none of which exists."""
    turns: list[int] = []

    async def body() -> None:
        world = await AccessWorld().start()
        topics = [_TOPIC(name=f"absent-{number}") for number in range(topic_count)]
        frame = request_frame(ApiKey.METADATA, VERSION, NAMES, {"topics": topics})
        sending = asyncio.ensure_future(world.send(frame, ADMIN))
        count = 0
        while not sending.done():
            await asyncio.sleep(0)
            count += 1
        answered = answer_of(ApiKey.METADATA, VERSION, sending.result().frame)
        assert [row["name"] for row in answered["topics"]] == [row.name for row in topics]
        turns.append(count)

    scheduler.run(body())
    return turns[0]


def test_request_for_many_topics_takes_several_turns_of_the_event_loop() -> None:
    """Regression: a request that named 100,000 topics blocked the event loop for seconds."""
    assert turns_for(SLICES * ROWS_IN_A_TURN) >= turns_for(1) + SLICES - 1
