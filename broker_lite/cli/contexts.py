"""Contexts: named clusters of the command line, in ``contexts.toml`` of the user's settings.

A context holds addresses and the settings of a login, but no password. The password comes from the
context's ``password_file`` or ``password_command``. ``contexts.toml`` must have mode 0600, because
logbus runs the commands in it. Python and Spark clients ignore the file: a context that a person
selects in a terminal must not redirect a job to another cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import json
import os
import shlex
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from broker_lite.client import discovery
from broker_lite.client.client_config import JAAS, security_of, servers_of_file
from broker_lite.config.client_security import KEYS, NO_SECURITY, PASSWORD, ClientSecurity
from broker_lite.errors import ContextNotFoundError, InvalidConfigError

VARIABLE = "LOGBUS_CONTEXT"
FILE = "contexts.toml"
COMMAND_SECONDS = 60.0
"""Maximum seconds that a ``password_command`` may run: it may wait for the user's input."""


@dataclass(frozen=True, slots=True)
class Context:
    """A named cluster. ``settings`` are security settings, under the names that they have in a
    client's configuration file."""

    name: str
    bootstrap_servers: str = ""
    zookeeper: str = ""
    read_only: bool = False
    password_file: str = ""
    password_command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def security(self) -> ClientSecurity:
        """Return the security settings with the password. Raises InvalidConfigError if they are
        wrong, or there is no way to get the password."""
        if not self.settings:
            return NO_SECURITY
        password = self._password()
        try:
            return security_of({**self.settings, **({PASSWORD: password} if password else {})})
        except InvalidConfigError as error:
            raise InvalidConfigError(f"context {self.name!r}: {error.message}") from None

    def _password(self) -> str:
        if self.password_command:
            return _output_of(self.name, self.password_command)
        if not self.password_file:
            return ""
        path = Path(self.password_file).expanduser()
        try:
            return path.read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfigError(
                f"context {self.name!r}: password_file {path} cannot be read: "
                f"{_reason_and_cure(error, path)}, or correct its line in {FILE}"
            ) from None


class ContextName(click.ParamType[str]):
    """The type of an argument that names a context; the shell completes it."""

    name = "context"

    def convert(self, value: Any, param: object, ctx: object) -> str:
        return str(value)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        with contextlib.suppress(InvalidConfigError):
            names = load(path()).by_name
            return [CompletionItem(each) for each in sorted(names) if each.startswith(incomplete)]
        return []


CONTEXT = ContextName()


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of ``contexts.toml``: the contexts, and the names of the selected context and of
    the one before (for ``use -``)."""

    selected: str = ""
    previous: str = ""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return a context. Raises ContextNotFoundError, whose message suggests the nearest
        name."""
        context = self.by_name.get(name)
        if context is not None:
            return context
        near = difflib.get_close_matches(name, self.by_name, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; see: logbus context list"
        raise ContextNotFoundError(f"there is no context {name!r}{hint}")


def path() -> Path:
    """Return ``$XDG_CONFIG_HOME/logbus/contexts.toml``, by default below ``~/.config``."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "logbus" / FILE


class ChosenCluster(NamedTuple):
    """The addresses of a command's cluster, and the context that they come from. Without addresses
    the environment or the last ``logbus up`` names the cluster."""

    bootstrap_servers: str | None = None
    zookeeper: str | None = None
    context: Context | None = None

    @property
    def is_named(self) -> bool:
        return bool(self.bootstrap_servers or self.zookeeper)


def choose_cluster(
    bootstrap_servers: str | None,
    zookeeper: str | None,
    context_name: str | None,
    client_config: str | None,
) -> ChosenCluster:
    """Return the cluster that a command talks to. The first of these that is given decides: -b or
    --zookeeper, --context, ``bootstrap.servers`` in the file of -F, the context that ``choose``
    returns. Raises the errors of ``choose``."""
    if client_config and not (bootstrap_servers or zookeeper or context_name):
        bootstrap_servers = servers_of_file(Path(client_config)) or None
    chosen = choose(context_name, bool(bootstrap_servers or zookeeper))
    if chosen is None:
        return ChosenCluster(bootstrap_servers, zookeeper)
    return ChosenCluster(chosen.bootstrap_servers or None, chosen.zookeeper or None, chosen)


def choose(name: str | None, is_named: bool) -> Context | None:
    """Return the context that names the cluster of a command; None if no context does.

    ``name`` is the value of --context. ``is_named`` says that -b or --zookeeper names the cluster.
    The first of these that is given decides: -b or --zookeeper, --context, LOGBUS_CONTEXT,
    LOGBUS_BOOTSTRAP_SERVERS or LOGBUS_ZOOKEEPER, ``bootstrap.servers`` in the file in
    LOGBUS_CLIENT_CONFIG, the selected context. Raises ContextNotFoundError, and InvalidConfigError
    for an invalid file."""
    if name is None and is_named:
        return None
    wanted = name or os.environ.get(VARIABLE)
    if wanted:
        return load(path()).get(wanted)
    if discovery.cluster_variable() or not path().exists():
        return None
    found = load(path())
    return found.get(found.selected) if found.selected else None


def load(file: Path) -> Contexts:
    """Return the content of ``contexts.toml``, empty if the file is missing. Raises
    InvalidConfigError with the line of a syntax error or the key of a wrong value."""
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(
            f"{file} cannot be read: {_reason_and_cure(error, file)}, or set XDG_CONFIG_HOME to "
            "another folder"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfigError(
            f"other users may access {file}, and logbus runs commands from it; protect it with: "
            f"chmod 600 {file}"
        )
    try:
        found = tomllib.loads(text)
        return _contexts(found)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(
            f'{file} is not TOML: {error}. Write the line as KEY = "text" or KEY = true, or '
            "delete it"
        ) from None
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{file}: {error.message}") from None


def save(file: Path, contexts: Contexts) -> None:
    """Replace ``contexts.toml``, with mode 0600. Raises InvalidConfigError if it cannot be
    written."""
    lines = ["# Clusters of the logbus command; see: logbus context --help"]
    lines += [f"{key} = {_text(getattr(contexts, key))}" for key in ("selected", "previous")]
    for context in contexts.by_name.values():
        lines += ["", f"[contexts.{_text(context.name)}]"]
        for item in dataclasses.fields(Context)[1:-1]:
            value = getattr(context, item.name)
            if value != item.default:
                lines.append(f"{item.name} = {_text(value)}")
        if context.settings:
            pairs = ", ".join(f"{_text(k)} = {_text(v)}" for k, v in context.settings.items())
            lines.append(f"settings = {{ {pairs} }}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp creates the file with mode 0600, so that only this user can read it.
        number, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(number, "w", encoding="utf-8") as new:
            new.write("\n".join(lines) + "\n")
        os.replace(temporary, file)
    except OSError as error:
        raise InvalidConfigError(
            f"{file} cannot be written: {_reason_and_cure(error, file.parent)}, or set "
            "XDG_CONFIG_HOME to another folder"
        ) from None


_CURES: Mapping[int, str] = {
    errno.EACCES: "Let this user use it: chmod u+rwX {0}",
    errno.EDQUOT: "Free space there",
    errno.EEXIST: "Move the file of that name away: mv {0} {0}.old",
    errno.EISDIR: "Move the folder of that name away: mv {0} {0}.old",
    errno.ENOENT: "Create it",
    errno.ENOSPC: "Free space there",
    errno.ENOTDIR: "Move away the file that is in place of a folder of this path",
}
"""The cure by errno. {0} is the file, or the folder to write to."""


def _reason_and_cure(error: OSError | UnicodeDecodeError, path: Path) -> str:
    """Return why a file cannot be read or written, and what the user can do about it. ``path`` is
    the file to read, or the folder of the file to write."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8. Save it as UTF-8"
    cure = _CURES.get(error.errno or 0, "Check its disk and its folder: ls -ld {0}")
    return f"{error.strerror or error}. {cure.format(shlex.quote(str(path)))}"


def require_no_secret(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfigError if a context's settings hold a password or an unknown setting."""
    for key in settings:
        if key in (PASSWORD, JAAS):
            raise InvalidConfigError(
                f"{key}: a context holds no password; give --password-file FILE or "
                "--password-command COMMAND"
            )
        if key not in KEYS:
            known = ", ".join(each for each in KEYS if each != PASSWORD)
            raise InvalidConfigError(f"{key!r} is not a client's security setting; use: {known}")


_KINDS: Mapping[type, str] = {str: "text", bool: "true or false", dict: "a table"}
"""The words for the types of a context's values in error messages."""


def _contexts(found: Mapping[str, Any]) -> Contexts:
    """Check the parsed ``contexts.toml``, and return its contexts. Raises InvalidConfigError, which
    names the wrong key."""
    for key, value in found.items():
        if key not in ("selected", "previous", "contexts"):
            raise InvalidConfigError(f"unknown key {key!r}; correct or remove it")
        if not isinstance(value, dict if key == "contexts" else str):
            raise InvalidConfigError(
                f"{key} = {value!r} has the wrong type; give "
                + ("tables [contexts.NAME]" if key == "contexts" else "text")
            )
    rows = found.get("contexts", {})
    by_name = {name: _context(name, row) for name, row in rows.items()}
    for key in ("selected", "previous"):
        if found.get(key) and found[key] not in by_name:
            raise InvalidConfigError(
                f"{key} = {found[key]!r}: there is no such context in this file; correct or "
                "delete the line"
            )
    return Contexts(found.get("selected", ""), found.get("previous", ""), by_name)


def _context(name: str, row: Any) -> Context:
    if not isinstance(row, dict):
        raise InvalidConfigError(f"contexts.{name} is not a table; write [contexts.{name}]")
    kinds = {item.name: type(item.default) for item in dataclasses.fields(Context)[1:-1]}
    kinds["settings"] = dict
    for key, value in row.items():
        where = f"contexts.{name}.{key}"
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(kinds)}"
            raise InvalidConfigError(f"unknown key {where}; {hint}")
        if not isinstance(value, kinds[key]):
            raise InvalidConfigError(f"{where} = {value!r}: give {_KINDS[kinds[key]]}")
    settings = row.get("settings", {})
    require_no_secret(settings)
    for key, value in settings.items():
        if not isinstance(value, str):
            raise InvalidConfigError(f"contexts.{name}.settings.{key} = {value!r}: give text")
    found = Context(name, **row)
    if bool(found.bootstrap_servers) == bool(found.zookeeper):
        raise InvalidConfigError(f"contexts.{name}: give bootstrap_servers or zookeeper")
    return found


def _output_of(name: str, command: str) -> str:
    """Return the first line that a ``password_command`` prints. Errors omit the output, which may
    hold the password."""
    try:
        done = subprocess.run(
            shlex.split(command),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"it ran for more than {COMMAND_SECONDS:g} s"
    except (OSError, ValueError) as error:
        reason = f"it cannot be run: {error}"
    else:
        password = done.stdout.partition("\n")[0]
        if password and not done.returncode:
            return password
        reason = (
            f"it ended with code {done.returncode}" if done.returncode else "it printed nothing"
        )
    raise InvalidConfigError(
        f"context {name!r}: password_command {command!r}: {reason}. Run it by itself to see why, "
        f"or correct its line in {FILE}"
    )


def _text(value: str | bool) -> str:
    """Return a value as TOML writes it; JSON's strings are valid TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
