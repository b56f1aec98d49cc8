"""Completion of commands, options, topics and groups in bash, zsh and fish. The module ``contexts``
completes the names of contexts.

Names of topics and groups come from the cluster that the typed command would use, and are cached
for ``CACHE_SECONDS``. If the brokers take longer than ``ANSWER_SECONDS`` to answer, completion
offers the expired names of the cache, or none. A process in the background then waits for the
brokers, so that the next completion finds the names in the cache. Completion never prints an
error and never blocks the shell."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from broker_lite.cli import contexts
from broker_lite.cli.contexts import VARIABLE, choose_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_SECONDS = 60.0
"""Seconds for which completion caches the names of topics and groups."""
ANSWER_SECONDS = 0.15
"""Maximum seconds to wait for brokers. A completion, with Python's start, then takes 300 ms."""
FILL_SECONDS = 10.0
"""Maximum seconds that the process in the background waits for brokers."""
NAMES_MAX = 10_000
"""Maximum topics or groups that completion offers."""
_CLUSTER_OPTIONS = ("bootstrap_servers", "zookeeper", "context_name", "client_config")
"""The parameters of ``choose_cluster``: those options of the typed command that name a cluster."""


class ClusterName(click.ParamType[str]):
    """The type of an argument that names a topic or a group. It accepts any text; the shell
    completes it with the cluster's names."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: object, ctx: object) -> str:
        return str(value)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return "TEXT" if isinstance(param, click.Option) else None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        with contextlib.suppress(Exception):
            return [
                CompletionItem(each)
                for each in names(self.name, ctx.params)
                if each.startswith(incomplete)
            ]
        return []


TOPIC, GROUP = ClusterName("topic"), ClusterName("group")


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, topics, groups and contexts in a shell.

    \b
    Examples:
      logbus completion bash >> ~/.bashrc
      logbus completion zsh >> ~/.zshrc
      logbus completion fish > ~/.config/fish/completions/logbus.fish
    """
    answers = get_completion_class(shell)
    assert answers is not None
    command = click.get_current_context().find_root().command
    click.echo(answers(command, {}, "logbus", "_LOGBUS_COMPLETE").source())


def names(kind: str, params: Mapping[str, Any]) -> list[str]:
    """Return the cluster's topics or groups (``kind``). ``params`` are the options of the typed
    command, which name the cluster.

    The names come from a fresh cache, else from the brokers, else from an expired cache; without
    any of them, the list is empty."""
    place = _cache_file(kind, params)
    cached: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        cached = json.loads(place.read_text("utf-8"))
        if _age_s(place) < CACHE_SECONDS:
            return cached
    found = _answer(kind, params, ANSWER_SECONDS)
    if found is None:
        return cached
    if not found:
        _fill_later(kind, params, place)
        return cached
    _store(place, found[0])
    return found[0]


def _age_s(file: Path) -> float:
    return abs(time.time() - file.stat().st_mtime)


def _answer(kind: str, params: Mapping[str, Any], seconds: float) -> list[list[str]] | None:
    """Return a list with the names as its only element; an empty list if the brokers have not
    answered within ``seconds``; None if there is no answer because of an error."""
    answers: list[list[str]] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            answers.append(_ask(kind, params))

    # Ask the cluster in a thread, and wait only this long: a name server or ZooKeeper may answer
    # late or never.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answers if answers or asking.is_alive() else None


def _store(place: Path, found: list[str]) -> None:
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(found), "utf-8")
        os.replace(new, place)


def _fill_later(kind: str, params: Mapping[str, Any], place: Path) -> None:
    """Start a process that waits for the brokers and stores their names in the cache, unless one
    has just been started."""
    mark = place.with_suffix(".asked")
    with contextlib.suppress(OSError):
        if _age_s(mark) < FILL_SECONDS:
            return
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        chosen = json.dumps({name: params.get(name) for name in _CLUSTER_OPTIONS})
        subprocess.Popen(
            [sys.executable, "-P", "-m", "broker_lite.cli.completion", kind, chosen],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def fill(kind: str, params: Mapping[str, Any]) -> None:
    """Store the cluster's names in the cache, if the brokers answer within ``FILL_SECONDS``."""
    found = _answer(kind, params, FILL_SECONDS)
    if found:
        _store(_cache_file(kind, params), found[0])


def _ask(kind: str, params: Mapping[str, Any]) -> list[str]:
    from broker_lite.cli.context import open_admin, using_security

    cluster = choose_cluster(*map(params.get, _CLUSTER_OPTIONS))
    if cluster.context is not None and cluster.context.password_command:
        # Do not run the command that returns the password: it may ask the user for input.
        return []
    with (
        using_security(params.get("client_config"), cluster.context),
        open_admin(cluster) as admin,
    ):
        if kind == "topic":
            return sorted(admin.cluster().topics)[:NAMES_MAX]
        return sorted(item.group for item in admin.list_groups())[:NAMES_MAX]


def _cache_file(kind: str, params: Mapping[str, Any]) -> Path:
    from broker_lite.client import client_config, discovery

    variables = (discovery.ENV_BOOTSTRAP, discovery.ENV_ZOOKEEPER, VARIABLE, client_config.VARIABLE)
    cluster: list[object] = [params.get(name) for name in _CLUSTER_OPTIONS]
    cluster += [os.environ.get(name) for name in variables]
    file = Path(params.get("client_config") or os.environ.get(client_config.VARIABLE, ""))
    for path in (contexts.path(), discovery.last_cluster_path(), file):
        with contextlib.suppress(OSError):
            cluster.append(path.stat().st_mtime_ns)
    key = hashlib.sha256(repr([kind, *cluster]).encode("utf-8", "surrogateescape")).hexdigest()
    return discovery.cache_directory() / "completion" / f"{key[:16]}.json"


if __name__ == "__main__":
    fill(sys.argv[1], json.loads(sys.argv[2]))
