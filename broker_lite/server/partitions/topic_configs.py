"""A topic's settings as a broker applies them, also where it cannot read all of them.

The controller checks what it writes, so a setting that does not parse is of a later version, or was
written by hand. What it says about keeping records is unknown then: none are deleted for their age
or size until it is mended. Loop thread.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from broker_lite.config import TopicConfig, parse
from broker_lite.errors import LogbusError
from broker_lite.model import TopicView

logger = logging.getLogger("logbus.replicas")


class TopicConfigs:
    """What cannot be read of a topic's settings is said once for each that it is given."""

    def __init__(self) -> None:
        self._said: dict[str, Mapping[str, str]] = {}

    def of(self, view: TopicView) -> TopicConfig:
        """Every setting that can be read, over the defaults; no retention if one cannot."""
        try:
            found = parse(TopicConfig, view.config)
        except LogbusError as error:
            if self._said.get(view.topic_id) != view.config:
                self._said[view.topic_id] = view.config
                logger.error(
                    "topic %s: %s. Its other settings are applied, and none of its records are "
                    "deleted for age or size until that one is mended: logbus topic alter %s -c …",
                    view.name,
                    error,
                    view.name,
                )
            return self._readable(view.config)
        self._said.pop(view.topic_id, None)
        return found

    def _readable(self, settings: Mapping[str, str]) -> TopicConfig:
        found = TopicConfig()
        for key, text in settings.items():
            try:
                found = parse(TopicConfig, {key: text}, base=found)
            except LogbusError:
                continue
        return dataclasses.replace(found, retention_ms=-1, retention_bytes=-1)
