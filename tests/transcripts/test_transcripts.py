"""Replay transcripts: files with commands, the line ``----``, and the recorded output.

``pytest --rewrite tests/transcripts`` records the present outputs. Read the diff, and keep it only
if you understand its cause.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machines import MACHINES, Machine

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))


def replay(text: str) -> str:
    """Return the transcript with the outputs that the code gives now.

    Comments and blank lines stay.
    """
    out: list[str] = []
    machine: Machine | None = None
    commands = iter(text.splitlines())
    for line in commands:
        if not line.strip() or line.startswith("#"):
            out.append(line)
            continue
        verb, *rest = line.split()
        words = dict((*word.split("=", 1), "")[:2] for word in rest)
        out += [line, "----"]
        if verb in MACHINES:
            machine = MACHINES[verb](words)
            out.append("ok")
        else:
            assert machine is not None, line
            out += machine.do(verb, words)
        # Skip the recorded output, which ends at a blank line.
        for old in commands:
            if not old.strip():
                out.append("")
                break
    return "\n".join(out).rstrip() + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_state_machine_reproduces_its_recorded_transcript(
    path: Path, request: pytest.FixtureRequest
) -> None:
    recorded = path.read_text("utf-8")
    now = replay(recorded)
    if request.config.getoption("--rewrite"):
        path.write_text(now, "utf-8")
    else:
        assert now == recorded


def test_every_state_machine_has_recorded_transcripts() -> None:
    assert len(FILES) >= 8
