"""``logbus up`` and ``logbus down``: a cluster on this machine.

``up`` starts the cluster as its child processes; ``--detach`` moves ``up`` into the background.
``up`` stores files about the cluster, by which other commands find it (``cli.running``). Clients
without an address use the cluster that was started last (``client.discovery``)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from broker_lite.cli import output, running, up_report
from broker_lite.cli.context import key_values
from broker_lite.cli.main import EXIT_INTERRUPTED
from broker_lite.cli.numbers import PORT
from broker_lite.cli.up_report import LOG
from broker_lite.client import discovery
from broker_lite.errors import DirectoryLockedError, InvalidConfigError, PortInUseError

STOP_SECONDS = 45.0
"""Seconds that ``down`` lets a process stop before it kills it."""
START_SECONDS = 90.0
"""Maximum seconds until a detached cluster runs."""
CHECK_SECONDS = 0.5
"""Seconds between two checks for ended processes."""


@click.command()
@click.option(
    "-n",
    "--brokers",
    default=1,
    help="Number of brokers. Default: as many as have data in the folder, else one.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder. Default: 'cluster' in the data folder (XDG_DATA_HOME).",
)
@click.option(
    "--port",
    type=PORT,
    default=9092,
    help="The first broker's port, which must be free; the others take the next free ones. "
    "Default: the first free ones from 9092 on. 0: any.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--secure",
    is_flag=True,
    help="Demand logins over TLS: make CAs, certificates and user admin in DIR/security. A folder "
    "that was secured once stays secured.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without logins, encryption and permissions.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="Use this running ZooKeeper instead of an embedded one.",
)
@click.option(
    "--zookeeper-jars",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of ZooKeeper's jars, if neither PySpark nor SPARK_HOME has them.",
)
@click.option("-c", "--config", multiple=True, metavar="KEY=VALUE", help="Setting of every broker.")
@click.option("--console", is_flag=True, help="Start the web console, too, from port 8088 on.")
@click.option(
    "--ephemeral", is_flag=True, help="Keep data in a temporary folder, deleted at the end."
)
@click.option("-d", "--detach", is_flag=True, help="Return once everything runs; stop with 'down'.")
@click.option("--ready-fd", type=int, hidden=True)
@output.output_option
@click.pass_context
def up(
    context: click.Context,
    brokers: int,
    directory: Path | None,
    port: int,
    host: str,
    secure: bool,
    insecure: bool,
    zookeeper: str | None,
    zookeeper_jars: str | None,
    config: tuple[str, ...],
    console: bool,
    ephemeral: bool,
    detach: bool,
    ready_fd: int | None,
    form: str | None,
) -> int:
    """Start ZooKeeper and brokers on this machine and run them until Ctrl-C.

    \b
    Examples:
      logbus up
      logbus up -d --brokers 3
      logbus up -d --ephemeral -c metrics.port=0
      logbus up -d --dir ./cluster --port 19092 --secure
    """
    if ephemeral and directory is not None:
        raise click.UsageError(
            "--ephemeral deletes the data, --dir keeps the data; give one of them"
        )
    # Ignore --detach in the background process, which gets its parent's options.
    detach = detach and ready_fd is None
    where = None if ephemeral else directory or _created_directory()
    _require_no_contradiction(where, secure, insecure)
    present = _running_in(where) if detach else None
    if present is not None:
        _require_same(context, present)
        output.say(
            f"the cluster runs already, at {present['bootstrap_servers']}; nothing was started"
        )
        up_report.announce(present, form, _ending(present), is_new=False)
        return 0
    is_port_given = context.get_parameter_source("port") is not ParameterSource.DEFAULT
    if is_port_given:
        _require_free(host, port)
    before = up_report.brokers_in(where)
    if before > brokers and context.get_parameter_source("brokers") is ParameterSource.DEFAULT:
        brokers = before
        if ready_fd is None:
            output.say(f"{where} has data of {before} brokers: all of them start (-n for fewer)")
    allowing = {"listeners.insecure.allow": "true"} if insecure else {}
    settings = key_values(config, "--config") | {"host": host} | allowing
    report = up_report.UpReport(form, port, before)
    if ready_fd is None:
        up_report.warn_of_advertised_host(settings)
    if detach:
        return _detach(report)
    from broker_lite.local.cluster import LocalCluster

    cluster = LocalCluster(
        brokers,
        directory=where,
        config=settings,
        zookeeper=zookeeper,
        zookeeper_jars=zookeeper_jars,
        port=port,
        exact_port=is_port_given,
        secure=secure,
    )
    return _run_until_stopped(cluster, ready_fd, report, console=console)


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the cluster to stop; needed if several run.",
)
@output.output_option
def down(directory: Path | None, form: str | None) -> int:
    """Stop the cluster that 'logbus up' started; its data stay.

    \b
    Examples:
      logbus down
      logbus down --dir ./cluster
    """
    from broker_lite.local import process

    several = running.alive()
    if directory is None and len(several) > 1:
        raise click.UsageError(
            f"{len(several)} clusters run; say which to stop: {running.names(several)}"
        )
    facts = running.find(directory)
    marks: dict[str, str] = facts.get("processes") or {}
    holder = int(facts.get("pid") or 0)
    try:
        stopped = process.end(holder, marks.get(str(holder), ""), STOP_SECONDS)
        for pid, mark in marks.items():
            stopped |= process.end(int(pid), mark, STOP_SECONDS)
    except PermissionError as error:
        error.filename = f"the cluster in {facts['directory']}"
        raise
    running.forget(facts)
    said = "stopped" if stopped else "the cluster was not running; its record is removed"
    output.report_change({"directory": facts["directory"], "stopped": stopped}, form, said)
    return 0


def default_directory() -> Path:
    """Return the folder of a cluster that is started without --dir."""
    return discovery.data_directory() / "cluster"


def _created_directory() -> Path:
    """Create the default folder. Raises click.ClickException if it cannot be written."""
    folder = default_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"{folder} cannot be created ({error.strerror}). Name a folder with --dir, or keep "
            "nothing with --ephemeral"
        ) from None
    return folder


def _running_in(directory: Path | None) -> dict[str, Any] | None:
    for facts in running.alive():
        if directory is not None and Path(facts["directory"]) == directory.absolute():
            return facts
    return None


def _require_same(context: click.Context, facts: dict[str, Any]) -> None:
    """Raise DirectoryLockedError if options of ``up`` differ from the running cluster: ``up``
    cannot change a cluster that runs."""
    first = facts["bootstrap_servers"].partition(",")[0]
    has = {
        "brokers": len(facts["brokers"]),
        "port": facts["brokers"][0]["port"],
        "host": first.rpartition(":")[0].strip("[]"),
        "zookeeper": facts["zookeeper"],
    }
    unlike = []
    for name, value in has.items():
        asked = context.params[name]
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if is_given and asked != value and (name, asked) != ("port", 0):
            unlike.append(f"--{name} {asked} (it has {value})")
    unlike += [f"--config {pair}" for pair in context.params["config"]]
    if context.params["console"] and not facts.get("console"):
        unlike.append("--console (start it beside: logbus console)")
    if context.params["secure"] and not facts.get("client_config"):
        unlike.append("--secure")
    if unlike:
        where = running.names([facts])
        raise DirectoryLockedError(
            f"the cluster that runs already at {facts['bootstrap_servers']} cannot change to "
            f"{', '.join(unlike)}; stop it first, its data stay: logbus down {where}"
        )


def _require_no_contradiction(where: Path | None, secure: bool, insecure: bool) -> None:
    """Raise click.UsageError for --insecure with --secure, and InvalidConfigError for --insecure in
    the folder of a secured cluster."""
    if not insecure:
        return
    if secure:
        raise click.UsageError("--secure and --insecure exclude each other; give one of them")
    if where is not None and (where / "security").is_dir():
        raise InvalidConfigError(
            f"--insecure: {where} is a secured cluster and stays one; leave the option out, or "
            "start a new cluster in another folder with --dir"
        )


def _require_free(host: str, port: int) -> None:
    """Raise PortInUseError if the port of --port is in use: ``up`` must not silently take another
    port."""
    from broker_lite.local.cluster import require_free_port

    try:
        require_free_port(host, port)
    except PortInUseError as error:
        for facts in running.alive():
            if port in [broker["port"] for broker in facts["brokers"]]:
                where = running.names([facts])
                raise PortInUseError(
                    f"{error.message}. Your own cluster uses this port; show it with: "
                    f"logbus status {where}"
                ) from None
        raise


def _run_until_stopped(
    cluster: Any, ready_fd: int | None, report: up_report.UpReport, *, console: bool
) -> int:
    """Start the cluster, report it, wait for a signal and stop the cluster. Return the exit code. A
    signal during the start stops the cluster, too."""
    wake_read, wake_write = os.pipe()
    is_starting = True

    def note(number: int, _: object) -> None:
        nonlocal is_starting
        os.write(wake_write, bytes([number]))
        if is_starting:
            is_starting = False
            raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    # nohup ignores SIGHUP, so that the cluster stays up after the end of the terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
    try:
        with cluster:
            if console:
                cluster.start_console()
            is_starting = False
            facts = cluster.facts()
            running.remember(facts)
            try:
                if ready_fd is not None:
                    with os.fdopen(ready_fd, "w", encoding="utf-8") as pipe:
                        pipe.write(json.dumps(facts) + "\n")
                    _redirect_output(cluster.directory / LOG)
                else:
                    report.show(facts, "Ctrl-C stops it.")
                by = _wait(cluster, wake_read)
                _print_stopping(is_detached=ready_fd is not None)
            finally:
                running.forget(facts)
    except KeyboardInterrupt:
        by = os.read(wake_read, 1)[0]
    return EXIT_INTERRUPTED if by == signal.SIGINT else 0


def _print_stopping(*, is_detached: bool) -> None:
    if is_detached:
        _print_with_time("stopping")
    else:
        # After Ctrl-C a terminal shows ^C without a newline, so begin a new line.
        output.say("\nStopping." if sys.stderr.isatty() else "Stopping.")


def _wait(cluster: Any, wake: int) -> int:
    """Wait for a signal, which arrives as a byte in the pipe ``wake``, and return its number.
    Restart processes that end meanwhile."""
    from broker_lite.cli.supervisor import ProcessSupervisor

    supervisor = ProcessSupervisor(cluster, _print_with_time)
    while not select.select([wake], [], [], CHECK_SECONDS)[0]:
        if supervisor.check():
            cluster.write_facts()
            running.update(cluster.facts())
    return os.read(wake, 1)[0]


def _print_with_time(text: str) -> None:
    output.say(f"{output.iso(time.time_ns() // 1_000_000)} {text}")


def _redirect_output(log: Path) -> None:
    """Redirect later output to a file, after the detached process has reported to its parent."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def _detach(report: up_report.UpReport) -> int:
    """Start the same command in the background and wait until it reports the cluster as running."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "broker_lite",
                *sys.argv[1:],
                "--ready-fd",
                str(write_end),
            ],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        line = _read_line(read_end, time.monotonic() + START_SECONDS)
        if not line:
            child.terminate()
            child.wait()
            printed.seek(0)
            output.say(printed.read().decode("utf-8", "replace").strip())
            return child.returncode if child.returncode > 0 else 1
    facts = json.loads(line)
    report.show(facts, _ending(facts))
    return 0


def _ending(facts: dict[str, Any]) -> str:
    alone = running.is_recorded(facts) and len(running.alive()) < 2
    return f"Stop it with: logbus down{'' if alone else ' ' + running.names([facts])}"


def _read_line(pipe: int, deadline: float) -> bytes:
    """Return the line that the background process writes to ``pipe``; nothing if the process ends
    or has not written a line at ``deadline``."""
    line = b""
    with os.fdopen(pipe, "rb", buffering=0) as reader:
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                return b""
            part = reader.read(65536)
            if not part:
                return b""
            line += part
    return line
