"""``logbus cert``: certificates for brokers and clients, signed by CAs in one folder."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.nouns import Noun
from broker_lite.errors import InvalidConfigError
from broker_lite.local.issuing import (
    BROKERS,
    CLIENTS,
    RENEWED_DAYS,
    CertificateFolder,
    IssuedCertificate,
    read_certificate,
)

_BROKER = re.compile(r"broker-[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

folder_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("certificates"),
    show_default=True,
    help="Folder of the CAs and certificates.",
)


@click.group(cls=Noun)
def cert() -> None:
    """Certificates for brokers and clients.

    \b
    Examples:
      logbus cert create broker-1 --host kafka1.example
      logbus cert create alice
      logbus cert list
      logbus cert renew
    """


@cert.command()
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Advertised host of the broker; may be repeated. Without --host: a client's certificate.",
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Keep certificates that exist with these hosts and are younger than 30 days.",
)
@folder_option
@change_options
@output.output_option
def create(
    name: str,
    hosts: tuple[str, ...],
    if_not_exists: bool,
    folder: Path,
    change: ChangeOptions,
    form: str | None,
) -> None:
    """Create certificates for a broker or a client, and the CAs if they are missing.

    The command asks before it replaces a certificate.

    A broker named broker-ID gets two files: NAME-clients.pem for its listeners for clients, and
    NAME-brokers.pem for the listener between brokers. A client gets NAME-clients.pem.

    \b
    Examples:
      logbus cert create broker-1 --host kafka1.example --host 10.0.0.1
      logbus cert create alice --if-not-exists
      logbus cert create alice --dry-run
    """
    if bool(hosts) != bool(_BROKER.fullmatch(name)):
        raise click.UsageError(
            f"{name!r}: a broker needs the name broker-ID (ID is its broker.id) and --host; "
            "a client needs any other name and no --host"
        )
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name[:80]!r}: use at most 64 letters, digits, '.', '_' and '-'")
    made = CertificateFolder(folder)
    now = _now()
    cas = (CLIENTS, BROKERS) if hosts else (CLIENTS,)
    new = [
        made.path_of(ca, name)
        for ca in cas
        if not if_not_exists or made.lacks(ca, name, hosts, now)
    ]
    if change.dry_run:
        output.show([{"file": str(path), "exists": path.exists()} for path in new], form)
    old = [path for path in new if path.exists()] if not if_not_exists else []
    if not change.is_wanted(f"Replace {', '.join(map(str, old))}?" if old else ""):
        return
    with _writing(folder):
        for ca in cas:
            made.certify(ca, name, hosts, now, anew=not if_not_exists)
    own = {f"{name}-{ca}.pem" for ca in (CLIENTS, BROKERS)}
    _show([each for each in made.certificates() if each.path.name in own or each.is_ca], form)
    output.say(
        f"keep {folder}/*.key off the brokers: with {BROKERS}-ca.key anyone can pose as a broker"
    )


@cert.command("list")
@folder_option
@output.output_option
def list_certificates(folder: Path, form: str | None) -> None:
    """List the certificates of a folder, with their hosts and expiry dates.

    \b
    Examples:
      logbus cert list
      logbus cert list --dir ~/.local/share/logbus/cluster/security -o json
    """
    _show(CertificateFolder(folder).certificates(), form)


@cert.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@output.output_option
def show(files: tuple[Path, ...], form: str | None) -> None:
    """Show the first certificate of PEM files.

    \b
    Examples:
      logbus cert show /etc/logbus/broker-1-clients.pem
      logbus cert show alice-clients.pem broker-1-brokers.pem -o json
    """
    _show(map(read_certificate, files), form)


@cert.command()
@folder_option
@click.option("--all", "everything", is_flag=True, help="Renew younger certificates, too.")
@change_options
@output.output_option
def renew(folder: Path, everything: bool, change: ChangeOptions, form: str | None) -> None:
    """Renew the certificates that are older than 30 days. A certificate is valid for 90 days.

    Brokers load changed files within 10 seconds, or at once on SIGHUP. CAs do not change.

    \b
    Examples:
      logbus cert renew
      logbus cert renew --dry-run
      logbus cert renew --all --dir /etc/logbus/certificates
    """
    certificates, now = CertificateFolder(folder), _now()
    due = certificates.due(now, everything=everything)
    if due and change.is_wanted():
        with _writing(folder):
            certificates.renew(now, everything=everything)
    _show([read_certificate(each.path) for each in due], form)
    if not due:
        output.say(f"no certificate is older than {RENEWED_DAYS} days; --all renews the others")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Run a block that writes to ``folder``. Turn its OSError into an InvalidConfigError with the
    remedy."""
    try:
        yield
    except OSError as error:
        raise InvalidConfigError(
            f"certificates cannot be written to {folder}: {error.strerror or error}. Name a folder "
            "that this user may write with --dir"
        ) from None


def _show(certificates: Iterable[IssuedCertificate], form: str | None) -> None:
    now = _now()
    output.show([_row(each, now) for each in certificates], form)


def _row(each: IssuedCertificate, now: datetime.datetime) -> dict[str, Any]:
    return {
        "file": str(each.path),
        "name": each.subject,
        "signed_by": "itself" if each.issuer == each.subject else each.issuer,
        "hosts": ", ".join(each.hosts),
        "ends": f"{each.ends:%Y-%m-%d}",
        "days_left": (each.ends - now).days,
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
