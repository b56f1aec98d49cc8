"""Tests of the context of a request: the client, its software, and the request's deadline."""

from __future__ import annotations

import asyncio

from support.handler_world import World, context_of, kind

from broker_lite.server.handlers import api_versions
from broker_lite.server.network.access import broker_client_id
from broker_lite.wire.api import ApiKey


def test_request_counts_as_sent_by_a_broker_only_with_the_client_id_of_a_broker() -> None:
    assert context_of(ApiKey.METADATA, 12, broker_client_id(3)).is_broker
    assert not context_of(ApiKey.METADATA, 12, "rdkafka").is_broker
    assert not context_of(ApiKey.METADATA, 12, None).is_broker


def test_deadline_of_a_request_counts_from_its_arrival() -> None:
    context = context_of(ApiKey.PRODUCE, 9)._replace(arrived_ms=1000)
    assert context.deadline_ms(500) == 1500


def test_session_remembers_the_client_software_named_in_an_api_versions_request() -> None:
    async def body() -> None:
        world = await World().start()
        request = kind("ApiVersionsRequest")(
            version=3, client_software_name="librdkafka", client_software_version="2.6.0"
        )
        context = context_of(ApiKey.API_VERSIONS, 3, "app")
        await api_versions.handle(world.brokers[1], context, request)
        assert str(context) == "127.0.0.1:40000: client 'app' (librdkafka 2.6.0)"

    asyncio.run(body())


def test_request_description_truncates_the_client_id_to_100_characters() -> None:
    context = context_of(ApiKey.PRODUCE, 9, "c" * 32_767)
    assert str(context).startswith("127.0.0.1:40000: client 'ccc") and len(str(context)) < 140
    assert context_of(ApiKey.PRODUCE, 9, None).shown_client_id is None
