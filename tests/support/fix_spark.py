"""Fixtures of a test process's Spark session.

pytest-spark starts the session with the options of setup.cfg.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pytest_spark.config import SparkConfigBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def warehouse() -> Iterator[str]:
    """A temporary folder for Spark's warehouse. The options in setup.cfg could only name a
    permanent folder.
    """
    with tempfile.TemporaryDirectory(prefix="logbus-warehouse-") as folder:
        SparkConfigBuilder.get().set("spark.sql.warehouse.dir", folder)
        yield folder


@pytest.fixture(scope="session")
def spark(warehouse: str, request: pytest.FixtureRequest) -> SparkSession:
    """The pytest worker's Spark session. It stops before its warehouse folder is removed."""
    session: SparkSession = request.getfixturevalue("spark_session")
    return session
