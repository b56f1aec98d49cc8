"""Tests of log positions, such as ``earliest``, as options."""

from __future__ import annotations

import click
import pytest

from broker_lite.cli.offset_spec import parse


def test_invalid_position_is_a_usage_error_with_the_valid_forms() -> None:
    with pytest.raises(click.BadParameter, match="give earliest, latest"):
        parse("newest")
