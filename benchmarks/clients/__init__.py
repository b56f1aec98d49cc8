"""Programs with producers of other projects, which print a line for each acknowledgement.

``command`` builds a program once with its project's package manager, into the cache of
``peers.fetch``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from peers.fetch import Cannot, cache
from peers.servers import kafka_java

HERE = Path(__file__).parent
QUICK: dict[str, tuple[str, ...]] = {
    "librdkafka": (
        "retry.backoff.ms=20",
        "retry.backoff.max.ms=100",
        "topic.metadata.refresh.fast.interval.ms=20",
        "reconnect.backoff.ms=20",
    ),
    "java": ("retry.backoff.ms=20", "reconnect.backoff.ms=20"),
    "franz-go": ("retry-backoff=20", "metadata-min-age=20"),
}
"""For each client, settings that shorten its retries after a broker dies."""

REST_S = {"franz-go": 7.5}
"""For each client, seconds without a change of leaders before the next broker is killed.

franz-go waits at least 5 s between two Metadata requests, and sends one more, 5 s after it has left
a dead leader.
"""


def command(client: str) -> list[str]:
    """Return the command that runs a client. Raises Cannot where its toolchain is missing."""
    if client == "librdkafka":
        return [sys.executable, str(HERE / "librdkafka.py")]
    if client == "java":
        return [*kafka_java("-Xmx128m"), str(HERE / "Produce.java")]
    return [_built_by_go(HERE / "franz-go")]


def _built_by_go(folder: Path) -> str:
    mark = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        mark.update(file.read_bytes())
    program = cache() / f"{folder.name}-{mark.hexdigest()[:12]}"
    if not program.exists():
        # Go's own installer does not add Go to PATH, so look in its folder, too.
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            raise Cannot("Go is missing: install it from https://go.dev/dl")
        program.parent.mkdir(parents=True, exist_ok=True)
        build = [go, "build", "-o", str(program), "."]
        done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Cannot(f"go build in {folder} failed: {done.stderr.strip()[-300:]}")
    return str(program)
