"""``logbus demo``: becomes the demo of the Spark package, which this package may not import."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from broker_lite.errors import MissingDependencyError


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """The whole thing on real log lines, with Spark."""
    for package in ("pyspark", "pyspark_logbus"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"the demo needs {package}: pip install 'pyspark-logbus[all]'"
            )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pyspark_logbus.demo", *arguments])
