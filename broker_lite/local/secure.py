"""The files that secure a local cluster: ``<directory>/security``, mode 0700, its files 0600.

| file | holds |
|---|---|
| ``clients-ca.pem``, ``.key`` | the CA of the certificates that clients check |
| ``brokers-ca.pem``, ``.key`` | the CA of the certificates between brokers |
| ``broker-N-clients.pem``, ``broker-N-brokers.pem`` | broker N's certificates with their keys |
| ``zookeeper.secret`` | the brokers' digest credential at ZooKeeper |
| ``admin.conf`` | the login of user admin, in librdkafka's names (``kcat -F``) |
| ``admin.properties`` | the same in Kafka's names, for the ``--command-config`` of its tools |
| ``complete`` | is present once ZooKeeper is closed and knows user admin |

The folder makes a cluster a secured one. Certificates are valid for 90 days and made anew after
30. Importing this module loads ``cryptography``.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker_lite.metadata.credentials import encode_user, user_path
from broker_lite.metadata.zookeeper import close_znodes
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.security.scram import ITERATIONS, SALT_BYTES, ScramCredential, derive_keys

ADMIN = "admin"
CA_DAYS = 3650
CERTIFICATE_DAYS = 90
RENEWED_DAYS = 30
"""Age in days at which a certificate is made anew."""
PASSWORD_BYTES = 20
SECRET_BYTES = 32
_LOCAL = ("127.0.0.1", "::1", "localhost")
_BROKER_RULE = "RULE:^CN=(broker-[0-9]+)$/$1/"
"""Maps the name in a broker's certificate to the principal User:broker-N."""

_PEM = Encoding.PEM


class ClusterSecurity:
    """The secrets and certificates in ``folder``, which is in the cluster's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def client_config(self) -> Path:
        return self.folder / "admin.conf"

    @property
    def secret(self) -> Path:
        """The file of the brokers' credential at ZooKeeper."""
        return self.folder / "zookeeper.secret"

    @property
    def is_complete(self) -> bool:
        return (self.folder / "complete").exists()

    def make(self, brokers: int, hosts: Iterable[str]) -> None:
        """Create the files that are missing, and renew old certificates. ``hosts``: names of the
        brokers for clients, beside those of loopback."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.parent.chmod(0o700)
        if not self.secret.exists():
            self._write("zookeeper.secret", f"brokers:{secrets.token_urlsafe(SECRET_BYTES)}\n")
        names = tuple(dict.fromkeys((*_LOCAL, socket.gethostname(), *hosts)))
        now = datetime.datetime.now(datetime.UTC)
        for ca in ("clients", "brokers"):
            for number in range(brokers):
                self._certify(ca, f"broker-{number}", names, now)
        if not self.client_config.exists():
            self.write_client_configs("", secrets.token_urlsafe(PASSWORD_BYTES))

    def close_zookeeper(self, address: str, *, closes_root: bool) -> None:
        """Close the cluster's znodes to all but its brokers, and store user admin there."""
        if self.is_complete:
            return
        password = self._admin()["sasl.password"]
        credentials = {}
        for mechanism in ScramMechanism:
            salt = os.urandom(SALT_BYTES)
            pair = derive_keys(mechanism, password, salt, ITERATIONS).pair()
            credentials[mechanism] = ScramCredential(salt, ITERATIONS, (pair,))
        seeds = {user_path(ADMIN): encode_user(credentials)}
        close_znodes(address, self.secret, seeds, closes_root=closes_root)
        self._write("complete", "")

    def broker_settings(
        self, number: int, endpoint: Endpoint, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the settings of broker ``number`` that listens for clients on ``endpoint``."""
        host, port = endpoint
        bracketed = f"[{host}]" if ":" in host else host
        found = {
            "listeners": f"CLIENTS://{bracketed}:{port},BROKERS://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": ",".join(ScramMechanism),
            "ssl.keystore.location": str(self.folder / f"broker-{number}-clients.pem"),
            "zookeeper.auth.file": str(self.secret),
            "authorizer": "enforce",
            "super.users": f"User:{ADMIN}",
        }
        between = {
            "ssl.keystore.location": str(self.folder / f"broker-{number}-brokers.pem"),
            "ssl.truststore.location": str(self.folder / "brokers-ca.pem"),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": _BROKER_RULE,
        }
        found |= {f"listener.name.brokers.{key}": value for key, value in between.items()}
        if given.get("advertised.host"):
            reached = given.get("advertised.port") or port
            found["advertised.listeners"] = f"CLIENTS://{given['advertised.host']}:{reached}"
        return {key: value for key, value in found.items() if key not in given}

    def write_client_configs(self, servers: str, password: str = "") -> None:
        """Write admin.conf and admin.properties if the brokers' addresses are new."""
        known = self._admin() if self.client_config.exists() else {}
        password = password or known["sasl.password"]
        ca = str(self.folder / "clients-ca.pem")
        if known.get("bootstrap.servers") == servers:
            return
        common = {"bootstrap.servers": servers} if servers else {}
        common |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
        librdkafka = {
            **common,
            "sasl.username": ADMIN,
            "sasl.password": password,
            "ssl.ca.location": ca,
        }
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ADMIN}" password="{password}";'
        )
        kafka = {
            **common,
            "sasl.jaas.config": jaas,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ca,
        }
        for name, rows in (("admin.conf", librdkafka), ("admin.properties", kafka)):
            self._write(name, "".join(f"{key}={value}\n" for key, value in rows.items()))

    def _admin(self) -> dict[str, str]:
        lines = self.client_config.read_text("utf-8").splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def _certify(self, ca: str, name: str, hosts: tuple[str, ...], now: datetime.datetime) -> None:
        path = self.folder / f"{name}-{ca}.pem"
        if path.exists() and not _is_due(path, hosts, now):
            return
        issuer, issuer_key = self._authority(ca, now)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _draft(subject, key, now, CERTIFICATE_DAYS)
            .issuer_name(issuer.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
            .sign(issuer_key, hashes.SHA256())
        )
        self._write(path.name, certificate.public_bytes(_PEM).decode() + _pem_of(key))

    def _authority(
        self, name: str, now: datetime.datetime
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return a CA, made if it is missing."""
        path, key_path = self.folder / f"{name}-ca.pem", self.folder / f"{name}-ca.key"
        if path.exists():
            loaded = load_pem_private_key(key_path.read_bytes(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            return x509.load_pem_x509_certificate(path.read_bytes()), loaded
        key = ec.generate_private_key(ec.SECP256R1())
        unique = secrets.token_hex(4)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"logbus-{name}-ca-{unique}")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _draft(subject, key, now, CA_DAYS)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        self._write(key_path.name, _pem_of(key))
        self._write(path.name, certificate.public_bytes(_PEM).decode())
        return certificate, key

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically, readable by its owner only."""
        new = self.folder / f".{name}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / name)


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of clients may be behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _is_due(path: Path, hosts: tuple[str, ...], now: datetime.datetime) -> bool:
    """Return whether a certificate is old or lacks a host."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if now - certificate.not_valid_before_utc > datetime.timedelta(days=RENEWED_DAYS):
        return True
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return not set(map(_host, hosts)) <= set(names)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(_PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
