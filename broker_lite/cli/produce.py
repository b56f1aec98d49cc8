"""``logbus produce``: send lines of stdin or of files to a topic."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import (
    bootstrap,
    cluster_options,
    found_topic,
    key_values,
    named_values,
    settings_option,
)
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.escapes import EscapedText
from broker_lite.cli.interruption import Interruption
from broker_lite.cli.main import EXIT_INTERRUPTED
from broker_lite.cli.numbers import Whole
from broker_lite.errors import LogbusError
from broker_lite.security.acls import Operation

if TYPE_CHECKING:
    from pyarrow import Table

    from broker_lite.cli.lines import LinePosition, LineRule, OnShare
    from broker_lite.client.producing.producer import Producer

_WATCHED_MAX = 1000
"""Maximum number of Arrow tables that are sent but not yet acknowledged. Before the command sends
more, it waits for the oldest."""


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-K",
    "--key-delimiter",
    type=EscapedText(),
    help="Split each line at this text into key and value. As in kcat: \\t, \\n, \\0, \\xNN, \\\\.",
)
@click.option("-k", "--key", help="The key of every record.")
@click.option("-H", "--header", multiple=True, metavar="K=V", help="A header of every record.")
@click.option("-Z", "--null-empty", is_flag=True, help="An empty value becomes a null (tombstone).")
@click.option("-p", "--partition", type=int, help="Write to this partition. Default: by key.")
@click.option("-z", "--compression", default="none", type=click.Choice(("none", "lz4", "zstd")))
@click.option("--acks", default="all", type=click.Choice(("all", "1", "0")), show_default=True)
@click.option(
    "--linger-ms", default=5, show_default=True, help="Wait up to this time in ms to fill a batch."
)
@click.option("--rate", type=Whole(min=1), help="Maximum records per second.")
@click.option(
    "--input",
    "form",
    default="auto",
    type=click.Choice(("auto", "lines", "jsonl", "csv", "arrow", "parquet")),
    help="Format of the input. auto: by the file's first bytes and suffix, else lines.",
)
@click.option(
    "-o",
    "--output",
    "summary",
    type=click.Choice(output.FORMATS),
    help="Print a summary in this form.",
)
@settings_option
@cluster_options
def produce(
    topic: str,
    files: tuple[Path, ...],
    key_delimiter: str | None,
    key: str | None,
    header: tuple[str, ...],
    null_empty: bool,
    partition: int | None,
    compression: str,
    acks: str,
    linger_ms: int,
    rate: int | None,
    form: str,
    summary: str | None,
    settings: tuple[str, ...],
    cluster: ChosenCluster,
) -> int:
    """Write lines of stdin, or of FILES (also .gz, .csv, .parquet, .arrow, .feather), to TOPIC.

    Every line is a record. The exit code is 0 once all records are acknowledged. After Ctrl-C (exit
    code 130) and at a bad line, the records read so far are sent, counted and reported.

    Files that 'export' or 'consume -o jsonl' wrote are read back as records. With --input jsonl
    each line is such a JSON object: {"value": …}, and optionally key, headers [["name", "value"]],
    timestamp or timestamp_ms; bytes are {"$b64": "…"}. The first line of a .csv file names its
    columns: value, and optionally key, timestamp, headers. An empty field is null, and "" is empty.

    \b
    Examples:
      tail -f app.log | logbus produce events
      logbus produce events -K '\\t' keyed.tsv
      logbus produce events rows.parquet -z zstd
      logbus consume old -e -o jsonl | logbus produce events --input jsonl
    """
    from broker_lite.cli.lines import LineRule, form_of
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.options import build
    from broker_lite.client.producing.producer import Producer
    from broker_lite.config import ProducerConfig

    if key is not None and key_delimiter is not None:
        raise click.UsageError("-k sets one key for all, -K reads it from each line; give one")
    for path in files or (None,):
        _check_options(form_of(path, form), key_delimiter, key, header, null_empty)
    options = {"acks": acks, "linger_ms": linger_ms, "compression": compression}
    given = key_values(settings, "-X")
    config = build(ProducerConfig, given, options | {"client_id": "logbus-cli"})
    headers = tuple((_name(k), os.fsencode(v)) for k, v in named_values(header, "--header"))
    rule = LineRule(
        key_delimiter=os.fsencode(key_delimiter) if key_delimiter else None,
        key=os.fsencode(key) if key is not None else None,
        headers=headers,
        null_empty=null_empty,
        takes_binary=form == "lines" or "\0" in (key_delimiter or ""),
        bytes_max=config.max_request_bytes,
    )
    servers = bootstrap(cluster)
    with Admin(servers) as admin:
        found_topic(admin.cluster(), topic, user=admin.user, operation=Operation.WRITE)
    started = time.monotonic()
    with Producer(servers, config) as producer:
        sent = _Sending(producer, topic, partition, rate)
        with _counting(sent, topic), Interruption() as interruption:
            sent.read(files, form, rule, interruption)
            producer.flush()
    if key_delimiter and sent.keyless:
        output.say(f"{_records(sent.records, sent.keyless)} without a key: no {key_delimiter!r}")
    if summary or sys.stderr.isatty() or interruption.is_set:
        _summarise(topic, sent.records, time.monotonic() - started, summary, acks)
    return EXIT_INTERRUPTED if interruption.is_set else 0


def _summarise(topic: str, records: int, seconds: float, form: str | None, acks: str) -> None:
    """Print how many records were sent to the topic, and in how many seconds. If ``form``, the
    output format, is None, print a sentence to stderr."""
    if form:
        facts = {"topic": topic, "records": records, "seconds": round(seconds, 3)}
        output.show_one(facts, form)
    else:
        unknown = ", not acknowledged (acks=0)" if acks == "0" else ""
        output.say(f"{_records(records)} to {topic} in {seconds:.1f} s{unknown}")


@contextlib.contextmanager
def _counting(sent: _Sending, topic: str) -> Iterator[None]:
    """Run the block that sends records. After an error or an interruption, print how many records
    were sent and acknowledged, and from where to resume."""
    try:
        yield
    except (LogbusError, click.ClickException, KeyboardInterrupt) as error:
        if sent.records:
            sent.end(wait=not isinstance(error, KeyboardInterrupt))
            written = sent.written()
            are = "is" if written == 1 else "are"
            output.say(f"{_records(sent.records, written)} {are} known to be in {topic}")
            if sent.unread and written == sent.records:
                output.say(f"resume from {sent.unread}")
        else:
            output.say(f"no records were sent to {topic}")
        raise


def _records(count: int, some: int | None = None) -> str:
    noun = "record" if count == 1 else "records"
    return f"{count:,} {noun}" if some is None else f"{some:,} of {count:,} {noun}"


def _check_options(
    form: str, key_delimiter: str | None, key: str | None, header: tuple[str, ...], null_empty: bool
) -> None:
    """Raise click.UsageError for -K, -k, -H or -Z if the format is not "lines": in other formats,
    each record has its own key and headers."""
    options = {"-K": key_delimiter, "-k": key, "-H": header, "-Z": null_empty}
    names = [name for name, value in options.items() if value not in (None, (), False)]
    if form != "lines" and names:
        raise click.UsageError(
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} only for lines; with {form} "
            "every record has its own key, value and headers"
        )


def _name(header: str) -> str:
    if not header.isprintable():  # Python decodes invalid UTF-8 to surrogates: not printable.
        raise click.BadParameter(
            f"the name {header!r} is not text: use printable UTF-8", param_hint="--header"
        )
    return header


class _Reading:
    """The progress bar for the bytes that are read from files. Stdin and pipes, whose size is
    unknown, have no bar."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._is_known = bool(files) and all(path.is_file() for path in files)
        self._left = sum(path.stat().st_size for path in files) if self._is_known else 0
        self.bar = output.ProgressBar("bytes read", is_alone=True)
        if self._is_known:
            self.bar.reach(self._left)

    def on_share(self, path: Path | None) -> OnShare | None:
        """Return a function that shows how much of the next file has been read (0 to 1).

        Return None for stdin and pipes, whose size is unknown. Call this method once for each file,
        in order."""
        if path is None or not self._is_known:
            return None
        size = path.stat().st_size
        self._left -= size
        after = self._left
        return lambda share: self.bar.reach(after + round(size * (1 - share)))


class _Sending:
    """Sends files to a topic, and counts the records.

    ``records`` counts the records sent so far, ``keyless`` those without a key because their line
    lacks the delimiter of -K. If reading fails, ``unread`` names the input that was not sent."""

    def __init__(
        self, producer: Producer, topic: str, partition: int | None, rate: int | None
    ) -> None:
        self.records = 0
        self.keyless = 0
        self.unread = ""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._rate = rate
        self._watched: deque[tuple[Any, int]] = deque()
        self._written = 0

    def read(
        self, files: tuple[Path, ...], form: str, rule: LineRule, interruption: Interruption
    ) -> None:
        """Read the files, or stdin if there are none, and send their records."""
        from broker_lite.cli.lines import LinePosition, form_of, tables

        reading = _Reading(files)
        with reading.bar:
            for number, path in enumerate(files or (None,), 1):
                position = LinePosition()
                on_share = reading.on_share(path)
                source = tables(path, form_of(path, form), rule, on_share, position)
                source = self._noting_errors(source, path, position, files[number:])
                self._send(source, rule, interruption)

    def _noting_errors(
        self,
        source: Iterator[Table],
        path: Path | None,
        position: LinePosition,
        later: tuple[Path, ...],
    ) -> Iterator[Table]:
        """Yield the tables that ``source`` reads from the file ``path``.

        If reading fails, set ``unread`` to the input that was not sent: the rest of this file, and
        the files ``later``."""
        before = self.records
        try:
            yield from source
        except (LogbusError, click.ClickException):
            count = self.records - before
            at = (
                f"line {position.line}"
                if position.line
                else f"the record after the first {count:,}"
            )
            self.unread = f"{at} of {path or 'stdin'}"
            if later:
                self.unread += f", then send {', '.join(map(str, later))}"
            raise

    def _send(self, source: Iterator[Table], rule: LineRule, interruption: Interruption) -> None:
        """Send the tables of ``source``, at most as many records a second as --rate allows."""
        count = 0
        rate = self._rate
        watched = self._watched
        started = time.monotonic()
        while (table := interruption.next_of(source)) is not None:
            step = max(rate // 20 if rate else len(table), 1)
            for first in range(0, len(table), step):
                if interruption.is_set:
                    break
                part = table.slice(first, step)
                sent = self._producer.send_arrow(self._topic, part, partition=self._partition)
                watched.append((sent, len(part)))
                count += len(part)
                self.records += len(part)
                if rule.key_delimiter is not None:
                    self.keyless += part.column("key").null_count
                if rate:
                    time.sleep(max(0.0, started + count / rate - time.monotonic()))
                # Check the results of earlier sends now, so that a failure ends the command before
                # the input ends.
                while watched and (watched[0][0].done() or len(watched) > _WATCHED_MAX):
                    watched[0][0].result()
                    self._written += watched.popleft()[1]

    def written(self) -> int:
        """Return how many records are acknowledged."""
        return self._written + sum(
            count for sent, count in self._watched if sent.done() and sent.exception() is None
        )

    def end(self, *, wait: bool) -> None:
        """Close the producer. With ``wait``, first wait until the batches in flight are
        acknowledged or have failed."""
        with contextlib.suppress(LogbusError):
            self._producer.close() if wait else self._producer.end()
