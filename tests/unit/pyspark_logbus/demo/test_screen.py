"""Tests of the progress line that the demo prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pyspark_logbus.demo import screen
from pyspark_logbus.demo.__main__ import main
from pyspark_logbus.demo.screen import Progress


@pytest.mark.parametrize(
    ("progress", "bar", "said"),
    [
        # Regression: before the first batch, the line showed "98 %, read 0" for seconds.
        (Progress(98, 100, 0, 0, None, 0), 0, "sent 98/100; Spark starts its first batch …"),
        (Progress(100, 100, 50, 0, 50, 1), 14, "read 50  written 0  lag 50"),
        (Progress(100, 100, 100, 7, 0, 2), 28, "read 100  written 7  lag 0"),
        # Spark has repeated a batch, so more rows were read than sent.
        (Progress(2000, 2000, 2500, 7, None, 2), 28, "sent 2,000/2,000  read 2,500  written 7"),
        (Progress(0, 0, 0, 0, None, 0), 28, "sent 0/0"),
    ],
)
def test_progress_bar_shows_rows_read_by_the_query(progress: Progress, bar: int, said: str) -> None:
    line = screen._figures(progress)
    assert line.startswith(f"[{'#' * bar}{'.' * (28 - bar)}] ")
    assert said in line and len(line) <= 96


def test_demo_accepts_the_short_help_option() -> None:
    assert CliRunner().invoke(main, ["-h"]).exit_code == 0


@pytest.mark.parametrize("words", [("--lines", "0"), ("--brokers", "0"), ("--seconds", "nan")])
def test_demo_refuses_numbers_that_are_zero_or_nan(words: tuple[str, str]) -> None:
    """Regression: --seconds nan ended with a traceback after the cluster had started, --brokers 0
    with one after all lines had been read, and --lines 0 sent 500 lines."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and f"Invalid value for '{words[0]}'" in done.output
