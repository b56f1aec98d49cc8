"""Tests of ``logbus cert``: it creates, keeps, renews and shows certificates."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker_lite.cli import main
from broker_lite.config.listeners import TlsSettings
from broker_lite.local.issuing import BROKERS, CLIENTS, CertificateFolder, read_certificate
from broker_lite.net.certificates import check_certificate
from broker_lite.net.contexts import try_handshake


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    assert main.run(["cert", *words]) == code
    printed = capsys.readouterr().out
    return [json.loads(line) for line in printed.splitlines()] if code == 0 else []


def test_cert_create_writes_certificates_for_the_given_hosts_readable_only_by_their_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certificates"
    where = ("--dir", str(folder))
    rows = run(capsys, "create", "broker-1", "--host", "k1.example", "--host", "10.0.0.1", *where)
    files = {Path(row["file"]).name for row in rows}
    own = {"broker-1-clients.pem", "broker-1-brokers.pem"}
    assert files == {"clients-ca.pem", "brokers-ca.pem", *own}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    now_ms = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
    for ca in (CLIENTS, BROKERS):
        pem = str(folder / f"broker-1-{ca}.pem")
        for host in ("k1.example", "10.0.0.1"):
            check_certificate(pem, "ssl.keystore.location", host, now_ms)
        trusted = str(folder / f"{ca}-ca.pem")
        try_handshake(TlsSettings("", pem, "", trusted, "required", "TLSv1.3", "DEFAULT", "https"))
    run(capsys, "create", "alice", *where)
    alice = read_certificate(folder / "alice-clients.pem")
    assert (alice.subject, alice.hosts, alice.is_ca) == ("CN=alice", (), False)
    assert not (folder / "alice-brokers.pem").exists()
    assert len(run(capsys, "list", *where)) == 5
    (shown,) = run(capsys, "show", str(folder / "alice-clients.pem"))
    assert shown["name"] == "CN=alice" and shown["days_left"] in (89, 90)


def test_cert_create_with_if_not_exists_keeps_an_existing_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--dir", str(tmp_path))
    create = ("create", "broker-1", "--host", "k1.example", *where)
    run(capsys, *create)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    planned = run(capsys, *create, "--dry-run")
    assert [row["exists"] for row in planned] == [True, True]
    run(capsys, *create, code=1)  # The user gives no answer to the question.
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    run(capsys, *create, "--if-not-exists")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    # The existing certificate does not name the second host, so it is replaced.
    run(capsys, *create, "--host", "k2.example", "--if-not-exists")
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != first[path.name]}
    assert changed == {"broker-1-clients.pem", "broker-1-brokers.pem"}
    second = (tmp_path / "broker-1-clients.pem").read_bytes()
    run(capsys, *create, "--yes")
    assert (tmp_path / "broker-1-clients.pem").read_bytes() != second


def test_cert_renew_keeps_the_names_hosts_and_cas_of_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = CertificateFolder(tmp_path)
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=40)
    made.certify(CLIENTS, "broker-1", ["k1.example", "::1"], old)
    made.certify(CLIENTS, "broker-2", ["k2.example"], old + datetime.timedelta(days=39))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (planned,) = run(capsys, "renew", "--dry-run", "--dir", str(tmp_path))
    assert planned["days_left"] in (49, 50)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (row,) = run(capsys, "renew", "--dir", str(tmp_path))
    assert Path(row["file"]).name == "broker-1-clients.pem" and row["days_left"] >= 89
    assert row["hosts"] == "k1.example, ::1"
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"broker-1-clients.pem"}
    assert len(run(capsys, "renew", "--all", "--dir", str(tmp_path))) == 2
    assert (tmp_path / "clients-ca.pem").read_bytes() == before["clients-ca.pem"]
    ca = x509.load_pem_x509_certificate(before["clients-ca.pem"])
    for name in ("broker-1-clients.pem", "broker-2-clients.pem"):
        leaf = x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        leaf.verify_directly_issued_by(ca)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "kafka1", "--host", "k1.example"], "needs the name broker-ID"),
        (["create", "broker-9"], "broker.id) and --host"),
        (["create", "../alice"], "letters, digits"),
    ],
)
def test_cert_create_refuses_an_invalid_name(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option ``--host`` and names of the form broker-ID require each other.

    The certificate of ``../alice`` would be a file outside the folder.
    """
    assert main.run(["cert", *words, "--dir", str(tmp_path / "c")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("host", ["", "k 1.example", "käse.example", "-k1"])
def test_cert_create_refuses_a_host_that_no_certificate_can_have(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: after it had created the CAs, the command printed a traceback, or created a
    certificate for the host ''."""
    folder = tmp_path / "c"
    assert main.run(["cert", "create", "broker-1", "--host", host, "--dir", str(folder)]) == 1
    assert f"{host!r} is neither an IP address nor a host name" in capsys.readouterr().err
    assert not folder.exists()


def test_cert_show_of_a_file_without_a_certificate_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    assert main.run(["cert", "show", str(broken)]) == 1
    assert f"{broken}: the file has no PEM certificate" in capsys.readouterr().err
    assert main.run(["cert", "list", "--dir", str(tmp_path / "empty")]) == 1
    assert "logbus cert create" in capsys.readouterr().err


def test_cert_create_in_a_folder_that_cannot_be_written_names_the_option_dir(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "certificates")
    assert main.run(["cert", "create", "alice", "--dir", folder]) == 1
    said = capsys.readouterr().err
    assert f"certificates cannot be written to {folder}: Not a directory" in said
    assert "with --dir" in said


def test_cert_create_without_the_key_of_the_ca_names_the_missing_key_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--dir", str(tmp_path))
    run(capsys, "create", "alice", *where)
    (tmp_path / "clients-ca.key").unlink()
    assert main.run(["cert", "create", "bob", *where]) == 1
    assert "has no key clients-ca.key beside it" in capsys.readouterr().err
