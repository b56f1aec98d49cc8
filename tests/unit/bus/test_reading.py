"""Tests of the arguments of ``Bus.consumer``: accepted forms and refused combinations."""

from __future__ import annotations

from typing import Any

import pytest

from broker_lite.bus.reading import Reading, membership, reading
from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TopicPartition


def test_bus_consumer_accepts_a_mix_of_topic_names_lists_and_partitions() -> None:
    assert reading(("a", ["b", "c"]), None, None, "g") == (["a", "b", "c"], None, None, "g")
    tp = TopicPartition("b", 1)
    assert reading(("a", tp), [0], None, None) == (["a"], [0, tp], None, None)
    # An empty list of partitions chooses no partition, and is kept apart from None.
    assert reading((), [], "t.*", None).partitions == []
    with pytest.raises(InvalidConfigError, match="give each topic's name as text"):
        reading(([1],), None, None, None)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"coordination": "spark"}, "give kafka or zookeeper"),
        ({"coordination": "zookeeper", "partitions": [0]}, "leave out partitions"),
        ({"options": {"zookeeper": "h:1"}}, "needs coordination='zookeeper'"),
        ({"pattern": "t.*"}, "give either topics or a pattern"),
        ({"topics": [], "pattern": "t("}, "not a regular expression"),
        ({"group": None, "options": {"session.timeout.ms": 1}}, "give group="),
        ({"group": None, "pattern": "t.*", "topics": []}, "give group="),
        ({"partitions": [0], "callbacks": Callbacks(on_lost=print)}, "on_lost .* leave it out"),
    ],
)
def test_bus_consumer_refuses_arguments_that_contradict_each_other(
    changed: dict[str, Any], said: str
) -> None:
    asked = Reading(["t"], None, None, "g")

    def kind(**changes: Any) -> str:
        wanted = asked._replace(**{k: v for k, v in changes.items() if k in Reading._fields})
        return membership(
            changes.get("coordination", "kafka"),
            wanted,
            changes.get("options", {}),
            changes.get("callbacks", NO_CALLBACKS),
        )

    assert (kind(), kind(group=None), kind(partitions=[0])) == ("kafka", "", "")
    with pytest.raises(InvalidConfigError, match=said):
        kind(**changed)
