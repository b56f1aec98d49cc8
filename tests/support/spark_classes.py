"""Write an archive of Spark's loaded classes (JEP 350), with which tests start Spark faster.

``python tests/support/spark_classes.py FILE`` runs one query, and writes 155 MB when the JVM exits.
About forty processes of the tests start Spark. Without the archive, each process would load and
verify 10,000 classes, which takes ten seconds of processor time. ``make test`` writes the archive
once for each virtual environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

OPTIONS = (
    # Disable the optimising compiler, which would take half of a short-lived JVM's processor time.
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    # Skip verifying the classes of Spark's jars, which would take a quarter of the start time.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    # Print no warning in a JVM with another class path, which ignores the archive.
    "-Xlog:disable"
)
ARCHIVE = Path(sys.prefix, ".spark-classes.jsa")


def jvm_options() -> str:
    """Return the JVM options of Spark in tests, with the class archive if it exists."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.is_file() else OPTIONS


def write(path: Path) -> None:
    """Run a query in a JVM that writes its loaded classes to ``path`` when it exits."""
    unfinished = path.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished}"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.range(9).selectExpr("sum(id)").collect()
    jvm = session.sparkContext._gateway.proc
    session.stop()
    jvm.stdin.close()
    jvm.wait()
    unfinished.replace(path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
