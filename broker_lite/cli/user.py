"""``logbus user``: users and their passwords."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.context import cluster_options, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.cli.numbers import Real
from broker_lite.cli.zookeeper import TlsOptions, tls_options
from broker_lite.client.administration import acls, users
from broker_lite.errors import InvalidConfigError, LogbusError, ResourceNotFoundError
from broker_lite.model import ScramMechanism
from broker_lite.security.acls import AclFilter
from broker_lite.security.written_acls import principal_of

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin

password_option = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is the password. Default: ask.",
)


@click.group(cls=Noun)
def user() -> None:
    """Users and their passwords.

    \b
    Examples:
      logbus user add alice
      logbus user list
      logbus user rotate alice --keep-old 48
    """


@user.command("list")
@cluster_options
@output.output_option
def list_users(cluster: ChosenCluster, form: str | None) -> None:
    """List users and the mechanisms with which they log in.

    \b
    Examples:
      logbus user list
      logbus user list -o json
    """
    with open_admin(cluster) as admin:
        found = admin.run(users.describe_users, None)
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
    help="SCRAM mechanism of the login; may be repeated. Default: both.",
)
@click.option("--if-not-exists", is_flag=True, help="If the user exists, keep the password.")
@change_options
@click.option(
    "--first",
    is_flag=True,
    help="Write to ZooKeeper directly (give --zookeeper): for the first user of a cluster whose "
    "brokers already demand logins.",
)
@click.option(
    "--zookeeper-auth-file",
    default="",
    metavar="FILE",
    help="With --first: the brokers' zookeeper.auth.file, if ZooKeeper is closed.",
)
@tls_options
@cluster_options
@output.output_option
def add(
    name: str,
    password_file: Path | None,
    mechanisms: tuple[str, ...],
    if_not_exists: bool,
    change: ChangeOptions,
    first: bool,
    zookeeper_auth_file: str,
    tls: TlsOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Create a user, or replace the password of an existing user.

    The command asks before it replaces a password: the old password is invalid at once. 'rotate'
    keeps the old password for a while. '--first' adds the first user, without a login.

    \b
    Examples:
      logbus user add alice
      logbus user add alice --password-file alice.password --if-not-exists
      logbus user add admin --first --zookeeper localhost:2181/logbus
      logbus user add admin --first --zookeeper zk1:2281/logbus --zookeeper-ca ca
    """
    chosen = [ScramMechanism(each) for each in mechanisms] or list(ScramMechanism)
    row = {"user": name, "mechanisms": ", ".join(chosen)}
    if first:
        if cluster.zookeeper is None:
            raise click.UsageError(
                "--first writes the user to ZooKeeper; give --zookeeper HOST:PORT/CHROOT"
            )
        from broker_lite.metadata.first_user import write_first_user

        settings = tls.for_address(cluster.zookeeper)
        if change.dry_run:
            output.report_change({**row, "added": False}, form, f"{name}: would be written")
        if not change.is_wanted():
            return
        password = _password(name, password_file)
        writing = write_first_user(
            cluster.zookeeper, name, password, chosen, auth_file=zookeeper_auth_file, tls=settings
        )
        asyncio.run(writing)
    else:
        with open_admin(cluster) as admin:
            is_user = _is_user(admin, name)
            if is_user and if_not_exists:
                said = f"user {name!r} exists and keeps its password"
                output.report_change({**row, "added": False}, form, said)
                return
            users.check_password_of(admin.user, name)
            if change.dry_run:
                said = f"user {name!r} {'exists' if is_user else 'does not exist yet'}"
                output.report_change({**row, "added": False}, form, said)
            if not change.is_wanted(f"Replace the password of user {name!r}?" if is_user else ""):
                return
            password = _password(name, password_file)
            admin.run(users.set_password, name, password, chosen)
    output.report_change({**row, "added": True}, form, f"user {name!r} can log in")


@user.command()
@click.argument("name")
@password_option
@click.option(
    "--keep-old",
    "keep_hours",
    type=Real(0.001, 720),
    default=24,
    show_default=True,
    help="Hours for which the old password stays valid.",
)
@change_options
@cluster_options
@output.output_option
def rotate(
    name: str,
    password_file: Path | None,
    keep_hours: float,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Replace a password, and keep the old one valid for --keep-old hours.

    \b
    Examples:
      logbus user rotate alice
      logbus user rotate alice --password-file new.password --keep-old 48
      logbus user rotate alice --dry-run
    """
    keep_ms = int(keep_hours * 3_600_000)
    row = {"user": name, "old_valid_s": keep_ms / 1000}
    with open_admin(cluster) as admin:
        if change.dry_run:
            admin.run(users.describe_users, (name,))
            said = f"the present password of {name!r} would stay valid for {keep_hours:g} hours"
            output.report_change({**row, "rotated": False}, form, said)
        if not change.is_wanted():
            return
        password = _password(name, password_file)
        admin.run(users.rotate_password, name, password, keep_ms)
    said = f"user {name!r} has a new password; the old one stays valid for {keep_hours:g} hours"
    output.report_change({**row, "rotated": True}, form, said)


@user.command()
@click.argument("name")
@if_exists_option
@change_options
@cluster_options
@output.output_option
def delete(
    name: str, if_exists: bool, change: ChangeOptions, cluster: ChosenCluster, form: str | None
) -> None:
    """Delete a user. The brokers close the user's connections.

    \b
    Examples:
      logbus user delete alice
      logbus user delete alice --if-exists --yes
    """
    with open_admin(cluster) as admin, output.ChangeReport(form) as report:
        try:
            admin.run(users.describe_users, (name,))
        except ResourceNotFoundError:
            if not if_exists:
                raise
            report.add({"user": name, "deleted": False}, f"there is no user {name!r}")
            return
        users.check_deletion(admin.user, name)
        question = f"Delete user {name!r} with its passwords? ACLs that name it stay."
        if change.is_wanted(question):
            admin.run(users.delete_user, name)
            report.add({"user": name, "deleted": True}, f"user {name!r} is deleted")
            if _has_acls(admin, name):
                output.say(f"ACLs still name it: logbus acl list --principal {shlex.quote(name)}")


def _is_user(admin: Admin, name: str) -> bool:
    try:
        return bool(admin.run(users.describe_users, (name,)))
    except ResourceNotFoundError:
        return False


def _has_acls(admin: Admin, name: str) -> bool:
    """Return whether ACLs name the user; False if the command may not list the ACLs, or if the
    brokers have no authorizer."""
    wanted = AclFilter(principal=principal_of(name))
    try:
        return bool(admin.run(acls.describe_acls, wanted))
    except LogbusError:
        return False


def _password(name: str, file: Path | None) -> str:
    if file is None:
        try:
            asked: str = click.prompt(
                f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
            )
        except click.Abort as abort:
            if not isinstance(abort.__context__, EOFError):
                raise
            raise InvalidConfigError(
                f"no password for {name!r}: the input has ended. Give --password-file FILE"
            ) from None
        return asked
    try:
        password = file.read_text("utf-8").partition("\n")[0]
    except UnicodeDecodeError:
        raise InvalidConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    if not password:
        raise InvalidConfigError(f"{file} is empty; write the password in its first line")
    return password
