"""Tests of log positions, such as ``earliest``, as options."""

from __future__ import annotations

import click
import pytest

from broker_lite.cli.offset_spec import parse


def test_error_for_an_invalid_log_position_lists_the_valid_forms() -> None:
    with pytest.raises(click.BadParameter, match="give earliest, latest"):
        parse("newest")
