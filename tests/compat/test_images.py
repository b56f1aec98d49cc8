"""Run the steps of the generated Dockerfiles without Docker, in clean virtual environments.

The tests leave out the steps that need root: Debian packages and the new user.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_lite import __version__
from broker_lite.cli.main import run
from broker_lite.local.cluster import LocalCluster

WHEEL = Path(__file__).parents[2] / "dist" / f"pyspark_logbus-{__version__}-py3-none-any.whl"
MB = 1_000_000
BASE_MB, JAVA_MB = 125, 200
"""Sizes of the image python:3.12-slim, and of default-jre-headless with its dependencies."""


class Image(NamedTuple):
    """The virtual environment in place of an image, and the command that its container runs."""

    bin: Path
    command: list[str]
    megabytes: float


@pytest.fixture
def image(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Image:
    """Run the steps of the Dockerfile that ``logbus generate docker`` prints with these options."""
    if not WHEEL.exists():
        pytest.skip(f"{WHEEL} is missing: make wheel")
    assert run(["generate", "docker", *request.param]) == 0
    text = capsys.readouterr().out
    (steps,) = re.findall(r"^RUN (.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    copied, venv = tmp_path / "tmp", tmp_path / "venv"
    copied.mkdir()
    shutil.copy(WHEEL, copied)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    before = stored(venv)
    as_user = [
        step.replace("/tmp/", f"{copied}/")
        for step in steps.replace("\\\n", "").split(" && ")
        if not re.match("apt-get|rm -rf /var/lib/apt|useradd", step.strip())
    ]
    variables = os.environ | {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "PYTHONPATH": ""}
    subprocess.run(["sh", "-ec", "\n".join(as_user)], env=variables, check=True)
    words = re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE)
    command = [word for line in words for word in json.loads(line)]
    return Image(venv / "bin", command, (stored(venv) - before) / MB)


def stored(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.parametrize("image", [()], indirect=True)
def test_broker_runs_from_the_files_of_its_image_which_has_at_most_350_mb(
    image: Image, make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    assert image.megabytes + BASE_MB <= 350
    running = make_cluster(1)
    settings = {"broker.id": 7, "port": 0, "metrics.port": 0, "log.dir": tmp_path / "data",
                "zookeeper.connect": running.zookeeper}  # fmt: skip
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
    program, *words = (word.replace("/etc/logbus", str(tmp_path)) for word in image.command)
    broker = subprocess.Popen(
        [image.bin / program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    )
    try:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["id"] == 7
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 0
    finally:
        broker.kill()
        broker.wait()


@pytest.mark.compat
@pytest.mark.timeout(900)
@pytest.mark.parametrize("image", [("--all-in-one",)], indirect=True)
def test_cluster_runs_from_the_files_of_the_whole_image_which_has_at_most_1300_mb(
    image: Image, tmp_path: Path
) -> None:
    assert image.megabytes + BASE_MB + JAVA_MB <= 1300
    home = {"HOME": str(tmp_path / "home"), "PATH": f"{image.bin}:/usr/bin:/bin"}
    program, *words = image.command
    cluster = subprocess.Popen(
        [image.bin / program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=home
    )
    try:
        assert cluster.stdout is not None
        assert json.loads(cluster.stdout.readline())["bootstrap_servers"]
        assert subprocess.run(["logbus", "health"], env=home, check=False).returncode == 0
        assert subprocess.run(["logbus", "demo"], env=home, check=False).returncode == 0
        cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(60) == 0
    finally:
        cluster.kill()
        cluster.wait()
