"""Tests of a query's security options, and of secrets in the objects that Spark pickles for
tasks."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import InvalidConfigError
from pyspark_logbus import options, security_options
from pyspark_logbus.connection_security import for_tasks, query_security
from pyspark_logbus.datasource import DefaultSource

JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password=" canary ";'
)
KAFKA = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": "/etc/ca.pem",
    "kafka.ssl.endpoint.identification.algorithm": "",
}
OWN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": " canary ",
    "ssl.ca.location": "/etc/ca.pem",
    "ssl.endpoint.identification.algorithm": "none",
}


def test_kafka_connector_and_librdkafka_security_options_mean_the_same() -> None:
    found = query_security(options.parse(KAFKA))
    assert found == query_security(options.parse(OWN))
    assert isinstance(found, ClientSecurity)
    assert (found.username, found.ca_location) == ("alice", "/etc/ca.pem")
    assert not found.checks_host_name
    assert query_security(options.parse({"subscribe": "t"})) is None


def test_every_security_option_can_be_written_with_the_prefix_kafka() -> None:
    rows = {row.name: row for row in options.OPTIONS}
    for name in security_options.DOCS:
        assert rows[name].spellings == (f"kafka.{name}",)
        assert rows[name].reads and rows[name].writes


def test_security_options_that_only_java_clients_have_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options._warned.clear()
    with caplog.at_level(logging.WARNING, "pyspark_logbus"):
        options.parse({"kafka.ssl.protocol": "TLS", "kafka.ssl.trustmanager.algorithm": "PKIX"})
    assert "kafka.ssl.protocol, kafka.ssl.trustmanager.algorithm" in caplog.text


def test_tasks_get_the_path_of_the_client_config_file_not_its_content(tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in OWN.items()), "utf-8")
    file.chmod(0o600)
    values = options.parse({"client.config": str(file)})
    assert query_security(values) == file
    assert for_tasks("h:1", query_security(values), "c", 1000) == file
    file.chmod(0o644)
    with pytest.raises(InvalidConfigError, match="chmod 600"):
        options.parse({"client.config": str(file)})


def test_option_ssl_key_password_is_refused_because_tasks_would_receive_it() -> None:
    values = options.parse({"security.protocol": "SSL", "ssl.key.password": "canary"})
    with pytest.raises(InvalidConfigError, match=r"client\.config") as refused:
        for_tasks("h:1", query_security(values), "c", 1000)
    assert "canary" not in str(refused.value)


def test_source_that_created_its_stream_reader_is_pickled_without_secrets() -> None:
    source = DefaultSource({"bootstrap.servers": "h:1", "subscribe": "t", **OWN})
    assert b"canary" in pickle.dumps(source)
    source.streamReader(source.schema())
    assert b"canary" not in pickle.dumps(source)
    assert pickle.loads(pickle.dumps(source)).name() == "logbus"
    assert isinstance(source.schema(), StructType)


def test_settings_of_a_query_show_no_password() -> None:
    values = options.parse({"subscribe": "t", "topic": "t", **KAFKA})
    for made in (
        options.read_options(values, "h:1", streaming=True),
        options.write_options(values, "h:1"),
    ):
        assert "canary" not in repr(made)
        with pytest.raises(TypeError, match="derived keys"):
            pickle.dumps(made)
