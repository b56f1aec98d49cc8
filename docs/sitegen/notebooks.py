"""A page and an ``.ipynb`` file of each notebook, with the outputs of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat

SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
TITLE = "# DBTITLE 1,"
_FOLDED = "Outside Databricks"
"""The title of the setup cell, which is folded on the page."""


class Output(NamedTuple):
    """An output of a cell: a MIME type, and text, Markdown or the base64 of a PNG."""

    kind: str
    content: str


Outputs = Mapping[int, Sequence[Output]]
"""The outputs of a notebook by the number of the cell, from 1."""


class Cell(NamedTuple):
    """A cell: its number from 1, the number of the line before it, and its source."""

    number: int
    first_line: int
    source: str

    @property
    def is_markdown(self) -> bool:
        return self.source.lstrip().startswith(f"{MAGIC} %md")

    @property
    def markdown(self) -> str:
        """The text of a Markdown cell."""
        lines = [line.removeprefix(MAGIC).removeprefix(" ") for line in self.source.splitlines()]
        return "\n".join(lines).replace("%md", "", 1).strip()

    @property
    def title(self) -> str:
        lines = self.source.strip().splitlines()
        return lines[0].removeprefix(TITLE) if lines and lines[0].startswith(TITLE) else ""

    @property
    def code(self) -> str:
        lines = self.source.strip().splitlines()
        return "\n".join(lines[1:] if self.title else lines).strip()


def cells(path: Path) -> list[Cell]:
    """Return the cells of a notebook in Databricks' source format."""
    lines = path.read_text("utf-8").splitlines()
    found: list[Cell] = []
    start = 1
    for number in [*(i for i, line in enumerate(lines) if line == SEPARATOR), len(lines)]:
        found.append(Cell(len(found) + 1, start, "\n".join(lines[start:number])))
        start = number + 1
    return found


def page(path: Path, outputs: Outputs) -> str:
    """Return a notebook as a page of the site."""
    parts: list[str] = []
    for cell in cells(path):
        if cell.is_markdown:
            parts.append(cell.markdown)
            if cell.number == 1:
                parts.append(_downloads(path, bool(outputs)))
            continue
        code = f"```python\n{cell.code}\n```"
        if cell.title.startswith(_FOLDED):
            parts.append(f'??? note "{cell.title}"\n\n{textwrap.indent(code, "    ")}')
        else:
            parts += [f"**{cell.title}**"] if cell.title else []
            parts.append(code)
        parts += [_shown(path, cell.number, row) for row in enumerate(outputs.get(cell.number, ()))]
    return "\n\n".join(parts) + "\n"


def _downloads(path: Path, has_outputs: bool) -> str:
    ipynb = f", [as a Jupyter notebook]({path.stem}.ipynb)" if has_outputs else ""
    return (
        f"*Notebook `notebooks/{path.name}` of the source tree, for Databricks or Python{ipynb}.*"
    )


def _shown(path: Path, number: int, row: tuple[int, Output]) -> str:
    place, output = row
    if output.kind == "image/png":
        return f"![Figure of cell {number}]({figure_name(path, number, place)})"
    if output.kind == "text/markdown":
        return output.content
    return f"```text\n{output.content.rstrip()}\n```"


def figure_name(path: Path, number: int, place: int) -> str:
    """Return the name of a figure's file: notebook, cell, and its index among the outputs."""
    return f"{path.stem}-{number}-{place}.png"


def ipynb(path: Path, outputs: Outputs) -> str:
    """Return a notebook as an ``.ipynb`` file (JSON) with its outputs."""
    book = nbformat.v4.new_notebook()
    for cell in cells(path):
        if cell.is_markdown:
            book.cells.append(nbformat.v4.new_markdown_cell(cell.markdown, id=f"c{cell.number}"))
            continue
        title = f"# {cell.title}\n" if cell.title else ""
        made = nbformat.v4.new_code_cell(title + cell.code, id=f"c{cell.number}")
        made.outputs = [
            nbformat.v4.new_output("display_data", {output.kind: output.content})
            for output in outputs.get(cell.number, ())
        ]
        book.cells.append(made)
    nbformat.validate(book)
    return str(nbformat.writes(book)) + "\n"
