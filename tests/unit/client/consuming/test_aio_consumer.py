"""Tests of the start of ``AsyncConsumer``. Nothing listens on port 1."""

from __future__ import annotations

import asyncio

import pytest

from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.operations import requests
from broker_lite.errors import NoBrokersError


def test_consumer_whose_start_fails_in_async_with_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: its connections stayed open, because Python calls ``__aexit__`` only after a
    successful ``__aenter__``."""
    monkeypatch.setattr(requests, "FIRST_CONTACT_MS", 1)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        with pytest.raises(NoBrokersError):
            async with consumer:
                raise AssertionError("the consumer cannot start")
        assert not consumer.is_open

    asyncio.run(main())
