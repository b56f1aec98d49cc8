"""``logbus export``: the records of a topic in a file."""

from __future__ import annotations

import contextlib
import errno
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import offset_spec, output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.consume import (
    PrintLimits,
    RecordChooser,
    TopicReader,
    partitions_to_read,
    print_all,
)
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.client.administration import log_positions
from broker_lite.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("csv", "jsonl", "parquet")


class SummaryFormat(click.Choice[str]):
    """Click's type of ``-o``, the format of the summary. Other tools name the file with ``-o``."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        said = super().get_invalid_choice_message(value, ctx)
        return f"{said} To write a file, leave -o out: logbus export TOPIC {value}"


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-s", "--start", default="earliest", help="earliest, N, +N, -N, @TIME, @-1h.")
@click.option("--end", default="latest", help="Stop at this position; same forms as --start.")
@click.option("-p", "--partition", type=int, multiple=True, help="Only these partitions.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the file's ending.")
@change_options
@cluster_options
@click.option(
    "-o",
    "--output",
    "form",
    type=SummaryFormat(output.FORMATS),
    help="Print a summary in this form.",
)
def export(
    topic: str,
    file: Path,
    start: str,
    end: str,
    partition: tuple[int, ...],
    kind: str | None,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Write the records of TOPIC to FILE, from the earliest to the present end.

    The file appears once it is complete. Records of one partition are in the order of their
    offsets. The command asks before it replaces a file. -o prints a summary.

    \b
    Examples:
      logbus export events events.parquet
      logbus export events day.csv -s @2026-11-20 --end @2026-11-21
      logbus export events events.parquet --dry-run
    """
    kind = kind or file.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise click.BadParameter(
            f"{file.name!r} does not end in .csv, .jsonl or .parquet; give --format",
            param_hint="FILE",
        )
    if file.exists() and not file.is_file():
        printed = "parquet" if kind == "parquet" else "jsonl"
        raise click.BadParameter(
            f"{str(file)!r} is a pipe or a device, which a file would replace; print the records: "
            f"logbus consume {topic} -e -o {printed}",
            param_hint="FILE",
        )
    from broker_lite.client.administration.admin import Admin

    servers = bootstrap(cluster)
    with Admin(servers, client_id="logbus-cli") as admin:
        chosen = partitions_to_read(admin, (topic,), partition)
        starts = log_positions.resolve(admin, chosen, offset_spec.parse(start))
        ends = log_positions.resolve(admin, chosen, offset_spec.parse(end))
    row = {"topic": topic, "file": str(file), "records": None, "exported": False}
    if change.dry_run:
        most = sum(max(ends[tp] - starts[tp], 0) for tp in chosen)
        said = f"{file} would have the records of {most:,} offsets of {topic}"
        output.report_change(row | {"offsets": most}, form, said)
    if not change.is_wanted(f"Replace {file}?" if file.exists() else ""):
        return
    options = {"start": "earliest", "client_id": "logbus-cli"}
    bar = output.ProgressBar("records", is_alone=True)
    with _RecordFile(file, kind) as out:
        if any(starts[tp] < ends[tp] for tp in chosen):
            reader = TopicReader(servers, (topic,), None, starts, options, {})
            with reader.open(chosen) as consumer:
                limits = PrintLimits(ends, None, None)
                print_all(consumer, out, RecordChooser(None, None), limits, bar)
    said = f"{out.records:,} records of {topic} in {file}"
    output.report_change(row | {"records": out.records, "exported": True}, form, said)


class _RecordFile:
    """The file that ``export`` writes, with a temporary name until it is complete. ``print_all``
    prints to this object, a ``Printer``. ``records`` counts the written records."""

    def __init__(self, path: Path, form: str) -> None:
        from broker_lite.client.record_files import WRITERS

        self.records = 0
        # Replace the file that a link names, not the link.
        self._path = path.resolve() if path.is_symlink() else path
        self._part = self._path.with_name(f".{self._path.name}.part")
        with self._explained():
            self._file = self._part.open("wb")
        self._write, self._finish = WRITERS[form](self._file)

    def __enter__(self) -> _RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._explained(), self._file:
                if kind is None:
                    self._finish()
            if kind is None:
                self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of records to the file."""
        with self._explained():
            self._write(batch)
        self.records += batch.num_rows

    def close(self) -> None:
        """Do nothing: ``__exit__`` completes the file."""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._path} cannot be written: {_reason_and_cure(error, self._path.parent)}"
            ) from None


def _reason_and_cure(error: OSError, folder: Path) -> str:
    """Return why a file in ``folder`` cannot be written, and what the user can do about it."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT and not folder.exists():
        create = shlex.join(("mkdir", "-p", str(folder)))
        return f"the folder '{folder}' does not exist. Create it with: {create}"
    if error.errno == errno.ENOTDIR:
        return f"'{folder}' is not a folder. Name another file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}. Free space in {folder}, or name another file"
    return f"{reason}. Name a file in a folder that this user may write to"
