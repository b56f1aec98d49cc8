"""``logbus storage``: inspect segment files, and stray logs (logs that ZooKeeper no longer assigns
to their broker). The commands need no running broker and do not lock the folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.main import EXIT_CRITICAL, EXIT_WARNING

if TYPE_CHECKING:
    from broker_lite.storage.inspection import FileCheck, InspectedBatch


class ExistingPath(click.Path):
    """A path that exists. Raises PermissionError for a path in an unreadable folder, which click
    would report as missing."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(value)
        return super().convert(value, param, ctx)


_PATHS = click.argument("paths", nargs=-1, required=True, type=ExistingPath())


@click.group()
def storage() -> None:
    """Inspect segment files, verify data directories, list stray logs.

    \b
    Examples:
      logbus storage verify /var/lib/logbus
      logbus storage strays /var/lib/logbus
    """


@storage.command()
@_PATHS
@click.option("-n", "--count", type=int, help="Maximum batches to show of each file.")
@output.output_option
def inspect(paths: tuple[Path, ...], count: int | None, form: str | None) -> None:
    """Show the batches in segment files (or in all below a folder), one row each.

    \b
    Examples:
      logbus storage inspect /var/lib/logbus/events-0 -n 10
      logbus storage inspect 00000000000000000000.log -o json
    """
    rows = []
    for path in _segments(paths):
        for number, batch in enumerate(_batches(path)):
            if number == count:
                break
            rows.append(_row(path, batch))
    if not rows:
        output.say(f"there is no batch in {', '.join(map(str, paths))}")
    columns = ("position", "base_offset", "last_offset", "records", "bytes", "body", "codec")
    output.show(rows, form, (*columns, "max_timestamp", "leader_epoch", "producer_id", "problem"))


@storage.command()
@_PATHS
@output.output_option
def verify(paths: tuple[Path, ...], form: str | None) -> int:
    """Check segment files, or whole data directories (log.dir), and change nothing.

    The command checks the checksum, order and length of every batch. In a data directory it also
    checks the files that a starting broker reads: leader epochs, missing segments, a log end before
    the recovery point, checkpoints. While a broker runs there, its last batch may look half
    written.

    \b
    Exit codes:
      0  all well
      4  only files are damaged that a starting broker rebuilds from the log (column made_again)
      5  batches, checkpoints or the directory's identity are damaged or missing

    \b
    Examples:
      logbus storage verify /var/lib/logbus
      logbus storage verify /var/lib/logbus -o json
    """
    from broker_lite.storage.paths import META

    sizes = _sizes(paths)
    left, checks = sum(sizes.values()), []
    with output.ProgressBar("bytes", is_alone=True) as bar:
        bar.reach(left)
        for check in (check for path in paths for check in _checks(path)):
            checks.append(check)
            left -= sizes.pop(check.path, 0)
            bar.reach(left)
    if not checks and not any(any(path.rglob(META)) for path in paths):
        raise click.BadParameter(
            f"there is no segment and no data directory in {', '.join(map(str, paths))}; name "
            "log.dir, the folder of a partition, or a segment"
        )
    rows = [
        {
            "file": check.path,
            "batches": check.batches,
            "records": check.records,
            "bytes": check.size_bytes,
            "problems": list(check.problems),
            "made_again": check.is_made_again,
        }
        for check in checks
    ]
    output.show(rows, form)
    bad = [check for check in checks if check.problems]
    if any(not check.is_made_again for check in bad):
        return EXIT_CRITICAL
    return EXIT_WARNING if bad else 0


@storage.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--delete", is_flag=True, help="Delete these logs for good.")
@change_options
@output.output_option
def strays(directory: Path, delete: bool, change: ChangeOptions, form: str | None) -> None:
    """List the logs in DIRECTORY (log.dir) that ZooKeeper did not assign to the broker at a start.

    Their topics were deleted or their replicas reassigned while the broker was down, or ZooKeeper
    was restored from an older state. The broker uses a stray log again if the partition returns to
    it, and deletes the log after stray.retention.ms.

    \b
    Examples:
      logbus storage strays /var/lib/logbus
      logbus storage strays /var/lib/logbus --delete --dry-run
      logbus storage strays /var/lib/logbus --delete --yes
    """
    from broker_lite.storage.paths import parse_stray_dir

    rows = []
    for path in sorted(directory.iterdir()):
        stray = parse_stray_dir(path.name)
        if stray is not None:
            key, since_ms = stray
            size = sum(each.stat().st_size for each in path.iterdir())
            row = {"topic_id": key.topic_id, "partition": key.partition, "bytes": size}
            rows.append({**row, "since": output.iso(since_ms), "path": str(path)})
    output.show(rows, form)
    if not rows:
        output.say(f"{directory} holds no stray logs")
    elif delete and change.is_wanted(f"Delete {len(rows)} stray logs in {directory} for good?"):
        for row in rows:
            shutil.rmtree(str(row["path"]))


def _segments(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for folder, _, names in os.walk(path, onerror=_fail):
                files = (Path(folder, name) for name in names)
                yield from sorted(f for f in files if f.suffix == ".log" and f.stem.isdigit())
        else:
            yield path


def _sizes(paths: tuple[Path, ...]) -> dict[str, int]:
    """Return the size in bytes of each segment file, without files that a running broker deletes
    meanwhile."""
    sizes = {}
    for path in _segments(paths):
        with contextlib.suppress(FileNotFoundError):
            sizes[str(path)] = path.stat().st_size
    return sizes


def _fail(error: OSError) -> None:
    raise error


def _checks(path: Path) -> Iterator[FileCheck]:
    """Yield the results of checking a segment file, a data directory, a partition's directory, or
    all of these below another folder."""
    from broker_lite.storage import inspection
    from broker_lite.storage.files import OsFiles
    from broker_lite.storage.paths import META, parse_partition_dir

    if not path.is_dir():
        _check_name(path)
        yield inspection.check_segment(OsFiles(), str(path))
    elif (path / META).exists():
        yield from inspection.check_directory(OsFiles(), str(path))
    elif parse_partition_dir(path.name):
        yield from inspection.check_partition(OsFiles(), str(path))
    else:
        for below in sorted(path.iterdir()):
            if below.is_dir() or (below.suffix == ".log" and below.stem.isdigit()):
                yield from _checks(below)


def _batches(path: Path) -> Iterator[InspectedBatch]:
    from broker_lite.storage.files import OsFiles
    from broker_lite.storage.inspection import inspect_file

    _check_name(path)
    return inspect_file(OsFiles(), str(path))


def _check_name(path: Path) -> None:
    if not path.stem.isdigit():
        raise click.BadParameter(
            f"{path} is not a segment: a segment is named after its first offset"
        )


def _row(path: Path, batch: InspectedBatch) -> dict[str, Any]:
    from broker_lite.record import format as fmt

    row: dict[str, Any] = {"file": str(path), "position": batch.position}
    if not batch.problem:
        header = batch.header
        codecs = {0: "none", 1: "gzip", 2: "snappy", fmt.CODEC_LZ4: "lz4", fmt.CODEC_ZSTD: "zstd"}
        row |= {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records": header.record_count,
            "bytes": header.size_bytes,
            "body": "columns" if header.is_columns else "rows",
            "codec": codecs.get(header.codec, str(header.codec)),
            "max_timestamp": output.iso(header.max_timestamp),
            "leader_epoch": header.leader_epoch,
            "producer_id": header.producer_id,
        }
    return row | {"problem": batch.problem or None}
