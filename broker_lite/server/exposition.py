"""Write the text of ``/metrics`` with the library ``prometheus_client``.

The values are copied on the event loop's thread. ``render`` runs on another thread, and adds gauges
that take long to read, the metrics of the process and help texts. The import of the library takes
66 ms. Only this module imports it, so brokers without ``metrics.port`` start without the delay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker_lite.server.metrics import COUNTER, HISTOGRAM, SECONDS, Metrics, Sample


class Exposition:
    """Writes the metrics of one broker in the formats of Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # The library's default registry may contain metrics of other code in this process, so keep
        # this collector out of it.
        self._process = ProcessCollector(registry=None)

    async def samples(self) -> list[Sample]:
        """Return a copy of the values of all metrics. Call it on the event loop, which serves
        requests between two metrics, and between two slices of a gauge."""
        samples = []
        for sample in self._metrics.steps():
            if sample is not None:
                samples.append(sample)
            await asyncio.sleep(0)
        return samples

    def render(self, samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
        """Return the metrics as text and its content type: Prometheus' format, or OpenMetrics if
        the header ``accept`` asks for it."""
        return render([*samples, *self._metrics.slow_samples()], self._process, accept)


def render(samples: Iterable[Sample], process: Collector, accept: str) -> tuple[bytes, str]:
    """Return ``samples`` and the metrics of this process as text, and the text's content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    registry.register(process)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def text(metrics: Metrics) -> str:
    """Return all metrics as text in Prometheus' format."""
    exposition = Exposition(metrics)
    body, _ = exposition.render(metrics.samples(), "")
    return body.decode()


class _Samples(Collector):
    """Converts the samples of one request to metrics of ``prometheus_client``."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        for sample in self._samples:
            name, kind, help_text, labels, prefix = sample.metric
            if kind == HISTOGRAM:
                yield _histogram(sample)
                continue
            family = CounterMetricFamily if kind == COUNTER else GaugeMetricFamily
            rows = family(prefix + name, help_text, labels=labels)
            for values, amount in sample.values.items():
                rows.add_metric(values, amount)
            yield rows


def _histogram(sample: Sample) -> Family:
    name, _, help_text, labels, prefix = sample.metric
    rows = HistogramMetricFamily(prefix + name, help_text, labels=labels)
    for values, (counts, total) in sample.buckets.items():
        cumulated, below = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
            below += count
            cumulated.append((bound, below))
        rows.add_metric(values, buckets=cumulated, sum_value=total)
    return rows
