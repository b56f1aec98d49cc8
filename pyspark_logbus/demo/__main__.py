"""The command line of ``python -m pyspark_logbus.demo``: its options and its exit code."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from pyspark.errors import PySparkException

from broker_lite.errors import LogbusError
from pyspark_logbus.demo.run import Plan, run
from pyspark_logbus.demo.screen import Screen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file (also .gz, .xz, .bz2). Default: this machine's logs.",
)
@click.option("--lines", default=200_000, show_default=True, help="Maximum lines to send.")
@click.option("--brokers", default=3, show_default=True)
@click.option(
    "--seconds", default=20.0, show_default=True, help="Send the lines over this many seconds."
)
@click.option("--kill", is_flag=True, help="Kill a leader when half of the lines are acknowledged.")
def main(file: Path | None, lines: int, brokers: int, seconds: float, kill: bool) -> None:
    """Send real log lines through three brokers and count them with Spark, live.

    \b
    Examples:
      logbus demo
      logbus demo --file app.log --brokers 3 --kill
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    screen = Screen()
    try:
        code = run(Plan(file, lines, brokers, max(seconds, 0.1), kill), screen)
    except (LogbusError, OSError, EOFError) as error:
        screen.say(f"Error: {error}")
        code = 1
    except PySparkException as error:
        # The first line is the error. The other lines are the query's plan.
        told = str(error).partition("=== Streaming Query ===")[0].strip()
        screen.say(f"Error: {told}")
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main(prog_name="logbus demo")
