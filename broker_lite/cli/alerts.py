"""The alert rules that ``logbus generate prometheus-rules`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple


class Alert(NamedTuple):
    """An alert rule. Prometheus fires it once ``expression`` has returned a value for ``minutes``.
    ``runbook`` is the operator's next step."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    runbook: str


CRITICAL, WARNING = "critical", "warning"

_CONTROLLERS = (
    "sum by (cluster_id) (logbus_controller_active "
    "* on (instance, job) group_left (cluster_id) logbus_broker_info)"
)
"""The number of active controllers of each cluster, for a Prometheus that watches several."""
_NONE = "0 * count by (cluster_id) (max_over_time(logbus_broker_info[1d]))"
"""Zero for each cluster that had brokers within a day: a cluster without a running broker has no
other value."""


def _grew(counter: str) -> str:
    """Return an expression for a counter that grew within 15 minutes.

    A series may begin with its first count, which ``increase`` ignores. Compare the counter with
    its last value before these 15 minutes, too. The range of 1 h spans scrapes that failed."""
    before = f"last_over_time({counter}[1h] offset 15m)"
    return f"increase({counter}[15m]) > 0 or ({counter} > 0 unless {counter} == {before})"


ALERTS = (
    Alert("LogbusNoController", f"({_CONTROLLERS} or {_NONE}) < 1", 1, CRITICAL,
          "No broker of cluster {{ $labels.cluster_id }} is the controller, so no leader is "
          "elected.",
          "Check that brokers run, that ZooKeeper has a quorum, and that brokers are connected to "
          "it: logbus health"),
    Alert("LogbusSeveralControllers", f"{_CONTROLLERS} > 1", 1, CRITICAL,
          "{{ $value }} brokers of cluster {{ $labels.cluster_id }} act as the controller.",
          "Restart each broker with logbus_controller_active 1 that is not the controller of: "
          "logbus status"),
    Alert("LogbusLeaderlessPartitions", "max(logbus_leaderless_partitions) > 0", 1, CRITICAL,
          "{{ $value }} partitions have no leader and can be neither read nor written.",
          "Start the brokers that hold their in-sync replicas. logbus health names them"),
    Alert("LogbusBelowMinInsync", "sum(logbus_under_min_isr_partitions) > 0", 1, CRITICAL,
          "{{ $value }} partitions refuse acks=all.",
          "Start the missing brokers. logbus health names them"),
    Alert("LogbusUnderReplicated", "sum(logbus_under_replicated_partitions) > 0", 5, WARNING,
          "{{ $value }} partitions have a replica that is not in sync.",
          "Find the broker that is down or slow: logbus health"),
    Alert("LogbusBrokerNotReady", "logbus_ready == 0", 2, CRITICAL,
          "Broker {{ $labels.instance }} does not serve clients.",
          "Read the reasons on the broker's metrics port: curl http://HOST:PORT/readyz"),
    Alert("LogbusDiskSpaceLow", "logbus_disk_free_bytes / logbus_disk_size_bytes < 0.15", 5,
          WARNING, "Less than 15 % of {{ $labels.dir }} on {{ $labels.instance }} is free.",
          "Shorten retention.ms or retention.bytes (logbus topic alter), or enlarge the disk"),
    Alert("LogbusDiskAlmostFull", "logbus_disk_free_bytes / logbus_disk_size_bytes < 0.05", 1,
          CRITICAL, "Less than 5 % of {{ $labels.dir }} on {{ $labels.instance }} is free.",
          "Free space now: a broker with a full disk refuses records and leads no partition that "
          "another broker with space can lead"),
    Alert("LogbusDiskFull", "logbus_disk_full > 0", 0, CRITICAL,
          "Broker {{ $labels.instance }} refuses records: {{ $labels.dir }} is full.",
          "Free space; the broker resumes by itself. Until then, brokers with space lead its "
          "partitions"),
    Alert("LogbusDiskFailed", "logbus_disk_failed > 0", 0, CRITICAL,
          "The log directory {{ $labels.dir }} on {{ $labels.instance }} failed.",
          "Read broker.log, replace the disk, start the broker with an empty directory"),
    Alert("LogbusSlowFlush",
          "histogram_quantile(0.99, sum by (instance, le) "
          "(rate(logbus_flush_duration_seconds_bucket[5m]))) > 0.1", 5, WARNING,
          "One flush in a hundred on {{ $labels.instance }} takes {{ $value }} s.",
          "Look for other load on the disk, or move the data to a faster one"),
    Alert("LogbusCorruptBatch", _grew("logbus_corrupt_batches_total"), 0, CRITICAL,
          "Broker {{ $labels.instance }} found a corrupt batch.",
          "Read broker.log for the partition and offset, then: logbus storage verify DIR"),
    Alert("LogbusZooKeeperSessionLost",
          "increase(logbus_zookeeper_session_losses_total[15m]) >= 3", 0, WARNING,
          "Broker {{ $labels.instance }} lost {{ $value }} ZooKeeper sessions in 15 minutes.",
          "Check the network and ZooKeeper's disk, or raise zookeeper.session.timeout.ms"),
    Alert("LogbusTransactionOpen", "logbus_oldest_transaction_age_seconds > 900", 0, WARNING,
          "A transaction, open for {{ $value }} s, hides later records from consumers.",
          "Find its owner and the next step: logbus doctor"),
    Alert("LogbusCertificateEnds", "logbus_certificate_end_seconds - time() < 14 * 86400", 0,
          WARNING, "The certificate of listener {{ $labels.listener }} on {{ $labels.instance }} "
          "ends within 14 days.",
          "Issue a new one and replace the file of ssl.keystore.location: logbus cert renew"),
    Alert("LogbusCertificateRejected", _grew("logbus_certificate_reloads_failed_total"), 0, WARNING,
          "Broker {{ $labels.instance }} does not use the changed TLS files of listener "
          "{{ $labels.listener }}.",
          "Read broker.log for the reason, and replace the files"),
    Alert("LogbusUnreadableZnodes", "max(logbus_unreadable_znodes) > 0", 0, WARNING,
          "Brokers cannot read {{ $value }} users, ACLs or quotas, and deny what depends on them.",
          "Read which ones, and what to do: logbus health"),
    Alert("LogbusGroupLate", "max by (group, topic) (logbus_group_lag_seconds) > 300", 5, WARNING,
          "Group {{ $labels.group }} is {{ $value }} s behind in topic {{ $labels.topic }}.",
          "Look at its members and partitions: logbus groups describe GROUP"),
    Alert("LogbusGroupLagGrowing",
          "deriv(logbus_group_lag_records[30m]) > 0 and logbus_group_lag_records > 0", 30, WARNING,
          "Group {{ $labels.group }} falls behind in topic {{ $labels.topic }}.",
          "Add members, up to the number of partitions: logbus groups members GROUP"),
    Alert("LogbusStaleSample", "logbus_sample_age_seconds > 60", 5, WARNING,
          "The console at {{ $labels.instance }} has not read the cluster for {{ $value }} s.",
          "Check that brokers answer from its host: logbus health -b HOST:PORT"),
    Alert("LogbusSparkLagGrowing",
          "deriv(logbus_spark_lag_records[30m]) > 0 and logbus_spark_lag_records > 0", 30, WARNING,
          "Query {{ $labels.query }} falls behind: {{ $value }} more records each second.",
          "Raise maxBytesPerTrigger or add cores; compare with: logbus lag"),
    Alert("LogbusSparkRecordsLost", _grew("logbus_spark_lost_records_total"), 0, CRITICAL,
          "Query {{ $labels.query }} skipped {{ $value }} deleted records.",
          "Lengthen retention.ms of its topics; the query's log names the offsets"),
)  # fmt: skip
"""All alert rules. A test checks that logbus serves the metrics and labels in the expressions."""


PAGE = "operations/alerts.html"
"""Path of the documentation page that has an anchor for each alert."""


def rules(runbooks: str = "") -> str:
    """Return the alerts as a rule file of Prometheus (YAML). With ``runbooks``, the address of the
    documentation site, each alert links to its section there."""
    return "\n".join(_lines(runbooks)) + "\n"


def _lines(runbooks: str) -> Iterator[str]:
    yield "# Alert rules of logbus. Check with: promtool check rules FILE"
    yield "groups:"
    yield "- name: logbus"
    yield "  rules:"
    for alert in ALERTS:
        yield f"  - alert: {alert.name}"
        # Write the expression as a JSON string: every JSON string is a YAML string, too.
        yield f"    expr: {json.dumps(alert.expression)}"
        yield f"    for: {alert.minutes}m"
        yield f"    labels: {{severity: {alert.severity}}}"
        yield "    annotations:"
        yield f"      summary: {json.dumps(alert.summary)}"
        yield f"      runbook: {json.dumps(alert.runbook)}"
        if runbooks:
            address = f"{runbooks.rstrip('/')}/{PAGE}#{alert.name}"
            yield f"      runbook_url: {json.dumps(address)}"
