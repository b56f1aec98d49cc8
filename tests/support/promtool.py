"""Evaluate alerts over scraped values with ``promtool`` of Debian's Prometheus package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_lite.cli.alerts import rules

MINUTES = 40
"""Minutes for which the scraped values repeat: longer than the ``for`` of every alert."""


class Series(NamedTuple):
    """A time series, identified by its name and labels."""

    name: str
    labels: tuple[tuple[str, str], ...]


Scrape = Mapping[Series, float]


def parsed(text: str, **target: str) -> dict[Series, float]:
    """Parse the samples of a /metrics page; add its target's labels, as Prometheus does."""
    return {
        Series(sample.name, tuple(sorted((sample.labels | target).items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("logbus_")
    }


def firing(
    scrape: Scrape,
    folder: Path,
    *,
    each_minute: Scrape | None = None,
    gone: Collection[Series] = (),
    samples: Mapping[Series, str] | None = None,
) -> set[str]:
    """Return the alerts that fire if samples have the values of ``scrape`` for ``MINUTES`` minutes.

    ``each_minute`` holds the amounts by which some samples grow every minute. The series in
    ``gone`` end after the first minute. ``samples`` holds the samples of other series, one a
    minute, as promtool writes them: ``_x35 1x5`` has none for 35 minutes, then 1.

    The function skips the test if promtool is not installed.
    """
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    (folder / "rules.yml").write_text(rules(), "utf-8")
    rises = each_minute or {}
    values = {
        series: f"{value:f}+{rises.get(series, 0.0):f}x{1 if series in gone else MINUTES}"
        for series, value in scrape.items()
    } | dict(samples or {})
    given = [
        {
            "series": series.name + "{" + ",".join(_label(*label) for label in series.labels) + "}",
            "values": row,
        }
        for series, row in values.items()
    ]
    names = 'count by (alertname) (ALERTS{alertstate="firing"})'
    # Expect a wrong sample: promtool prints the samples that it found only in its error report.
    asked = {"expr": names, "eval_time": f"{MINUTES}m", "exp_samples": [{"labels": "", "value": 0}]}
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": [asked]}],
    }
    file = folder / "alerts.test.yml"
    file.write_text(json.dumps(document), "utf-8")  # JSON is valid YAML.
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "got:" in said, said
    return set(re.findall(r'alertname="(\w+)"', said.partition("got:")[2]))


def _label(name: str, value: str) -> str:
    return f"{name}={json.dumps(value)}"
