"""Configure all tests: fixtures, pytest-xdist groups, environment variables.

``tests/`` (for ``import sim``) and ``docs/`` (for ``sitegen``) are on sys.path; the root of the
checkout is not. With ``LOGBUS_TEST_INSTALLED=1``, which ``make test`` sets, it is an error if tests
import the checkout instead of the installed wheel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

for _folder in (ROOT / "docs", TESTS):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from support.spark_classes import jvm_options  # noqa: E402

# Spark's Python workers and its lookup of data sources must use this interpreter, not "python3".
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_SUBMIT_OPTS"] = jvm_options()
# Child processes, such as Spark's workers, must not import the checkout from the current folder.
os.environ["PYTHONSAFEPATH"] = "1"
# Tests must not use a cluster that the developer runs.
for _name in ("LOGBUS_BOOTSTRAP_SERVERS", "LOGBUS_ZOOKEEPER"):
    os.environ.pop(_name, None)

pytest_plugins = [
    "support.fix_browser",
    "support.fix_cluster",
    "support.fix_command_line",
    "support.fix_spark",
    "support.time_limits",
]

_SPARK_FOLDERS = ("spark", "notebooks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the outputs of transcripts anew")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("LOGBUS_TEST_INSTALLED") != "1":
        return
    import broker_lite

    found = Path(str(broker_lite.__file__)).resolve()
    if found.is_relative_to(ROOT.resolve() / "broker_lite"):
        raise pytest.UsageError(f"the checkout is under test, not the installed package: {found}")


@pytest.hookimpl(tryfirst=True)  # Run before pytest-xdist reads the groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(TESTS)
        if path.parts[0] in _SPARK_FOLDERS:
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                # The first Spark test also starts the Spark session within its timeout.
                item.add_marker(pytest.mark.timeout(300))
        elif item.get_closest_marker("xdist_group") is None and _shares_a_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(path)))


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    """Return whether a test uses a module-scoped fixture. All tests of its module then run in one
    worker, because each worker would create the fixture."""
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    return any(found[-1].scope == "module" for found in definitions.values() if found)
