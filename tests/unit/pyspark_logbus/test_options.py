"""Tests of the options of Spark's source and sink: invalid values, aliases, defaults."""

from __future__ import annotations

import logging
import pickle

import pytest

from broker_lite.errors import InvalidConfigError
from pyspark_logbus import offsets, options

READ = {"subscribe": "t"}
TLS = {"kafka.security.protocol": "SSL"}
SCRAM = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule required"
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": f'{SCRAM} username="alice" password="canary";',
}


def stream(**given):
    return options.read_options(options.parse({**READ, **given}), "h:1", streaming=True)


def batch(**given):
    return options.read_options(options.parse({**READ, **given}), "h:1", streaming=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "Only one of"),
        ({"subscribe": "t", "subscribePattern": "t"}, "Only one of"),
        ({"subscribe": " , "}, "No topics to subscribe"),
        ({"assign": "t"}, "assign"),
        ({"subscribePattern": "("}, "regular expression"),
        ({"subscribePattern": r"\Qa.b\E"}, "regular expression"),
        ({"subscribePattern": "[a-z&&[^bc]]+"}, r"intersects sets \(&&\), which Java reads diff"),
        ({"subscribePattern": "x[a-c[x-z]]"}, r"has a set inside a set.*join the sets"),
        ({"subscribePattern": r"[]\]&&a]"}, "intersects sets"),
        ({"subscribePattern": r"\0141pple"}, "octal escape.*write the character"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"maxoffsetpertrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"kafka.bootstrap.server": "h:1"}, "did you mean 'kafka.bootstrap.servers'"),
        ({"kafka.fetch.min.byte": "1"}, "did you mean 'kafka.fetch.min.bytes'"),
        ({"zzz": "1"}, "unknown option 'zzz'"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "not supported"),
        ({"kafka.value.deserializer": "x"}, "not supported"),
        ({"kafka.key.serializer": "x"}, "not supported"),
        ({"kafka.value.serializer": "x"}, "not supported"),
        ({"kafka.enable.auto.commit": "true"}, "not supported"),
        ({"kafka.interceptor.classes": "x"}, "not supported"),
        ({"kafka.partitioner.class": "x.Y"}, "not supported: .* write a column 'partition'"),
        ({"kafka.partitioner.ignore.keys": "true"}, "not supported: .* write a column 'partition'"),
        ({"kafka.buffer.memory": "0"}, "buffer.memory='0': give a whole number"),
        ({"kafka.security.protocol": "SASL"}, "security.protocol='SASL': give one of PLAINTEXT"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism='' .*give one of SCRAM-SHA-256"),
        ({"kafka.ssl.truststore.location": "x"}, "uses no TLS; set security.protocol=SSL"),
        ({**TLS, "kafka.ssl.truststore.location": "/t.jks"}, "keytool -list -rfc -keystore /t.jks"),
        ({**TLS, "kafka.ssl.keystore.location": "/k.p12"}, "openssl pkcs12 -in /k.p12 -nodes"),
        ({**TLS, "kafka.ssl.keystore.type": "JKS"}, "ssl.keystore.type='JKS': .*importkeystore"),
        ({**TLS, "kafka.ssl.truststore.password": "canary"}, "truststore.password is set, but"),
        ({**TLS, "kafka.ssl.keystore.key": "canary"}, "holds key material.*ssl.keystore.location"),
        ({**TLS, "kafka.ssl.enabled.protocols": "TLSv1.1"}, "give TLSv1.3, TLSv1.2 or both"),
        ({**TLS, "kafka.ssl.cipher.suites": "x"}, "not supported: the listener chooses"),
        ({**TLS, "kafka.ssl.engine.factory.class": "x.Y"}, "names Java code"),
        ({"kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos is not supported"),
        ({"kafka.sasl.oauthbearer.extensions": "x"}, "fetched with sasl.oauthbearer.token"),
        ({**LOGIN, "kafka.sasl.mechanism": "PLAIN"}, "is a login with SCRAM.*change one of them"),
        ({**LOGIN, "kafka.sasl.jaas.config": f'{SCRAM} username="a" password=canary'}, "in ';'"),
        ({**LOGIN, "kafka.sasl.jaas.config": f'{SCRAM} username="a" password="canary'}, "parsed"),
        ({**LOGIN, "kafka.sasl.jaas.config": f'{SCRAM} password="canary";'}, "needs sasl.username"),
        ({**LOGIN, "kafka.sasl.jaas.config": "com.sun.JndiLoginModule required;"}, "login module"),
        ({"sasl.password": "canary", "kafka.sasl.password": "canary-2"}, "two spellings"),
        ({**LOGIN, "sasl.jaas.config": "canary"}, "two spellings"),
        ({"kafka.transactional.id": "x"}, "transactionalId"),
        ({"txnVersion": "1"}, "transactionVersion"),
        ({"option.subscribe": "t", "provider": "logbus"}, "CREATE TEMPORARY VIEW name USING"),
        ({"bootstrap.servers": "a:1", "kafka.bootstrap.servers": "b:1"}, "two spellings"),
        ({"group.id": "a", "kafka.group.id": "b"}, "two spellings"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "a"}, "minPartitions"),
        ({"minPartitions": "1.0"}, "minPartitions"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "duration"),
        ({"startingTimestamp": "x"}, "expected a single long value"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":"x"}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":9223372036854775808}}'}, "t-0 has 9223372036"),
        ({"startingTimestamp": "99999999999999999999"}, "startingTimestamp='99999999999999999999'"),
        ({"endingTimestamp": "9223372036854775808"}, "endingTimestamp"),
        ({"startingTimestamp": "٣"}, "startingTimestamp"),
        ({"kafka.max.partition.fetch.bytes": "2147483648"}, "fetch.bytes.* at most 2147483647"),
        ({"maxOffsetsPerTrigger": "9" * 5000}, "maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "9" * 20 + "d"}, "maxTriggerDelay"),
        ({"endingOffsets": '{"t":{"0":99999999999999999999}}'}, "endingOffsets: t-0 has 9999999"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "error, latest"),
        ({"endingOffsets": "earliest"}, "can't be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "can't be earliest"),
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            r"minOffsetsPerTrigger\(20\) is higher than the maxOffsetsPerTrigger\(15\)",
        ),
        ({"minPartitions": "5", "maxPartitions": "2"}, "higher than maxPartitions"),
        ({"acks": "2"}, "acks"),
        ({"acks": "1", "enable.idempotence": "true"}, "needs acks=all"),
        ({"compression.type": "snapy"}, "compression.type"),
        ({"topic": " "}, "topic is empty"),
    ],
)
def test_error_for_an_invalid_option_says_how_to_correct_the_option(given, said):
    with pytest.raises(InvalidConfigError, match=said) as raised:
        options.parse(given)
    assert str(raised.value).startswith("[LOGBUS_INVALID_CONFIG]")
    assert "canary" not in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_missing_topic_option_is_refused():
    with pytest.raises(InvalidConfigError, match="One of the following options must be specified"):
        options.read_options(options.parse({}), "h:1", streaming=True)


def test_option_names_are_case_insensitive():
    found = options.parse({"SUBSCRIBE": "a, b ,,a", "kafka.Bootstrap.Servers": "h:1"})
    assert found == {"subscribe": ("a", "b"), "bootstrap.servers": "h:1"}


def test_option_given_under_two_aliases_with_equal_values_is_accepted():
    assert options.parse({"group.id": "g", "kafka.group.id": "g"}) == {"group.id": "g"}


def test_parsed_options_omit_the_options_that_spark_itself_reads():
    found = options.parse(
        {"checkpointLocation": "/c", "queryName": "q", "path": "p", "topic": "t", "subscribe": "s",
         "asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "0"}
    )  # fmt: skip
    assert found == {"topic": "t", "subscribe": ("s",)}


def test_unsupported_tuning_options_of_kafka_are_ignored_with_one_warning(caplog):
    caplog.set_level(logging.WARNING, logger="pyspark_logbus")
    for _ in range(2):
        options.parse({"kafka.fetch.min.bytes": "1", "kafka.send.buffer.bytes": "1"})
    said = [row for row in caplog.records if "kafka.send.buffer.bytes" in row.getMessage()]
    assert len(said) == 1


def test_sink_options_in_a_source_and_source_options_in_a_sink_are_ignored_with_a_warning(
    caplog, monkeypatch
):
    """Regression: a query with deliveryGuarantee=exactly_once at its source was at least once,
    without a warning."""
    monkeypatch.setattr(options, "_warned", set())
    caplog.set_level(logging.WARNING, logger="pyspark_logbus")
    found = options.parse({"subscribe": "t", "topic": "u", "deliveryGuarantee": "exactly_once"})
    for _ in range(2):
        options.read_options(found, "h:1", streaming=True)
        options.write_options(found, "h:1", streaming=True)
    assert [row.getMessage() for row in caplog.records] == [
        "these options have no effect in a source: topic, deliveryGuarantee; give them to the sink",
        "these options have no effect in a sink: subscribe; give them to the source",
    ]


@pytest.mark.parametrize(("given", "taken"), [("gzip", "zstd"), ("Snappy", "lz4")])
def test_unsupported_codec_is_replaced_and_one_warning_is_logged(given, taken, caplog):
    caplog.set_level(logging.WARNING, logger="pyspark_logbus")
    for _ in range(2):
        found = options.parse({"kafka.compression.type": given})
        assert options.write_options(found, "h:1").compression == taken
    said = [row.getMessage() for row in caplog.records]
    assert said == [
        f"kafka.compression.type={given} is not written by logbus; logbus uses {taken} instead"
    ]


@pytest.mark.parametrize(
    "pattern", [r"a&&b", r"[a\[&b&]+\\0", r"\[a&&b\]", r"[]a-z]\d[.]", r"a\x61", "[a&\\&b]"]
)
def test_topic_pattern_that_java_and_python_read_alike_is_accepted(pattern):
    assert options.parse({"subscribePattern": pattern})["subscribePattern"] == pattern


def test_producer_buffer_below_the_minimum_is_raised_with_one_warning(caplog):
    for _ in range(2):
        found = options.parse({"kafka.buffer.memory": "16384"})
        assert options.write_options(found, "h:1").buffer_bytes == 65536
    assert [row.getMessage() for row in caplog.records] == [
        "kafka.buffer.memory=16384 is too small; logbus uses 65536 instead"
    ]


def test_unset_options_take_their_defaults():
    read = stream()
    assert read.starting == offsets.LATEST_EVERYWHERE
    assert batch().starting == offsets.EARLIEST_EVERYWHERE
    assert read.fail_on_data_loss
    assert read.trigger_delay_max_ms == 15 * 60_000
    assert (read.retries, read.retry_interval_ms, read.poll_timeout_ms) == (3, 1000, 120_000)
    write = options.write_options(options.parse({}), "h:1")
    assert (write.acks, write.idempotence, write.compression) == ("all", True, "none")
    assert not options.write_options(options.parse({"kafka.acks": "1"}), "h:1").idempotence
    assert options.write_options(options.parse({"kafka.acks": "-1"}), "h:1").acks == "all"
    assert pickle.loads(pickle.dumps(read)) == read
    assert hash(write) == hash(pickle.loads(pickle.dumps(write)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 900_000),
        ("5s", 5_000),
        ("200ms", 200),
        ("250", 250),
        ("2 minutes", 120_000),
        ("1h", 3_600_000),
        ("3 seconds", 3_000),
    ],
)
def test_durations_are_parsed_in_spark_syntax(text, expected):
    assert stream(maxTriggerDelay=text).trigger_delay_max_ms == expected


def test_timestamp_options_override_offset_options():
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingOffsets": "earliest",
    }
    assert stream(**given).starting == offsets.GlobalTime(5)
    del given["startingTimestamp"]
    assert stream(**given).starting == offsets.PerPartitionTime({"t": {"0": 7}})
    given = {"endingTimestamp": "5", "endingOffsets": "latest"}
    assert batch(**given).ending == offsets.GlobalTime(5)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_options_for_ending_offsets_are_refused_for_streams(option):
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(option, '{"t":{"0":5}}')
    with pytest.raises(InvalidConfigError, match="not valid in streaming queries"):
        stream(**{option: value})


@pytest.mark.parametrize("value", ["latest", '{"t":{"0":-1}}', '{"t":"latest"}'])
def test_batch_query_cannot_start_at_latest(value):
    with pytest.raises(InvalidConfigError, match="can't be latest"):
        batch(startingOffsets=value)


def test_batch_query_ignores_limits_for_streams_with_a_warning(caplog):
    caplog.set_level(logging.WARNING, logger="pyspark_logbus")
    batch(maxOffsetsPerTrigger="5")
    assert "maxOffsetsPerTrigger has no effect" in caplog.text


def test_source_identity_depends_on_starting_offsets_but_not_on_tuning_options():
    assert stream(maxOffsetsPerTrigger="5").identity == stream(includeHeaders="true").identity
    assert stream(startingOffsets="earliest").identity != stream().identity


def test_default_of_every_spark_option_is_a_valid_value():
    for option in options.OPTIONS:
        if option.default:
            option.parse(option.name, option.default)
        assert option.doc and (option.reads or option.writes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"transactionalId": "x"}, "needs deliveryGuarantee=exactly_once"),
        ({"deliveryGuarantee": "exactly_once", "acks": "1"}, "acks=all"),
        ({"deliveryGuarantee": "exactly_once", "enable.idempotence": "false"}, "acks=all"),
        (
            {"deliveryGuarantee": "exactly_once", "transactionVersion": "1"},
            "transactionVersion is for df.write",
        ),
    ],
)
def test_exactly_once_stream_refuses_options_that_contradict_it(given, words):
    with pytest.raises(InvalidConfigError, match=words):
        options.write_options(options.parse(given), "h:1", streaming=True)


def test_exactly_once_batch_write_needs_transactional_id_and_version_together():
    given = {"deliveryGuarantee": "exactly_once", "transactionalId": "job"}
    with pytest.raises(InvalidConfigError, match="together"):
        options.write_options(options.parse(given), "h:1")
    write = options.write_options(options.parse({**given, "transactionVersion": "7"}), "h:1")
    assert (write.is_exactly_once, write.transactional_id, write.transaction_version) == (
        True, "job", 7,
    )  # fmt: skip
