"""The worker's one Spark session: pytest-spark's, with the options of setup.cfg."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(spark_session: SparkSession) -> SparkSession:
    """The Spark session, under the name that people use."""
    return spark_session
