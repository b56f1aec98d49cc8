"""Counters, gauges and histograms, as text and over HTTP."""

from __future__ import annotations

import asyncio

from broker_lite.server.metrics import Metrics


def sample() -> Metrics:
    metrics = Metrics()
    metrics.count("requests", label="fetch")
    metrics.count("requests", 2, label="produce")
    metrics.gauge("connections", lambda: 7)
    for value in (0.5, 3, 70_000):
        metrics.observe_ms("flush", value)
    return metrics


def test_metrics_text_is_in_prometheus_format() -> None:
    lines = sample().text().splitlines()
    assert lines.count("# TYPE logbus_requests_total counter") == 1
    assert 'logbus_requests_total{kind="produce"} 2' in lines
    assert "logbus_connections 7" in lines
    assert 'logbus_flush_ms_bucket{le="1"} 1' in lines
    assert 'logbus_flush_ms_bucket{le="5"} 2' in lines
    assert 'logbus_flush_ms_bucket{le="+Inf"} 3' in lines
    assert "logbus_flush_ms_count 3" in lines
    assert sample().value("requests", "produce") == 2


def test_only_the_metrics_path_is_served() -> None:
    async def main() -> None:
        metrics = sample()
        port = await metrics.serve("127.0.0.1", 0)

        async def get(path: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        assert b"logbus_connections 7" in await get(b"/metrics")
        assert (await get(b"/secret")).startswith(b"HTTP/1.1 404")
        await metrics.close()

    asyncio.run(asyncio.wait_for(main(), 20))
