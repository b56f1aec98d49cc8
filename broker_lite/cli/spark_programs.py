"""``logbus demo`` and ``logbus checkpoint``: start programs of the package ``pyspark_logbus`` as
processes, because no layer of ``broker_lite`` may import that package."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from broker_lite.errors import MissingDependencyError


def _program(name: str, help_: str, *needed: str) -> click.Command:
    @click.command(
        name,
        help=help_,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        for package in needed:
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"logbus {name} needs {package}: pip install 'pyspark-logbus[all]'"
                )
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", f"pyspark_logbus.{name}", *arguments])

    return command


demo = _program(
    "demo", "Three brokers, a Spark query, a check of its totals.", "pyspark", "pyspark_logbus"
)
checkpoint = _program("checkpoint", "Carry a Kafka query's checkpoint over.", "pyspark_logbus")
