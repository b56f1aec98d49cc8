"""Tests of the warnings of a query whose brokers do not answer its first requests."""

from __future__ import annotations

import pytest

from broker_lite.errors import NoBrokersError, UnknownTopicOrPartitionError
from pyspark_logbus import first_contact, options, writers
from pyspark_logbus.offset_reader import OffsetReader

NOBODY = "127.0.0.1:1"


@pytest.fixture
def impatient(monkeypatch):
    """Log the first warning about silent brokers at once; end the first request after 200 ms."""
    monkeypatch.setattr(first_contact, "HINT_S", 0.0)
    monkeypatch.setattr("broker_lite.client.operations.requests.FIRST_CONTACT_MS", 200)


def test_warning_and_error_for_an_unreachable_cluster_contain_its_address(impatient, caplog):
    """Regression: the source was silent for 22 seconds, and its error did not name the option
    ``bootstrap.servers``."""
    values = options.parse({"subscribe": "t", "fetchOffset.numRetries": "0"})
    reader = OffsetReader(options.read_options(values, NOBODY, streaming=True))
    with pytest.raises(NoBrokersError, match=f"bootstrap.servers={NOBODY}: .*refused; is the addr"):
        reader.partitions()
    reader.close()
    assert f"bootstrap.servers={NOBODY}: no broker answers yet; trying for up to 5 s" in caplog.text


@pytest.mark.parametrize("topic", ["t", ""])
def test_sink_fails_on_unresponsive_brokers_before_any_task_sends_rows(impatient, caplog, topic):
    """Regression: without the option ``topic``, the driver contacted no broker.

    Each task then waited for delivery.timeout.ms before it failed.
    """
    given = {"topic": topic} if topic else {}
    found = options.write_options(options.parse(given), NOBODY)
    with pytest.raises(NoBrokersError, match=f"bootstrap.servers={NOBODY}: "):
        writers._check_topic(found)
    assert "no broker answers yet" in caplog.text


def test_driver_does_not_end_a_running_query_while_brokers_do_not_respond(impatient, monkeypatch):
    """Regression: a query failed if brokers were silent for five seconds while the driver checked
    (every 30 seconds) that the topic exists.

    The query's tasks wait longer, for delivery.timeout.ms.
    """
    write_options = options.write_options(options.parse({"topic": "t"}), NOBODY)
    key = (NOBODY, "t", write_options.security)
    monkeypatch.setitem(writers._checked, key, float("-inf"))
    writers._check_topic(write_options)
    # The check did not count, so the next micro-batch repeats it.
    assert writers._checked[key] == float("-inf")


def test_error_that_a_broker_returns_is_raised_without_a_warning_about_silent_brokers(caplog):
    with first_contact.warn_if_silent(NOBODY, 5):
        pass
    with (
        pytest.raises(UnknownTopicOrPartitionError, match="_PARTITION] no"),
        first_contact.warn_if_silent(NOBODY, 5),
    ):
        raise UnknownTopicOrPartitionError("no")
    assert not caplog.messages
