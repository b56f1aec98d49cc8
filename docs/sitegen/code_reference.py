"""The references of errors, metrics and Spark options, from the tables of the code."""

from __future__ import annotations

import re
from collections.abc import Iterable

from broker_lite.cli.alerts import ALERTS
from broker_lite.errors import TABLE, LogbusError
from broker_lite.observing.metrics import CLUSTER_METRICS
from broker_lite.server.log_events import EVENTS
from broker_lite.server.metrics import COUNTER, METRICS, PREFIX, SECONDS
from pyspark_logbus.lag_metrics import SPARK_METRICS
from pyspark_logbus.options import OPTIONS, Option
from sitegen.error_texts import ERROR_TEXTS, NO_TEXT
from sitegen.tables import cell, code, prose, table

_ERRORS = """# Errors

The text of every error begins with its name in brackets, such as `[LOGBUS_NO_CLUSTER]`. Find the name here.

In Python each error is a class of `pyspark_logbus.errors`. *Retriable* means that clients retry it by themselves until
the deadline of the call. *Definite* means that the failed request certainly had no effect; after any other error it may
have taken effect. Codes below 10000 are Kafka's.

In Spark the error is part of a longer text. This expression finds it:

```text
re.search(r"\\[LOGBUS_\\w+\\].*", str(query.exception())).group()
```
"""

_METRICS = """# Metrics

A broker with `metrics.port` set serves these metrics at `/metrics`, for Prometheus. Units are seconds and bytes;
everything else is a count. A counter has the suffix `_total`. Histograms of durations have buckets from {first} s to
{last} s. `logbus generate grafana` prints dashboards, and `logbus generate prometheus-rules` prints alerts.

## Brokers

"""

_CONSOLE_METRICS = """
## Metrics of a cluster

`logbus console` serves metrics of the whole cluster, which no broker knows by itself. Metrics of partitions need `--by-partition`.
With `--compat kafka_exporter` it also serves the metrics of kafka_exporter under their names (`kafka_consumergroup_lag`, …).

"""

_SPARK_METRICS = """
## Spark driver

`pyspark_logbus.LagMetrics(spark)` counts every query of a session.

"""

_EVENTS = """# Log events

With `log.format=json` each line of a broker's log is a JSON object with `time`, `level`, `logger`, `message` and `broker_id`.
Lines about these events also have `event`, and `topic`, `partition` or `group` if the event concerns one. Search for the event:
its name stays when the text of a line changes.

"""

_ALERTS = """# Alerts

`logbus generate prometheus-rules` prints these alerts as a rule file. Tests check each alert against the metrics of a
damaged cluster, or against the table of [metrics](../reference/metrics.md). With `--runbooks URL`, the address of this
site, an alert links to its section of this page.
"""

_OPTIONS = """# Spark options

`format("logbus")` takes the options of Spark's Kafka source and sink, and more. Names are not case-sensitive. Times are in
milliseconds, sizes in bytes. A source needs exactly one of `subscribe`, `subscribePattern` and `assign`.

`bootstrap.servers` or `zookeeper.connect` names the cluster. Without them the environment (`LOGBUS_BOOTSTRAP_SERVERS`,
`LOGBUS_ZOOKEEPER`) names it. The default is the cluster that `logbus up` last started.

Options of Kafka under `kafka.` that have no effect in logbus are ignored with one warning. Any other unknown option is
an error that names the nearest valid one.
"""


def errors() -> str:
    """Return the reference of errors: each with an anchor, its cause and its cure."""
    return _ERRORS + "\n".join(_error(row) for row in sorted(TABLE, key=lambda row: row.name))


def _error(row: type[LogbusError]) -> str:
    text = ERROR_TEXTS.get(row.name, NO_TEXT)
    facts = [f"`[LOGBUS_{row.name}]`", f"class `{row.__name__}`", f"code {row.code}"]
    facts += ["retriable"] if row.retriable else []
    facts += ["definite"] if row.definite else ["may have taken effect"]
    return (
        f"\n## {row.name} {{#LOGBUS_{row.name}}}\n\n{text.cause}\n\n"
        f"**What to do:** {text.cure}\n\n{', '.join(facts)}\n{{: .facts }}\n"
    )


def metrics() -> str:
    """Return the reference of the metrics of brokers, of a cluster and of Spark drivers."""
    return (
        _METRICS.format(first=SECONDS[0], last=int(SECONDS[-1]))
        + _metric_table((m.name, m.kind, m.help, m.labels) for m in METRICS.values())
        + _CONSOLE_METRICS
        + _metric_table((m.name, m.kind, m.help, m.labels) for m in CLUSTER_METRICS.values())
        + _SPARK_METRICS
        + _metric_table((n, kind, text, labels) for n, (kind, text, labels) in spark_rows())
    )


def log_events() -> str:
    """Return the reference of the events in JSON logs."""
    rows = ((code(name), cell(text)) for name, text in sorted(EVENTS.items()))
    return _EVENTS + table(("event", "meaning"), rows)


def alerts() -> str:
    """Return the runbook of the alerts: each with an anchor, its expression and the next step."""
    return _ALERTS + "".join(
        f"\n## {alert.name} {{#{alert.name}}}\n\n{_plain(alert.summary)}\n\n"
        f"**What to do:** {alert.runbook.rstrip('.')}.\n\n```text\n{alert.expression}\n```\n\n"
        f"{alert.severity}, {_after(alert.minutes)}\n{{: .facts }}\n"
        for alert in ALERTS
    )


def _plain(summary: str) -> str:
    """Return a summary with Prometheus' templates as words: ``{{ $labels.dir }}`` as *dir*."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+) \}\}", r"*\1*", summary)


def _after(minutes: int) -> str:
    return f"after {minutes} minutes" if minutes else "at once"


def spark_rows() -> list[tuple[str, tuple[str, str, tuple[str, ...]]]]:
    """Return the metrics of a Spark driver: name without prefix, kind, help, labels."""
    return [
        (name.removeprefix(PREFIX), (kind.__name__.lower(), text, labels))
        for name, (kind, text, labels) in SPARK_METRICS.items()
    ]


def _metric_table(rows: Iterable[tuple[str, str, str, tuple[str, ...]]]) -> str:
    return table(
        ("metric", "kind", "labels", "meaning"),
        (
            (
                code(PREFIX + name.removesuffix("_total") + ("_total" if kind == COUNTER else "")),
                kind,
                ", ".join(code(label) for label in labels),
                cell(text),
            )
            for name, kind, text, labels in rows
        ),
    )


def spark_options() -> str:
    """Return the reference of Spark's options: common ones, those of the source and those of the
    sink."""
    both = [option for option in OPTIONS if option.reads and option.writes]
    source = [option for option in OPTIONS if option.reads and not option.writes]
    sink = [option for option in OPTIONS if option.writes and not option.reads]
    return "\n".join(
        [
            _OPTIONS,
            "## Source and sink\n\n" + _option_table(both),
            "## Source\n\n" + _option_table(source),
            "## Sink\n\n" + _option_table(sink),
        ]
    )


def _option_table(options: Iterable[Option]) -> str:
    return table(
        ("option", "default", "effect"),
        (
            (
                "<br>".join(code(name) for name in (option.name, *option.spellings)),
                code(option.default),
                cell(prose(option.doc)),
            )
            for option in options
        ),
    )
