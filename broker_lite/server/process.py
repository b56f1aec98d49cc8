"""The process of a broker: its log lines, event loop, readiness report and signals.

SIGTERM and SIGINT stop the broker. An error that an operator can fix ends the process with one line
on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError
from broker_lite.server.broker import Broker
from broker_lite.server.json_log import JsonFormatter
from broker_lite.server.log_limits import OutputFile, RepeatLimit
from broker_lite.server.service_manager import READY, STOPPING, notify
from broker_lite.server.text_log import TextFormatter

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # uvloop is optional: the broker uses only asyncio's interface.
    from asyncio import new_event_loop

NO_UVLOOP = (
    "uvloop is not installed, so asyncio's event loop runs. "
    "To install it: pip install 'pyspark-logbus[broker]'"
)

logger = logging.getLogger("logbus.broker")

SWITCH_INTERVAL_S = 0.0005
"""Seconds after which a disk thread must yield Python's interpreter lock to the event loop.

Python's default, 5 ms, would delay requests."""
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(config: BrokerConfig, ready_fd: int | None = None, output_path: str | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT, and return the process's exit code.

    When it is ready, one JSON line ``{"id", "host", "port", "pid"}`` goes to ``ready_fd``, or to
    stdout for None. ``output_path`` is the rotated file of stdout and stderr."""
    if sys.flags.optimize:
        sys.stderr.write("logbus broker: python -O removes checks that it relies on\n")
        return 2
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if config.keeps_files_private:
        os.umask(0o077)
    own = OutputFile(Path(output_path)) if output_path else logging.StreamHandler()
    is_json = config.log_format == "json"
    own.setFormatter(JsonFormatter() if is_json else TextFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[own])
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatLimit())
        if isinstance(handler.formatter, JsonFormatter):
            handler.formatter.broker_id = config.broker_id
    if new_event_loop is asyncio.new_event_loop:
        logger.info(NO_UVLOOP)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(config, ready_fd))
    except LogbusError as error:
        sys.stderr.write(f"logbus broker {config.broker_id}: {error}\n")
        return 1
    return 0


async def _run(config: BrokerConfig, ready_fd: int | None) -> None:
    """Run a broker until a signal. Raises LogbusError if the broker cannot start, or if another
    process takes its id or data directory."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config)
    _report_ready(await broker.start(), ready_fd)
    notify(READY)
    # The objects that exist now live as long as the process. Exclude them from all later garbage
    # collections, which are faster then.
    gc.collect()
    gc.freeze()
    broker.watch_loop()
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopping, broker.fatal), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    notify(STOPPING)
    await broker.stop()
    if broker.fatal.done():
        raise broker.fatal.result()


def _report_ready(facts: dict[str, Any], ready_fd: int | None) -> None:
    line = json.dumps(facts) + "\n"
    if ready_fd is None:
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as pipe:
        pipe.write(line)
