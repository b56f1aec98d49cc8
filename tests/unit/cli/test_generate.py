"""Tests of files that ``logbus generate`` prints: their metrics, labels and settings exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram
from sitegen import site

from broker_lite.cli.alerts import ALERTS, rules
from broker_lite.cli.dashboards import DASHBOARDS, dashboard
from broker_lite.cli.main import COMMANDS, run
from broker_lite.config import BrokerConfig, parse
from broker_lite.observing.metrics import CLUSTER_METRICS
from broker_lite.server.metrics import METRICS, PREFIX
from pyspark_logbus.lag_metrics import SPARK_METRICS

KINDS: dict[Any, str] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
TABLE = {
    name: (row.kind, set(row.labels)) for name, row in {**CLUSTER_METRICS, **METRICS}.items()
} | {name: (KINDS[kind], set(labels)) for name, (kind, _, labels) in SPARK_METRICS.items()}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds to each series."""
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
"""Metrics of prometheus_client."""
EXPRESSIONS = [(alert.name, alert.expression) for alert in ALERTS] + [
    (f"{name}: {panel.title}", panel.expression)
    for name, panels in DASHBOARDS.items()
    for panel in panels
]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["generate", *words]) == 0
    return capsys.readouterr().out


def series(name: str) -> tuple[str, set[str]]:
    """Return the kind and the labels of the metric to which this Prometheus series belongs.

    Raise KeyError if there is no such metric.
    """
    assert name.startswith(PREFIX), name
    base, _, suffix = name.removeprefix(PREFIX).rpartition("_")
    if suffix == "total":
        kind, labels = TABLE[base]
        assert kind == "counter", name
        return kind, labels
    if suffix in ("bucket", "sum", "count") and base in TABLE:
        kind, labels = TABLE[base]
        assert kind == "histogram", name
        return "counter", labels | ({"le"} if suffix == "bucket" else set())
    kind, labels = TABLE[name.removeprefix(PREFIX)]
    assert kind == "gauge", name
    return kind, labels


def nodes(node: Any) -> Iterator[Any]:
    """Yield a parsed PromQL expression and all expressions inside it."""
    yield node
    children = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    matrix = getattr(node, "vector_selector", None) or getattr(node, "vs", None)
    for child in [*children, matrix, *(getattr(node, "args", None) or ())]:
        if child is not None:
            yield from nodes(child)


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[row[0] for row in EXPRESSIONS])
def test_generated_promql_expression_uses_existing_metrics_and_labels(
    title: str, expression: str
) -> None:
    promql = pytest.importorskip("promql_parser")
    tree = promql.parse(expression.replace("$__rate_interval", "5m"))
    found = [node for node in nodes(tree) if isinstance(node, promql.VectorSelector)]
    assert found
    kinds, labels = set(), set(SCRAPED)
    for selector in found:
        if selector.name in PROCESS:
            kinds.add("counter" if selector.name.endswith("_total") else "gauge")
            continue
        kind, own = series(selector.name)
        kinds.add(kind)
        labels |= own
        assert {matcher.name for matcher in selector.matchers.matchers} <= own | SCRAPED
    for node in nodes(tree):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= labels, "the sum is by a label that no metric has"
        if isinstance(node, promql.Call):
            if node.func.name in ("rate", "increase"):
                assert kinds == {"counter"}
            if node.func.name == "deriv":
                assert kinds == {"gauge"}
            if node.func.name == "histogram_quantile":
                assert "le" in node.args[1].modifier.labels
                assert selector.name.endswith("_bucket")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_places_its_panels_without_overlap(name: str) -> None:
    model = dashboard(name)
    assert model["uid"] == f"logbus-{name}"
    cells = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in model["panels"]]
    assert len(set(cells)) == len(cells) == len(DASHBOARDS[name])
    for panel, row in zip(model["panels"], DASHBOARDS[name], strict=True):
        used = set(re.findall(r"\{\{(\w+)\}\}", row.legend))
        names = re.findall(r"logbus_\w+", row.expression)
        known = set.union(SCRAPED, *(series(each)[1] for each in names))
        assert used <= known, row.title
        assert panel["targets"][0]["expr"] == row.expression


def test_each_generated_alert_says_what_to_do_next() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert.runbook and alert.summary.endswith((".", "records.")), alert.name
        for command in re.findall(r"logbus (\w+)", alert.runbook):
            assert command in COMMANDS, alert.runbook
    assert rules().count("- alert:") == len(ALERTS)


def test_each_generated_alert_links_to_its_section_of_the_documentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "prometheus-rules", "--runbooks", "https://docs.example.org/")
    links = re.findall(r'runbook_url: "https://docs.example.org/operations/(.*?)"', text)
    assert links == [f"alerts.html#{alert.name}" for alert in ALERTS]
    page = site.pages()["operations/alerts.md"]
    assert all(f"{{#{alert.name}}}" in page for alert in ALERTS)


def test_generated_prometheus_rules_are_accepted_by_promtool(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    path = tmp_path / "rules.yml"
    path.write_text(rules(), "utf-8")
    subprocess.run([promtool, "check", "rules", str(path)], check=True)


def test_generate_grafana_prints_one_dashboard_or_writes_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert json.loads(printed(capsys, "grafana", "broker")) == dashboard("broker")
    assert run(["generate", "grafana", "--dir", str(tmp_path / "new")]) == 0
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {f"logbus-{name}.json" for name in DASHBOARDS}
    capsys.readouterr()
    assert run(["generate", "grafana"]) == 2
    assert "--dir FOLDER" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run(["generate", "grafana", "--dir", str(tmp_path / "file" / "x")]) == 1
    assert "give another --dir" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["systemd", "docker", "compose", "kubernetes"])
def test_every_setting_in_a_generated_deployment_file_exists(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = printed(capsys, name)
    assert not re.search(r"@[A-Z]+@", text)
    lines = re.findall(r"^ +(?:echo \")?([a-z][a-z.]+)=([^\"\s]*)", text, re.MULTILINE)
    settings = {key: re.sub(r"^\$.*", "1", value) for key, value in lines}
    assert len(settings) >= (8 if name in ("compose", "kubernetes") else 0)
    parse(BrokerConfig, settings)
    for command in re.findall(r"(?:exec|bin/)logbus (\w+)", text):
        assert command == "broker"


def test_broker_imports_no_library_that_its_image_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    removed = re.findall(r"pyarrow/\*(\w+)\*", printed(capsys, "docker"))
    assert removed == ["flight", "s3"]
    program = """
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys(("pyarrow._flight", "pyarrow._s3fs"))
import broker_lite, broker_lite.server
for module in pkgutil.walk_packages(broker_lite.__path__, "broker_lite."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert "pyarrow" in sys.modules
sys.exit(any(".tests." in name for name in sys.modules))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["compose", "kubernetes", "prometheus-rules"])
def test_generated_yaml_is_valid_for_a_yaml_parser(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all(printed(capsys, name)))
    assert all(isinstance(each, dict) for each in documents)
    if name == "compose":
        (compose,) = documents
        assert set(compose["configs"]) == {"broker-0", "broker-1", "broker-2"}
        assert set(compose["services"]) == {"zookeeper", *compose["configs"]}
    if name == "kubernetes":
        kinds = [each["kind"] for each in documents]
        assert kinds == ["Service", "ConfigMap", "PodDisruptionBudget", "StatefulSet"]
    if name == "prometheus-rules":
        found = [(row["alert"], row["expr"]) for row in documents[0]["groups"][0]["rules"]]
        assert found == [(alert.name, alert.expression) for alert in ALERTS]


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("/etc/logbus/broker.conf", "/etc/logbus/broker.conf"),
        ("/srv/my logs/100%/$x.conf", '"/srv/my logs/100%%/$$x.conf"'),
        ("broker.conf", f"{Path.cwd()}/broker.conf"),
    ],
)
def test_systemd_unit_names_the_file_of_settings_as_systemd_reads_it(
    path: str, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: systemd cut a path at a space, and looked for a relative path in /."""
    text = printed(capsys, "systemd", "--config", path)
    assert f"broker --config {argument}\n" in text


def test_systemd_analyze_accepts_the_generated_unit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = printed(capsys, "systemd", "--user", "root")
    (command,) = re.findall(r"^ExecStart=(\S+) ", text, re.MULTILINE)
    if not Path(command).exists():
        text = text.replace(command, "/bin/true")
    unit = tmp_path / "logbus-broker.service"
    unit.write_text(text, "utf-8")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "logbus-broker.service" not in done.stderr, done.stderr
