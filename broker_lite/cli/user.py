"""``logbus user``: users and their passwords."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker_lite.cli import output
from broker_lite.cli.context import cluster_options, open_admin
from broker_lite.cli.nouns import Noun
from broker_lite.client.administration import users
from broker_lite.errors import InvalidConfigError
from broker_lite.model import ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Sequence

password_option = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is the password. Default: ask.",
)


@click.group(cls=Noun)
def user() -> None:
    """Users and their passwords."""


@user.command("list")
@cluster_options
@output.output_option
def list_users(bootstrap_servers: str | None, zookeeper: str | None, form: str | None) -> None:
    """List users and the mechanisms with which they log in."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        found = admin.run(lambda cluster, ms: users.describe_users(cluster, None, ms))
    output.show(
        [
            {"user": each.name, "mechanisms": ", ".join(c.mechanism for c in each.credentials)}
            for each in found
        ],
        form,
    )
    if not found:
        output.say("there are no users; add one with: logbus user add NAME")


@user.command()
@click.argument("name")
@password_option
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice([each.value for each in ScramMechanism]),
    help="Mechanism of the login. Repeat it for both. Default: both.",
)
@click.option(
    "--first",
    is_flag=True,
    help="Write to ZooKeeper itself (give --zookeeper): for the first user of a cluster whose "
    "brokers already demand logins.",
)
@click.option(
    "--zookeeper-auth-file",
    default="",
    metavar="FILE",
    help="With --first: the brokers' zookeeper.auth.file, if ZooKeeper is closed.",
)
@cluster_options
def add(
    name: str,
    password_file: Path | None,
    mechanisms: tuple[str, ...],
    first: bool,
    zookeeper_auth_file: str,
    bootstrap_servers: str | None,
    zookeeper: str | None,
) -> None:
    """Create a user, or replace the password of one."""
    password = _password(name, password_file)
    chosen = [ScramMechanism(each) for each in mechanisms] or list(ScramMechanism)
    if first:
        if zookeeper is None:
            raise click.UsageError("--first writes to ZooKeeper; give --zookeeper HOST:PORT/CHROOT")
        asyncio.run(_write_first(zookeeper, name, password, chosen, zookeeper_auth_file))
    else:
        with open_admin(bootstrap_servers, zookeeper) as admin:
            admin.run(lambda cluster, ms: users.set_password(cluster, name, password, chosen, ms))
    output.say(f"user {name!r} can log in")


@user.command()
@click.argument("name")
@password_option
@click.option(
    "--keep-old",
    "keep_hours",
    type=click.FloatRange(0.001, 720),
    default=24,
    show_default=True,
    help="Hours for which the former password stays valid.",
)
@cluster_options
def rotate(
    name: str,
    password_file: Path | None,
    keep_hours: float,
    bootstrap_servers: str | None,
    zookeeper: str | None,
) -> None:
    """Replace a password, and keep the former one valid for a time."""
    keep_ms = int(keep_hours * 3_600_000)
    password = _password(name, password_file)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        admin.run(lambda cluster, ms: users.rotate_password(cluster, name, password, keep_ms, ms))
    output.say(f"user {name!r} has a new password; the former one ends in {keep_hours:g} hours")


@user.command()
@click.argument("name")
@cluster_options
def delete(name: str, bootstrap_servers: str | None, zookeeper: str | None) -> None:
    """Delete a user. The brokers close the user's connections."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        admin.run(lambda cluster, ms: users.delete_user(cluster, name, ms))
    output.say(f"user {name!r} is deleted")


def _password(name: str, file: Path | None) -> str:
    if file is None:
        asked: str = click.prompt(
            f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return asked
    lines = file.read_text("utf-8").splitlines()
    if not lines or not lines[0]:
        raise InvalidConfigError(f"{file} is empty; write the password in its first line")
    return lines[0]


async def _write_first(
    zookeeper: str,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    auth_file: str,
) -> None:
    from broker_lite.metadata.first_user import write_first_user

    await write_first_user(zookeeper, name, password, mechanisms, auth_file)
