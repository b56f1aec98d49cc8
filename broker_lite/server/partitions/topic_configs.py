"""Parse topic settings, including topics with settings that this version cannot read.

The controller validates settings before it writes them. An unreadable setting therefore stems from
a later version or a manual edit. Its retention policy is then unknown, so retention deletes nothing
until the setting is corrected. Loop thread only.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from broker_lite.config import TopicConfig, parse
from broker_lite.errors import LogbusError
from broker_lite.model import TopicView
from broker_lite.server.log_events import log_event

logger = logging.getLogger("logbus.replicas")


class TopicConfigs:
    """A parser of topic settings that logs each unreadable set of settings once."""

    def __init__(self) -> None:
        self._logged: dict[str, Mapping[str, str]] = {}

    def of(self, view: TopicView) -> TopicConfig:
        """Return all readable settings over the defaults; disable retention if any is
        unreadable."""
        try:
            found = parse(TopicConfig, view.config)
        except LogbusError as error:
            if self._logged.get(view.topic_id) != view.config:
                self._logged[view.topic_id] = view.config
                logger.error(
                    "topic %s: %s. Its other settings apply, but retention is "
                    "disabled until the setting is corrected: logbus topic alter %s -c …",
                    view.name,
                    error,
                    view.name,
                    extra=log_event("topic_setting_invalid", topic=view.name),
                )
            return self._readable(view.config)
        self._logged.pop(view.topic_id, None)
        return found

    def _readable(self, settings: Mapping[str, str]) -> TopicConfig:
        found = TopicConfig()
        for key, text in settings.items():
            try:
                found = parse(TopicConfig, {key: text}, base=found)
            except LogbusError:
                continue
        return dataclasses.replace(found, retention_ms=-1, retention_bytes=-1)
