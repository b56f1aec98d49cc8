"""The command ``python -m pyspark_logbus.demo``: its options and its exit code."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from pyspark.errors import PySparkException

from broker_lite.cli import main as command_line
from broker_lite.cli import output
from broker_lite.cli.numbers import Real, Whole
from broker_lite.local.cluster import BROKERS_MAX
from pyspark_logbus.demo.run import Plan, run
from pyspark_logbus.demo.screen import Screen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file (also .gz, .xz, .bz2). Default: this machine's logs.",
)
@click.option(
    "--lines",
    type=Whole(1),
    default=200_000,
    show_default=True,
    help="Maximum lines of the file, or of this machine's logs.",
)
@click.option("--brokers", type=Whole(1, BROKERS_MAX), default=3, show_default=True)
@click.option(
    "--seconds",
    type=Real(0),
    default=20.0,
    show_default=True,
    help="Send the lines over this many seconds.",
)
@click.option("--kill", is_flag=True, help="Kill a leader when half of the lines are acknowledged.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(output.FORMATS),
    help="Print the totals on stdout in this form, and the progress on stderr.",
)
def main(
    *, file: Path | None, lines: int, brokers: int, seconds: float, kill: bool, form: str | None
) -> int:
    """Send real log lines through three brokers and count them with Spark, live.

    The exit code is 0 if every total equals the number of lines.

    \b
    Examples:
      logbus demo
      logbus demo --file app.log --brokers 3 --kill
      logbus demo --lines 1000 -o json
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    screen = Screen(sys.stdout if form is None else sys.stderr)
    try:
        done = run(Plan(file, lines, brokers, max(seconds, 0.1), kill), screen)
    except EOFError as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from None
    except PySparkException as error:
        # The first line is the error. The other lines are the query's plan.
        reason = str(error).partition("=== Streaming Query ===")[0].strip()
        raise click.ClickException(reason) from None
    if form is not None:
        totals = {"lines": done.lines, "agrees": done.agrees, **done.totals}
        output.show_one(totals | {"kinds": dict(done.kinds), "seconds": done.seconds}, form)
    return 0 if done.agrees else command_line.EXIT_FAILED


if __name__ == "__main__":
    sys.exit(command_line.run(sys.argv[1:], main, "logbus demo"))
