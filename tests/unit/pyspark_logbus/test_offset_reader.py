"""Tests of the driver's offset lookups: errors that are retried and errors that are not."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.admin import Admin
from broker_lite.errors import (
    InvalidTopicError,
    LogbusError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from pyspark_logbus import offset_reader, options
from pyspark_logbus.offset_reader import OffsetReader


@pytest.mark.parametrize(
    ("given", "error", "asked"),
    [
        ({}, RequestTimedOutError, 4),
        ({"fetchOffset.numRetries": "0"}, RequestTimedOutError, 1),
        ({"FetchOffset.NumRetries": "5"}, RequestTimedOutError, 6),
        ({"fetchOffset.numRetries": "5"}, InvalidTopicError, 1),
        # A missing topic is not retried, because the user waits for the error.
        ({"fetchOffset.numRetries": "5"}, UnknownTopicOrPartitionError, 1),
    ],
)
def test_offset_lookup_retries_as_often_as_configured(given, error, asked, monkeypatch):
    times, pauses = [], []
    monkeypatch.setattr(offset_reader.time, "sleep", pauses.append)
    values = options.parse({"subscribe": "t", "fetchOffset.retryIntervalMs": "70"} | given)
    found = options.read_options(values, "127.0.0.1:1", streaming=True)

    def fails():
        times.append(1)
        raise error("no")

    with Admin("127.0.0.1:1") as admin:
        reader = OffsetReader(found, admin)
        with pytest.raises(error):
            reader.retrying(fails)
        assert len(times) == asked
        assert pauses == [0.07] * (asked - 1)
        answers = iter([RequestTimedOutError("late"), 7])

        def late():
            answer = next(answers)
            if isinstance(answer, LogbusError):
                raise answer
            return answer

        if found.retries:
            assert reader.retrying(late) == 7
