"""The root of the command line: the table of commands, whose modules are loaded on use, and the
exit code of each error."""

from __future__ import annotations

import difflib
import errno
import importlib
import json
import os
import re
import sys
import traceback

import click
from click.shell_completion import CompletionItem

from broker_lite import __version__
from broker_lite.errors import (
    BrokerNotAvailableError,
    ContextNotFoundError,
    CoordinationUnavailableError,
    DeliveryTimedOutError,
    LogbusError,
    MissingDependencyError,
    NetworkError,
    NoBrokersError,
    NoClusterError,
    RequestTimedOutError,
    SourceUnreachableError,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_WARNING = 4
EXIT_CRITICAL = 5
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130

NEAR = 0.6
"""Minimum similarity (0 to 1) of an option to the user's misspelt option, for a "did you mean"."""

COMMANDS = {
    "up": ("broker_lite.cli.up:up", "Start a cluster on this machine."),
    "down": ("broker_lite.cli.up:down", "Stop the cluster that 'up' started."),
    "status": ("broker_lite.cli.status:status", "Processes and health of a cluster."),
    "logs": ("broker_lite.cli.logs:logs", "Logs of this machine's brokers and ZooKeeper."),
    "health": ("broker_lite.cli.health:health", "Whether a cluster works, with causes and cures."),
    "top": ("broker_lite.cli.top:top", "Watch brokers, topics and groups in the terminal."),
    "console": ("broker_lite.cli.console:console", "Serve the web console of a cluster."),
    "demo": (
        "broker_lite.cli.spark_programs:demo",
        "Three brokers, a Spark query, a check of its totals.",
    ),
    "doctor": ("broker_lite.cli.doctor:doctor", "Check this machine and a cluster, with remedies."),
    "topic": ("broker_lite.cli.topic:topic", "Topics: create, describe, move, elect, …"),
    "produce": ("broker_lite.cli.produce:produce", "Write lines or files to a topic."),
    "consume": ("broker_lite.cli.consume:consume", "Read a topic to the terminal or a pipe."),
    "export": ("broker_lite.cli.export:export", "Write a topic to a CSV, JSON or Parquet file."),
    "groups": ("broker_lite.cli.groups:groups", "Consumer groups, Spark queries among them."),
    "lag": ("broker_lite.cli.lag:lag", "How far groups are behind; checks limits."),
    "transactions": (
        "broker_lite.cli.transactions:transactions",
        "Open transactions, and those that hang.",
    ),
    "user": ("broker_lite.cli.user:user", "Users and their passwords."),
    "acl": ("broker_lite.cli.acl:acl", "Who may do what; why a request is denied."),
    "cert": ("broker_lite.cli.cert:cert", "Certificates for brokers and clients."),
    "quota": ("broker_lite.cli.quota:quota", "How much a user, client or address may use."),
    "context": (
        "broker_lite.cli.context_commands:context",
        "Named clusters, and the one that commands use.",
    ),
    "zookeeper": (
        "broker_lite.cli.zookeeper:zookeeper",
        "Close ZooKeeper to all but the brokers.",
    ),
    "config": (
        "broker_lite.cli.config_commands:config",
        "Settings: values, sources, templates of the files.",
    ),
    "mirror": ("broker_lite.cli.mirror:mirror", "Copy a Kafka or logbus cluster, live."),
    "checkpoint": (
        "broker_lite.cli.spark_programs:checkpoint",
        "Carry a Kafka query's checkpoint over to logbus.",
    ),
    "perf": ("broker_lite.cli.perf:perf", "Measure producing and consuming."),
    "storage": ("broker_lite.cli.storage:storage", "Inspect segment files."),
    "generate": (
        "broker_lite.cli.generate:generate",
        "Print alerts, dashboards, systemd, Docker and Kubernetes files.",
    ),
    "completion": (
        "broker_lite.cli.completion:completion",
        "Complete commands, topics and groups in bash, zsh, fish.",
    ),
    "broker": ("broker_lite.cli.broker:broker", "Brokers: run, list, describe, retire."),
}
"""The module and the line of help of each command. Thus ``logbus --help`` loads no module of a
command."""

ALIASES = {"group": "groups"}
"""Other names under which the command line accepts a command."""
MEANT = {
    "start": "up",
    "import": "produce",
    "stop": "down",
    "help": "--help",
    "version": "--version",
}
"""Names of commands in other tools, each with the command or option to suggest instead."""

MEANT_OPTIONS = {
    "--address": ("--ip", "--host", "--bootstrap-servers"),
    "--broker-list": ("--bootstrap-servers",),
    "--from-beginning": ("--start",),
    "--json": ("--output",),
    "--max-messages": ("--count",),
}
"""Names of options in other tools, each with the options to suggest instead: the first that the
command has."""

EXTRAS = {
    "rich": "cli",
    **dict.fromkeys(("cryptography", "kafka", "scramp"), "broker"),
    **dict.fromkeys(("h11", "jinja2", "prometheus_client", "starlette", "uvicorn"), "console"),
}
"""The packages that some commands import and the core does not install, each with its extra."""

EXIT_CODES = {
    0: "done, or healthy",
    EXIT_FAILED: "failed; the message has the reason",
    EXIT_USAGE: "wrong command, option or context",
    EXIT_UNREACHABLE: "no cluster, or no broker answers",
    EXIT_WARNING: "a check found a warning (health, doctor, lag)",
    EXIT_CRITICAL: "a check found something critical",
    EXIT_TIMED_OUT: "the given time ran out",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
}
"""Every exit code of the command line."""

_UNREACHABLE = (
    NoBrokersError,
    NetworkError,
    BrokerNotAvailableError,
    CoordinationUnavailableError,
)


class ReaderGone(Exception):
    """The program that reads stdout closed the pipe. Raised in place of BrokenPipeError, on which
    click exits with code 1."""


class LazyGroup(click.Group):
    """A group of click commands, which imports the module of a command when the user calls it."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            raise MissingDependencyError(
                f"the package {package} is missing; install it with: "
                f"pip install 'pyspark-logbus[{EXTRAS[package]}]'"
            ) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            # While the shell completes a command line, print no error: an extra may be missing.
            if ctx.resilient_parsing:
                return None
            raise
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_known = args[0] in COMMANDS or args[0] in ALIASES or args[0].startswith("-")
        if not is_known and not ctx.resilient_parsing:
            near = [MEANT[args[0]]] if args[0] in MEANT else []
            near += difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="logbus")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
@click.option(
    "--color",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    help="Colour states. auto (default): on a terminal, unless NO_COLOR is set.",
)
@click.pass_context
def cli(context: click.Context, debug: bool, color: str) -> None:
    """A partitioned commit log that Spark reads and writes as a streaming format.

    Start with: logbus up, then logbus topic create t, logbus produce t, logbus consume t.
    """
    if color != "auto":
        context.color = color == "always"
    elif os.environ.get("NO_COLOR"):
        context.color = False


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The caller closed this standard stream. Open the null device under its descriptor
            # number, so that no socket gets the number.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str], command: click.Command = cli, name: str = "logbus") -> int:
    """Run ``command``, by default the whole command line, with ``arguments``, print its error if it
    raises one, and return the exit code."""
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _show_click_error(error, arguments)
    except (ReaderGone, BrokenPipeError):
        # The program that reads the output, such as head or less, has closed the pipe. This is no
        # error.
        _discard_output()
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except LogbusError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        if _wants_json(arguments):
            code = exit_code(error, with_hint=False)
            _print_json(error.name, error.message or str(error), code)
            return code
        click.echo(f"Error: {error}", err=True)
        return exit_code(error)
    except OSError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        name, said = _described(error)
        if _wants_json(arguments):
            _print_json(name, said, EXIT_FAILED)
        else:
            click.echo(f"Error: {said}", err=True)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _described(error: OSError) -> tuple[str, str]:
    """Return an error name (for JSON) and a message for an OSError that the command did not
    handle."""
    if isinstance(error, PermissionError):
        owner = "Run the command as the user that owns it"
        return "PERMISSION_DENIED", f"{error.filename or 'a file'}: permission denied. {owner}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        _discard_output()
        cure = "Free space there, or write the output elsewhere"
        return "FAILED", f"the output cannot be written: {error.strerror}. {cure}"
    return "FAILED", str(error)


def _discard_output() -> None:
    """Discard the buffered output after a failed write: Python would flush stdout at exit, and fail
    again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_click_error(error: click.ClickException, arguments: list[str]) -> int:
    """Print click's error about the typed command line and return its exit code."""
    if isinstance(error, click.UsageError):
        error = _explained(error, arguments)
    if _wants_json(arguments):
        name = "USAGE" if error.exit_code == EXIT_USAGE else "FAILED"
        _print_json(name, error.format_message(), error.exit_code)
    else:
        error.show()
    return error.exit_code


def _explained(error: click.UsageError, arguments: list[str]) -> click.UsageError:
    """Return the error with the right way to type what the user meant, if it is known."""
    if isinstance(error, click.NoSuchOption):
        return click.UsageError(_on_unknown_option(error, arguments), error.ctx)
    said = _on_bare_setting(error)
    return error if said is None else click.UsageError(said, error.ctx)


def _on_unknown_option(error: click.NoSuchOption, arguments: list[str]) -> str:
    """Return the message for an option that does not exist.

    click takes a negative number such as -12 for the option -1. The message then says that a
    number must be positive."""
    name, context = error.option_name, error.ctx
    if name[1:].isdigit():
        number = next(word for word in arguments if word.startswith(name))
        return f"{number} is no option; a number must be positive here"
    # Compare the names without their dashes. click also compares the dashes, so it would suggest
    # ``--group`` for ``--nope``.
    word = name.lstrip("-")
    near = [
        each
        for each in error.possibilities or ()
        if difflib.get_close_matches(word, [each.lstrip("-")], cutoff=NEAR)
    ]
    known = {each for row in context.command.params for each in row.opts} if context else set()
    near = near or [each for each in MEANT_OPTIONS.get(name, ()) if each in known][:1]
    if near:
        return f"{error.message} Did you mean {' or '.join(map(repr, near))}?"
    command = next((each for each in arguments if each in COMMANDS), None)
    if context is not None and context.parent is None and command is not None:
        return f"{error.message} Write options of a command after it: logbus {command} … {name}"
    return error.message


def _on_bare_setting(error: click.UsageError) -> str | None:
    """Return the message for settings without the option that sets them, as in ``topic alter t
    retention.ms=5``; None for another error."""
    extra = re.search(r"unexpected extra arguments? \((.+)\)", error.message)
    options = error.ctx.command.params if error.ctx is not None else ()
    setter = next((row.opts[0] for row in options if row.metavar == "KEY=VALUE"), None)
    if extra is None or setter is None or not all("=" in word for word in extra[1].split()):
        return None
    typed = " ".join(f"{setter} {word}" for word in extra[1].split())
    return f"{error.message}. Give a setting with its option: {typed}"


def _wants_json(arguments: list[str]) -> bool:
    for number, word in enumerate(arguments):
        option, _, value = word.partition("=")
        if option == "-o" or (option == "--output" and not value):
            value = arguments[number + 1] if number + 1 < len(arguments) else ""
        elif option.startswith("-o"):
            value = word[2:]
        elif option != "--output":
            continue
        if value in ("json", "jsonl"):
            return True
    return False


def _print_json(name: str, message: str, code: int) -> None:
    """Print an error as one JSON object on stderr."""
    report = {"error": name, "message": message, "exit_code": code}
    click.echo(json.dumps(report, ensure_ascii=False), err=True)


def exit_code(error: LogbusError, *, with_hint: bool = True) -> int:
    """Return the exit code of an error. With ``with_hint``, also tell the user on stderr what to
    try if no broker answered."""
    if isinstance(error, ContextNotFoundError):
        return EXIT_USAGE
    if isinstance(error, NoClusterError | SourceUnreachableError):
        return EXIT_UNREACHABLE
    if isinstance(error, _UNREACHABLE):
        if with_hint:
            click.echo("Is it running? Try: logbus status, logbus doctor", err=True)
        return EXIT_UNREACHABLE
    if isinstance(error, RequestTimedOutError | DeliveryTimedOutError):
        return EXIT_TIMED_OUT
    return EXIT_FAILED
