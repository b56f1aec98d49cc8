"""Tests of the blocking producer after an unexpected exception ended its sending thread."""

from __future__ import annotations

import pytest

from broker_lite.client.producing.producer import Producer
from broker_lite.errors import ClosedError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flush_and_close_report_unacknowledged_records_after_the_thread_crashed() -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    # Nothing listens on port 1, so the records still wait for metadata when the thread ends.
    producers = [Producer("127.0.0.1:1") for _ in range(2)]
    for producer in producers:
        sent = producer.send("t", b"x")
        assert producer._reactor is not None
        producer._reactor.call_soon(fail)
        producer._reactor._thread.join(30)
        assert sent.done()
    with pytest.raises(ClosedError, match="planted"):
        producers[0].flush()
    producers[0].close()
    with pytest.raises(ClosedError, match="planted"):
        producers[1].close()
