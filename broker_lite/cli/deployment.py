"""The parts of generated files that differ between variants: images of a broker and of a whole
cluster; compose and Kubernetes files of secured brokers (the default) and of open brokers
(``--insecure``). These parts replace the placeholders @NAME@ of a template."""

from __future__ import annotations

from collections.abc import Mapping

FOLDER = "/etc/logbus-security"
"""The folder of certificates and secrets in a container."""

SECURED = f"""\
listeners=CLIENTS://0.0.0.0:9092,BROKERS://0.0.0.0:9094
listener.security.protocol.map=CLIENTS:SASL_SSL,BROKERS:SSL
inter.broker.listener.name=BROKERS
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.brokers.ssl.truststore.location={FOLDER}/brokers-ca.pem
listener.name.brokers.ssl.client.auth=required
listener.name.brokers.ssl.principal.mapping.rules=RULE:^CN=(broker-[0-9]+)$/$1/
authorizer=enforce
super.users=User:admin
zookeeper.insecure.allow=true
metrics.listener.name=CLIENTS"""
"""The settings that all secured brokers share. In generated files, ZooKeeper has no TLS."""
OPEN = """\
host=0.0.0.0
listeners.insecure.allow=true
port=9092"""
"""The settings that all brokers without logins and TLS share."""

BROKER_IMAGE = {
    "HEAD": """\
# A broker of logbus @VERSION@. Put the wheel beside this file (make wheel), then:
#   docker build -t logbus:@VERSION@ .""",
    "JAVA": "",
    "EXTRA": "broker",
    "END": """\
# Clients; metrics and probes.
EXPOSE 9092 9644
ENTRYPOINT ["logbus", "broker"]
CMD ["--config", "/etc/logbus/broker.conf"]""",
}
"""The image of one broker."""
WHOLE_IMAGE = {
    "HEAD": """\
# A cluster of logbus @VERSION@ with ZooKeeper, its console and Spark, to try logbus out. Put the
# wheel beside this file (make wheel), then:
#   docker build -t logbus-all:@VERSION@ .
#   docker run --rm -it --network host logbus-all:@VERSION@
# With --network host, programs outside the container reach the brokers at 127.0.0.1.""",
    "JAVA": """\
apt-get update \\
 && apt-get install -y --no-install-recommends default-jre-headless \\
 && rm -rf /var/lib/apt/lists/* \\
 && """,
    "EXTRA": "all",
    "END": """\
# Clients; the console.
EXPOSE 9092 8088
ENTRYPOINT ["logbus"]
CMD ["up", "--console"]""",
}
"""The image of a whole cluster."""

_PROBE = "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/readyz')"
_TLS_PROBE = (
    "import ssl, urllib.request as u; u.urlopen('https://127.0.0.1:9644/readyz', "
    "context=ssl._create_unverified_context())"
)

_COMPOSE = """\
# ZooKeeper and three brokers of logbus @VERSION@. Put the Dockerfile (logbus generate docker) and
# the wheel beside this file."""
_COMPOSE_SECURED = f"""{_COMPOSE}
# Make the folder security once. The brokers run as user 10001, who alone may read it:
#   for n in 0 1 2; do logbus cert create broker-$n --host broker-$n --dir security; done
#   echo "brokers:$(openssl rand -hex 32)" > security/zookeeper.auth
#   mv security/*.key A_SAFE_PLACE
#   chmod 600 security/* && sudo chown -R 10001 security
# Start the cluster, and then add the first user, who may do everything:
#   docker compose up --build -d
#   docker compose exec broker-0 logbus user add admin --first \\
#     --zookeeper zookeeper:2181/logbus --zookeeper-insecure \\
#     --zookeeper-auth-file {FOLDER}/zookeeper.auth
# Clients run in this network, with -b broker-0:9092. They log in over TLS and trust
# security/clients-ca.pem. ZooKeeper has no TLS: keep this network closed.
# For brokers without logins: logbus generate compose --insecure"""
_COMPOSE_OPEN = f"""{_COMPOSE} Then:
#   docker compose up --build
# INSECURE: there is no encryption and no login, so no port is published. Any program in this
# network may read, write and delete everything. For logins over TLS, leave --insecure out.
# Clients run in this network, with -b broker-0:9092,broker-1:9092,broker-2:9092."""

_KUBERNETES = """\
# Three brokers of logbus @VERSION@: kubectl apply -f logbus.yaml
# Set zookeeper.connect, the image and the storage."""
_KUBERNETES_SECURED = f"""{_KUBERNETES} First make the certificates and the secret:
#   for n in 0 1 2; do logbus cert create broker-$n --host logbus-$n.logbus --dir security; done
#   echo "brokers:$(openssl rand -hex 32)" > security/zookeeper.auth
#   mv security/*.key A_SAFE_PLACE
#   kubectl create secret generic logbus-security --from-file=security
# When the brokers run, add the first user, who may do everything:
#   kubectl exec -it logbus-0 -- logbus user add admin --first \\
#     --zookeeper zookeeper:2181/logbus --zookeeper-insecure \\
#     --zookeeper-auth-file /tmp/zookeeper.auth
# Clients log in over TLS and trust security/clients-ca.pem. ZooKeeper has no TLS here: restrict
# access to it with a NetworkPolicy.
# For brokers without logins: logbus generate kubernetes --insecure"""
_KUBERNETES_OPEN = f"""{_KUBERNETES}
# INSECURE: there is no encryption and no login. Any program that reaches the brokers may
# read, write and delete everything: restrict access to the namespace with a NetworkPolicy. For
# logins over TLS, leave --insecure out."""
_CONFIG_VOLUME = "- name: config\n  configMap: {name: logbus}"
_SECRET_VOLUME = "- name: security\n  secret: {secretName: logbus-security, defaultMode: 0440}"


def compose_parts(*, insecure: bool) -> dict[str, str]:
    """Return the text for each placeholder of the compose template. With ``insecure``, the
    listeners have no TLS and no logins."""
    numbers = range(3)
    if insecure:
        names = {f"LISTENERS_{n}": f"{OPEN}\nadvertised.host=broker-{n}" for n in numbers}
        return {"HEADER": _COMPOSE_OPEN, "FILES": "", "PROBE": _PROBE, **names}
    # Write $$ for a dollar sign, because Compose replaces $NAME in its file.
    common = SECURED.replace("$", "$$")
    credential = f"{FOLDER}/zookeeper.auth"
    own = [_own(f"broker-{n}", str(n), credential) for n in numbers]
    names = {f"LISTENERS_{n}": "\n".join((common, *own[n])) for n in numbers}
    files = f', "./security:{FOLDER}:ro"'
    return {"HEADER": _COMPOSE_SECURED, "FILES": files, "PROBE": _TLS_PROBE, **names}


def kubernetes_parts(*, insecure: bool) -> dict[str, str]:
    """Return the text for each placeholder of the template of the Kubernetes manifests. With
    ``insecure``, the listeners have no TLS and no logins."""
    if insecure:
        names = 'echo "advertised.host=$HOSTNAME.logbus"'
        return {
            "HEADER": _KUBERNETES_OPEN,
            "LISTENERS": OPEN,
            "NAMES": names,
            "SCHEME": "",
            "MOUNT": "",
            "VOLUMES": _CONFIG_VOLUME,
        }
    # Copy the file with mode 600: Kubernetes makes a secret's files readable to a group, but a
    # broker refuses a zookeeper.auth.file that others may read.
    copy = f"install -m 600 {FOLDER}/zookeeper.auth /tmp/zookeeper.auth"
    own = _own("$HOSTNAME.logbus", "${HOSTNAME##*-}", "/tmp/zookeeper.auth")
    return {
        "HEADER": _KUBERNETES_SECURED,
        "LISTENERS": SECURED,
        "NAMES": ";\n".join((copy, *(f'echo "{line}"' for line in own))),
        "SCHEME": ", scheme: HTTPS",
        "MOUNT": f"\n- {{name: security, mountPath: {FOLDER}, readOnly: true}}",
        "VOLUMES": f"{_CONFIG_VOLUME}\n{_SECRET_VOLUME}",
    }


def _own(host: str, number: str, credential: str) -> tuple[str, ...]:
    """Return the settings that differ between secured brokers: a broker's advertised addresses, its
    certificates and its credential for ZooKeeper."""
    pem = f"{FOLDER}/broker-{number}"
    return (
        f"advertised.listeners=CLIENTS://{host}:9092,BROKERS://{host}:9094",
        f"ssl.keystore.location={pem}-clients.pem",
        f"listener.name.brokers.ssl.keystore.location={pem}-brokers.pem",
        f"zookeeper.auth.file={credential}",
    )


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each @NAME@ replaced by its value. The value's lines are indented like
    the line with the placeholder."""
    for name, value in values.items():
        lines = []
        for line in template.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(line.replace(f"@{name}@", value.replace("\n", f"\n{indent}")))
        template = "\n".join(lines) + "\n"
    return template
