"""Scrape the metrics of the brokers of a cluster."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from typing import NamedTuple

from broker_lite.local.broker import LocalBroker
from support.promtool import Scrape, Series, parsed


class Scraped(NamedTuple):
    """The metrics of several brokers at one time."""

    values: Scrape

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the series with this name whose labels include ``labels``."""
        wanted = labels.items()
        return sum(
            value
            for series, value in self.values.items()
            if series.name == name and wanted <= dict(series.labels).items()
        )


def scraped(brokers: Iterable[LocalBroker]) -> Scraped:
    """Return the metrics of those of the brokers that run. A paused broker does not answer."""
    found: dict[Series, float] = {}
    for broker in brokers:
        if broker.is_running:
            url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                found |= parsed(answer.read().decode(), instance=f"broker-{broker.id}")
    return Scraped(found)
