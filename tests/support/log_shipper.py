"""Run rsyslogd with its output module omkafka, which ships the lines of a file to a topic."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FIRST_LINE = "before it ran"
"""The line that the file has before rsyslogd starts."""
_CONFIG = """
global(workDirectory="{folder}")
module(load="imfile")
module(load="omkafka")
template(name="json" type="list") {{
  constant(value="{{\\"m\\":\\"") property(name="msg" format="json") constant(value="\\"}}")
}}
template(name="key" type="string" string="%syslogtag%")
input(type="imfile" file="{folder}/app.log" tag="app")
action(type="omkafka" broker=["{brokers}"] topic="{topic}" template="json" key="key"
  dynakey="on" partitions.auto="on" action.resumeRetryCount="-1" errorFile="{folder}/errors"
  confParam=[{options}])
"""


def rsyslogd_program() -> str:
    """Return the path of rsyslogd, or skip the test if it is not installed."""
    program = shutil.which("rsyslogd") or shutil.which("rsyslogd", path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip("rsyslogd is not installed: apt-get install rsyslog-kafka")
    return program


def rsyslog_name() -> str:
    """Return the name and the version of the installed rsyslogd, as the table of results has it."""
    command = [rsyslogd_program(), "-v"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    version = re.findall(r"rsyslogd\s+(\S+)", said)[0]
    return f"rsyslog {version} omkafka"


class Shipper:
    """A running rsyslogd, which follows ``app.log`` in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def said(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def has_failed(self) -> bool:
        """Whether omkafka has given up a line."""
        return (self._folder / "errors").exists()

    def append(self, lines: Iterable[str]) -> None:
        with (self._folder / "app.log").open("a") as log:
            log.writelines(f"{line}\n" for line in lines)


@contextmanager
def shipping(folder: Path, servers: str, topic: str, options: dict[str, str]) -> Iterator[Shipper]:
    """Run rsyslogd in a new folder, with these options of librdkafka."""
    folder.mkdir()
    (folder / "app.log").write_text(f"{FIRST_LINE}\n")
    given = {"queue.buffering.max.ms": "5", **options}
    config = _CONFIG.format(
        folder=folder,
        brokers=servers.replace(",", '","'),
        topic=topic,
        options=", ".join(f'"{key}={value}"' for key, value in given.items()),
    )
    (folder / "rsyslog.conf").write_text(config)
    program = rsyslogd_program()
    arguments = [program, "-n", "-f", str(folder / "rsyslog.conf"), "-i", str(folder / "pid")]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out)
    try:
        yield Shipper(folder)
    finally:
        process.kill()
        process.wait()
