"""Fixtures of the Spark tests. One session for all of them (pytest-spark's)."""

from __future__ import annotations

import pytest
from spark_queries import Queries


@pytest.fixture
def queries(spark, bus, tmp_path):
    made = Queries(spark, bus, tmp_path)
    yield made
    made.stop()
