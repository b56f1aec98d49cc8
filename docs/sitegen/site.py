"""All pages of the site: written pages, documents from the code's folders, and generated
references."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from sitegen import code_reference, commands, notebooks, settings

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"

DOCUMENTS = {
    "reference/record-format.md": "broker_lite/record/FORMAT.md",
    "reference/protocol.md": "broker_lite/wire/PROTOCOL.md",
    "reference/tested-clients.md": "tests/compat/RESULTS.md",
    "explanation/replication-rules.md": "broker_lite/replication/README.md",
    "explanation/simulation.md": "tests/sim/README.md",
    "changelog.md": "CHANGELOG.md",
}
"""Documents that the code's folders hold: the page of the site, and the file."""

_SETTINGS = {
    "broker": ("Broker settings", "Settings of one broker: `logbus broker --config broker.conf`, or "
               "`logbus up -c KEY=VALUE`. Sizes are in bytes, times in milliseconds."),
    "topic": ("Topic settings", "Settings of one topic: `logbus topic create t -c KEY=VALUE`, `logbus "
              "topic alter`. Sizes are in bytes, times in milliseconds."),
    "client": ("Client settings", "Settings of producers, consumers and members of groups. In Python a "
               "key's dots are underscores: `bus.producer(linger_ms=5)`. On the command line: "
               "`-X linger.ms=5`. Sizes are in bytes, times in milliseconds."),
}  # fmt: skip


def pages(outputs: Mapping[str, notebooks.Outputs] | None = None) -> dict[str, str]:
    """Return every page by its path in the site.

    ``outputs`` holds the outputs of notebooks that ran, by notebook. Pages of other notebooks have
    only text and code.
    """
    found = {
        path.relative_to(PAGES).as_posix(): path.read_text("utf-8") for path in PAGES.rglob("*.md")
    }
    for target, source in DOCUMENTS.items():
        found[target] = (ROOT / source).read_text("utf-8")
    found["reference/commands.md"] = commands.page()
    for name, (title, text) in _SETTINGS.items():
        found[f"reference/{name}-settings.md"] = settings.page(
            ROOT / "conf" / f"{name}.conf", title, text
        )
    found["reference/errors.md"] = code_reference.errors()
    found["reference/metrics.md"] = code_reference.metrics()
    found["reference/log-events.md"] = code_reference.log_events()
    found["operations/alerts.md"] = code_reference.alerts()
    found["reference/spark-options.md"] = code_reference.spark_options()
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        shown = (outputs or {}).get(path.stem, {})
        found[f"notebooks/{path.stem}.md"] = notebooks.page(path, shown)
    return found


def write(folder: Path, outputs: Mapping[str, notebooks.Outputs] | None = None) -> int:
    """Write all pages and the other files of ``docs/pages`` into an empty folder; return the
    number of pages."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAGES, folder)
    texts = pages(outputs)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return len(texts)
