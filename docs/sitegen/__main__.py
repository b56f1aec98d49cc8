"""``python -m sitegen FOLDER [--notebooks]``: write all pages for the build, and check links.

With ``--notebooks`` every notebook runs first, in a minute or two, and its page shows the results.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from sitegen import links, notebooks, site
from sitegen.running import run_all


def main(arguments: list[str]) -> int:
    """Write the pages; return 1 if a link is broken."""
    folder = Path(arguments[0])
    paths = sorted((site.ROOT / "notebooks").glob("*.py"))
    outputs: dict[str, notebooks.Outputs] = {}
    if "--notebooks" in arguments[1:]:
        outputs = {path.stem: ran.outputs for path, ran in run_all(paths)}
    count = site.write(folder, outputs)
    for path in paths:
        if path.stem in outputs:
            write_results(path, folder / "notebooks", outputs[path.stem])
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    faults = list(links.broken(site.pages(outputs), files))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{count} pages, {len(faults)} broken links", file=sys.stderr)
    return 1 if faults else 0


def write_results(path: Path, folder: Path, outputs: notebooks.Outputs) -> None:
    """Write a notebook's figures and its ``.ipynb`` file beside its page."""
    for number, row in outputs.items():
        for place, output in enumerate(row):
            if output.kind == "image/png":
                name = notebooks.figure_name(path, number, place)
                (folder / name).write_bytes(base64.b64decode(output.content))
    (folder / f"{path.stem}.ipynb").write_text(notebooks.ipynb(path, outputs), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
