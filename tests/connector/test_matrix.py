"""Test every combination of failOnDataLoss, topic selection and start offsets.

Each query is restarted, and partitions are added. The combinations are those of Spark's
KafkaSourceSuiteBase. The test plans each query and reads its rows as Spark does.
"""

from __future__ import annotations

import itertools
import json

from support.patience import until
from support.spark_planning import begin_query, ends, fill, make_planner, values_of

TIME = 1_700_000_000_000
WAYS = ("assign", "subscribe", "subscribePattern")
STARTS = {
    "latest": ({"startingOffsets": "latest"}, [3, 3, 3, 3, 3]),
    "earliest": ({"startingOffsets": "earliest"}, [0, 0, 0, 0, 0]),
    "offsets": (
        {"startingOffsets": '{"%s":{"0":-2,"1":-1,"2":0,"3":1,"4":2}}'},
        [0, 3, 0, 1, 2],
    ),
    "times": (
        {
            "startingOffsetsByTimestamp": json.dumps(
                {"%s": {str(n): TIME + later for n, later in enumerate((0, 1, 2, 1, 9))}}
            ),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        [0, 1, 2, 1, 3],
    ),
    "time": ({"startingTimestamp": str(TIME + 1)}, [1, 1, 1, 1, 1]),
}


class Run:
    """A query with one combination of options. Stores the query's end offsets and every row that
    the query has read.
    """

    def __init__(self, bus, topic, fail, how, begin):
        self.bus, self.topic = bus, topic
        named = {"assign": json.dumps({topic: [0, 1, 2, 3, 4]}), "subscribe": topic}
        given, self.begins = STARTS[begin]
        self.fail = fail
        self.grows = how != "assign"
        self.given = {key: value.replace("%s", topic) for key, value in given.items()}
        self.given |= {
            how: named.get(how, f"{topic[:-1]}[{topic[-1]}]"),
            "failOnDataLoss": str(fail),
            "metadata.max.age.ms": "1000",
        }
        self.at = None
        self.read = []
        self.begin_again()

    def begin_again(self):
        self.planner = make_planner(self.bus, **self.given)
        if self.at is None:
            self.at = begin_query(self.planner)
            assert ends(self.planner.initial_offset(), self.topic) == self.begins
            self.take(self.planner.initial_offset(), self.at)
        else:
            # Convert the position as if it were read from the checkpoint. A resumed query ignores
            # the start option.
            self.at = json.loads(json.dumps(self.at))
            self.given["startingOffsets"] = "latest"

    def take(self, begin, end):
        ranges = list(itertools.chain.from_iterable(self.planner.ranges(begin, end)))
        self.read += [(r.partition, at) for r in ranges for at in range(r.start, r.end)]
        assert len(values_of(self.bus, ranges, self.fail)) == sum(r.size for r in ranges)

    def reach(self, wanted):
        def forward():
            end = self.planner.latest_offset(self.at, unlimited=False)
            if end != self.at:
                self.take(self.at, end)
                self.at = end
            return ends(self.at, self.topic)

        until(forward, lambda found: found == wanted)


def test_query_with_any_start_option_reads_each_row_once_across_a_restart(bus, make_topic):
    fixed, growing = make_topic(*[0] * 5), make_topic(*[0] * 5)
    for topic in (fixed, growing):
        fill(bus, topic, *[3] * 5, start_ms=TIME)
    cases = itertools.product((True, False), WAYS, STARTS)
    runs = [
        Run(bus, fixed if how == "assign" else growing, fail, how, begin)
        for fail, how, begin in cases
    ]
    try:
        for topic in (fixed, growing):
            fill(bus, topic, *[1] * 5)
        for run in runs:
            run.reach([4] * 5)
            run.planner.stop()
        for topic in (fixed, growing):
            fill(bus, topic, *[2] * 5)
        for run in runs:
            run.begin_again()
            run.reach([6] * 5)
        bus.admin.create_partitions(growing, 10)
        fill(bus, growing, *[1] * 5, *[2] * 5)
        for run in runs:
            if run.grows:
                run.reach([7] * 5 + [2] * 5)
            last = ends(run.at, run.topic)
            begins = run.begins + [0] * (len(last) - 5)
            assert sorted(run.read) == [
                (number, at) for number, end in enumerate(last) for at in range(begins[number], end)
            ], run.given
    finally:
        for run in runs:
            run.planner.stop()
