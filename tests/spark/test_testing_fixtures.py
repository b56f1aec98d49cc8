"""Test the Spark fixtures of the pytest plugin, and the example of its guide."""

from __future__ import annotations

import re

import pytest
from sitegen import site

from pyspark_logbus.testing import refuse_active


def test_pytest_example_of_the_guide_runs(
    logbus_bus, logbus_topic, logbus_spark, logbus_stream, logbus_topics
):
    guide = (site.PAGES / "how-to" / "test-with-pytest.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    space = {}
    exec(example, space)
    (test,) = (value for name, value in space.items() if name.startswith("test_"))
    test(logbus_bus, logbus_topic, logbus_spark, logbus_stream, logbus_topics)


def test_query_that_a_test_leaves_active_fails_the_test_and_is_stopped(logbus_spark):
    before = {query.runId for query in logbus_spark.streams.active}
    rows = logbus_spark.readStream.format("rate").load()
    query = rows.writeStream.format("memory").queryName("left_active").start()
    with pytest.raises(pytest.fail.Exception, match="left 1 queries active: left_active"):
        refuse_active(logbus_spark, before)
    assert not query.isActive
