"""Fixtures of the Spark tests. The tests share the Spark session of pytest-spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.spark_queries import Queries

from broker_lite.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def queries(spark: SparkSession, bus: Bus, tmp_path: Path) -> Iterator[Queries]:
    made = Queries(spark, bus, tmp_path)
    yield made
    made.stop()
