"""The files that secure a local cluster (``logbus up --secure``), in its folder ``security``.

- ``clients-ca.pem``, ``.key``: the CA that signs the certificates which brokers show to clients;
- ``brokers-ca.pem``, ``.key``: the CA of the certificates for connections between brokers;
- ``broker-N-clients.pem``, ``broker-N-brokers.pem``: broker N's certificates with their keys;
- ``zookeeper.secret``: the brokers' digest credential at ZooKeeper;
- ``admin.conf``: the login of user admin, in librdkafka's names (``kcat -F``);
- ``admin.properties``: the same login in Kafka's names, for ``--command-config`` of Kafka's tools;
- ``complete``: exists once ZooKeeper is restricted to the brokers and has user admin.

The folder has mode 0700, its files 0600. A cluster with this folder is secured. Certificates are
valid for 90 days and renewed after 30. Importing this module loads ``cryptography``."""

from __future__ import annotations

import datetime
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from broker_lite.config import BrokerConfig, parse
from broker_lite.local.issuing import BROKERS, CLIENTS, CertificateFolder
from broker_lite.metadata.credentials import encode_user, user_path
from broker_lite.metadata.zookeeper.tls import tls_of
from broker_lite.metadata.zookeeper.znode_acls import close_znodes
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.security.scram import ITERATIONS, SALT_BYTES, ScramCredential, derive_keys

ADMIN = "admin"
CLIENTS_LISTENER = "CLIENTS"
PASSWORD_BYTES = 20
"""Number of random bytes in the password of user admin."""
SECRET_BYTES = 32
"""Number of random bytes in the brokers' credential at ZooKeeper."""
_LOCAL = ("127.0.0.1", "::1", "localhost")
_BROKER_RULE = "RULE:^CN=(broker-[0-9]+)$/$1/"
"""The rule that maps the name in a broker's certificate to the principal User:broker-N."""


class ClusterSecurity:
    """The secrets and certificates in ``folder``, which is in the cluster's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._certificates = CertificateFolder(folder)

    @property
    def client_config(self) -> Path:
        return self.folder / "admin.conf"

    @property
    def secret(self) -> Path:
        """The file with the credential by which brokers log in to ZooKeeper."""
        return self.folder / "zookeeper.secret"

    @property
    def is_complete(self) -> bool:
        return (self.folder / "complete").exists()

    def make(self, brokers: int, hosts: Iterable[str]) -> None:
        """Create the files that are missing, and renew old certificates.

        ``hosts`` are the host names of brokers that clients use, in addition to loopback and this
        machine's name."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.parent.chmod(0o700)
        if not self.secret.exists():
            self._certificates.write(
                "zookeeper.secret", f"brokers:{secrets.token_urlsafe(SECRET_BYTES)}\n"
            )
        names = tuple(dict.fromkeys((*_LOCAL, socket.gethostname(), *hosts)))
        now = datetime.datetime.now(datetime.UTC)
        for ca in (CLIENTS, BROKERS):
            for number in range(brokers):
                self._certificates.certify(ca, f"broker-{number}", names, now)
        if not self.client_config.exists():
            self.write_client_configs("", secrets.token_urlsafe(PASSWORD_BYTES))

    def close_zookeeper(self, address: str, given: Mapping[str, str], *, closes_root: bool) -> None:
        """Restrict the cluster's znodes to its brokers, and store the user ``admin`` in ZooKeeper,
        unless an earlier call has done both. With ``closes_root``, restrict the root znode, too.

        ``given`` are the settings of all brokers. Raises InvalidConfigError if ``address`` is on
        another machine and the settings do not enable TLS."""
        if self.is_complete:
            return
        connection = {"zookeeper.connect": address, "zookeeper.auth.file": str(self.secret)}
        tls = tls_of(parse(BrokerConfig, {**given, **connection}))
        password = self._admin()["sasl.password"]
        credentials = {}
        for mechanism in ScramMechanism:
            salt = os.urandom(SALT_BYTES)
            pair = derive_keys(mechanism, password, salt, ITERATIONS).pair()
            credentials[mechanism] = ScramCredential(salt, ITERATIONS, (pair,))
        seeds = {user_path(ADMIN): encode_user(credentials)}
        close_znodes(address, self.secret, seeds, closes_root=closes_root, tls=tls)
        self._certificates.write("complete", "")

    def broker_settings(
        self, number: int, endpoint: Endpoint, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the security settings of broker ``number``, which listens for clients on
        ``endpoint``. Settings that the user gives (``given``) are left out."""
        host, port = endpoint
        bracketed = f"[{host}]" if ":" in host else host
        settings = {
            "listeners": f"{CLIENTS_LISTENER}://{bracketed}:{port},BROKERS://127.0.0.1:0",
            "listener.security.protocol.map": f"{CLIENTS_LISTENER}:SASL_SSL,BROKERS:SSL",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": ",".join(ScramMechanism),
            "ssl.keystore.location": str(self.folder / f"broker-{number}-clients.pem"),
            "zookeeper.auth.file": str(self.secret),
            "authorizer": "enforce",
            "audit.log": str(self.folder / f"broker-{number}-audit.log"),
            "super.users": f"User:{ADMIN}",
        }
        between = {
            "ssl.keystore.location": str(self.folder / f"broker-{number}-brokers.pem"),
            "ssl.truststore.location": str(self.folder / "brokers-ca.pem"),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": _BROKER_RULE,
        }
        settings |= {f"listener.name.brokers.{key}": value for key, value in between.items()}
        if given.get("advertised.host"):
            reached = given.get("advertised.port") or port
            settings["advertised.listeners"] = (
                f"{CLIENTS_LISTENER}://{given['advertised.host']}:{reached}"
            )
        return {key: value for key, value in settings.items() if key not in given}

    def write_client_configs(self, servers: str, password: str = "") -> None:
        """Write admin.conf and admin.properties, with which clients log in as user admin at the
        brokers ``servers``, unless the files already have these addresses. An empty ``password``
        keeps the password in the files."""
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
            self._certificates.write(
                name, "".join(f"{key}={value}\n" for key, value in rows.items())
            )

    def _admin(self) -> dict[str, str]:
        lines = self.client_config.read_text("utf-8").splitlines()
        return dict(line.partition("=")[::2] for line in lines)
