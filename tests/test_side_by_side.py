"""Test the harness of ``make bench``, which compares logbus with other systems.

A *row* is one comparison, with logbus and another system, its peer, as *sides*. A *floor* is a
side that does only the work that no such system can avoid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from broker_lite.bus import connect

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def peers(name: str) -> Any:
    return importlib.import_module(f"peers.{name}")


def test_benchmark_input_lines_are_unique_and_have_the_requested_size(tmp_path: Path) -> None:
    given = tmp_path / "access.log"
    given.write_bytes(b"".join(b"line %d of a log\n" % n for n in range(50)))
    for lines in (peers("lines").Lines(given), peers("lines").Lines()):
        whole, sized = lines.whole(1000), lines.sized(1000, 100)
        assert len(set(whole)) == len(set(sized)) == 1000
        assert {len(value) for value in sized} == {100}
        assert not any(b"\n" in value for value in sized)
    assert peers("lines").Lines(given).whole(2) == [b"0 line 0 of a log", b"1 line 1 of a log"]


def test_output_of_kafka_tools_is_parsed() -> None:
    java_tools = peers("java_tools")
    said = (
        "600 records sent, 119.9 records/sec (0.01 MB/sec), 11.0 ms avg latency, 12.0 ms max.\n"
        "2000 records sent, 41492.1 records/sec (3.96 MB/sec), 1511.97 ms avg latency, "
        "2400.00 ms max latency, 1578 ms 50th, 2200 ms 95th, 2314 ms 99th, 2390 ms 99.9th.\n"
    )
    assert java_tools.read_sent(said, 2000) == {
        "records_per_s": 41492.1,
        "latency_p50_ms": 1578,
        "latency_p99_ms": 2314,
    }
    said = (
        "2026-11-21 21:00:00:001, 2026-11-21 21:00:02:001, 95.3674, 47.6837, 1000000, "
        "500000.0000, 1000, 1000, 95.3674, 1000000.0000\n"
    )
    assert java_tools.read_consumed(said, 1_000_000) == {"records_per_s": 1_000_000}
    with pytest.raises(java_tools.ToolFailed):
        java_tools.read_consumed(said, 2_000_000)
    with pytest.raises(java_tools.ToolFailed):
        java_tools.read_sent("", 1)


def test_processor_time_of_broker_and_client_processes_is_counted_separately() -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    wait = "import sys; sys.stdin.read()"
    meter = peers("meter")
    other, server = (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        for code in (wait, burn + wait)
    )
    with other, server:
        with meter.Meter({"broker": [server.pid]}, {other.pid}) as metered:
            subprocess.run([sys.executable, "-c", burn], check=True)
            # Processor time is counted in ticks of 10 ms, so 0.3 s may be measured as 0.29 s.
            while meter.cpu_seconds(server.pid) < 0.25:
                pass
        for process in (other, server):
            assert process.stdin is not None
            process.stdin.close()
    assert set(metered.found) == {"broker", "clients"}
    assert metered.found["broker"]["cpu_s"] >= 0.2
    assert metered.found["clients"]["cpu_s"] >= 0.3
    assert metered.found["broker"]["peak_mb"] > 1


def test_spark_jvm_and_its_python_workers_are_counted_as_separate_roles(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    start = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {burn!r}], check=True)"
    wait = "\nimport sys; print('done', flush=True); sys.stdin.read()"
    meter = peers("meter")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([str(java), "-c", start + wait], **pipes) as session:
        with meter.Meter({"spark": [session.pid]}, set()) as metered:
            assert session.stdout is not None and session.stdin is not None
            assert session.stdout.readline() == b"done\n"
        session.stdin.close()
    found = metered.found
    assert found["spark, python"]["cpu_s"] >= 0.25 > found["spark, jvm"]["cpu_s"]
    assert found["spark, jvm"]["peak_mb"] > 1


def row(goals: tuple[Any, ...], runs: dict[str, list[float]]) -> Any:
    """Return a benchmark (a row of the report) whose systems return the values in ``runs`` in turn,
    and the list to which each run appends its system's name.
    """
    kinds = peers("row")
    order: list[str] = []

    class Opened:
        def __enter__(self) -> Any:
            values = {side: itertools.cycle(each) for side, each in runs.items()}

            def run(side: str) -> dict[str, float]:
                order.append(side)
                return {"rows_per_s": next(values[side])}

            return {
                side: kinds.Side(lambda side=side: run(side), dict, "as it comes") for side in runs
            }

        def __exit__(self, *_: object) -> None:
            pass

    made = kinds.Row("made-up", 99, "made up", goals, lambda *_: Opened(), rounds=3)
    return made, order


def test_benchmark_alternates_logbus_and_kafka_and_stores_first_runs_separately() -> None:
    kinds, alternate = peers("row"), peers("alternate")
    goals = (kinds.Goal("rows_per_s", 2.0), kinds.Goal("rows_per_s", 1.5, "less"))
    made, order = row(goals, {"logbus": [10, 300, 200, 100], "kafka": [40, 100, 100, 100]})
    with peers("bench").Bench() as bench:
        found = alternate.run(made, bench)
    assert order == ["logbus", "kafka", "kafka", "logbus", "logbus", "kafka", "kafka", "logbus"]
    (variant,) = found["variants"]
    side = variant["sides"]["logbus"]
    assert side["first"]["measures"] == {"rows_per_s": 10}
    assert (side["median"], side["spread"]) == ({"rows_per_s": 200}, {"rows_per_s": [100, 300]})
    ratios = [(each["ratio"], each["ratio_spread"], each["met"]) for each in variant["compared"]]
    assert ratios == [(2.0, [1.0, 3.0], True), (2.0, [1.0, 3.0], False)]


def test_quick_benchmark_measures_only_logbus_and_kafka() -> None:
    made, order = row((), {"logbus": [1], "kafka": [2], "floor": [3], "floor, flushed": [4]})
    with peers("bench").Bench(quick=True) as bench:
        (variant,) = peers("alternate").run(made, bench)["variants"]
    assert list(variant["sides"]) == ["logbus", "kafka"]
    assert set(order) == {"logbus", "kafka"}


def test_stub_servers_of_benchmarks_accept_records_of_logbus_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, work = peers("bare"), peers("python_work")
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    values = tmp_path / "values"
    values.write_bytes(b"one\ntwo\nthree")
    with bare.BareServer("turns") as server:
        ask = {"servers": server.bootstrap_servers, "values": str(values), "count": 5}
        assert work.latency_bare(ask)["p50_ms"] > 0
    values.write_bytes(b"one\ntwo")
    ask = {"values": str(values), "count": 9_000, "size": 3}
    assert work.records_bare(ask)["records_per_s"] > 0
    for options in ({}, {"compression": "lz4"}):
        assert work.table_bare(ask | {"options": options})["records_per_s"] > 0
    for program in ("flushed", "silent"):
        with (
            bare.BareServer(program, partitions=4) as server,
            connect(server.bootstrap_servers) as bus,
            bus.producer() as producer,
        ):
            sent = [producer.send("t", b"value", partition=3).result() for _ in range(2)]
            assert [each.offset for each in sent] == [0, 1]
            assert bool(server.stored_mb()) == (program == "flushed")


def test_failed_or_hanging_benchmark_does_not_prevent_the_other_benchmarks() -> None:
    kinds, alternate = peers("row"), peers("alternate")

    def fail() -> dict[str, float]:
        raise RuntimeError("a port was taken")

    def hang() -> dict[str, float]:
        threading.Event().wait()
        raise AssertionError("nobody sets it")

    for run, seconds_max, why in (
        (fail, 60.0, "RuntimeError: a port was taken"),
        (hang, 0.05, "TookTooLong: the benchmark took longer than 0 s"),
    ):
        side = kinds.Side(run, dict, "as it comes")
        opened = contextlib.nullcontext({"logbus": side})
        made = kinds.Row(
            "flaky", 97, "", (), lambda *_, o=opened: o, rounds=1, seconds_max=seconds_max
        )
        with peers("bench").Bench() as bench:
            (variant,) = alternate.run(made, bench)["variants"]
        assert (variant["cannot"], variant["failed"]) == (why, True)
        assert peers("__main__").has_failed(variant)


def test_benchmark_time_limit_ends_code_that_suppresses_oserror() -> None:
    alternate = peers("alternate")
    with pytest.raises(alternate.TookTooLong), alternate._at_most(0.01):
        while True:
            with contextlib.suppress(OSError):  # The meter reads files of /proc in this way.
                Path("/proc/0/stat").read_bytes()


def test_benchmark_report_names_missed_goals_and_benchmarks_that_could_not_run(
    tmp_path: Path,
) -> None:
    kinds, alternate, report = peers("row"), peers("alternate"), peers("report")
    made, _ = row((kinds.Goal("rows_per_s", 5.0),), {"logbus": [2], "kafka": [1], "floor": [4]})

    def open_nothing(*_: object) -> Any:
        raise peers("fetch").Cannot("Maven is missing")

    absent = kinds.Row("absent", 98, "absent", (), open_nothing)
    (tmp_path / "results").mkdir()
    with peers("bench").Bench() as bench:
        for each in (made, absent):
            found = alternate.run(each, bench)
            path = tmp_path / "results" / f"{each.name}.json"
            path.write_text(json.dumps(found), "utf-8")
    (tmp_path / "results" / "wire.json").write_text("{}", "utf-8")
    report.write(tmp_path / "results", quick=False)
    text = (tmp_path / "RESULTS.md").read_text("utf-8")
    (short,) = (line for line in text.splitlines() if line.startswith("| 99 |"))
    assert short == "| 99 | made-up: made up | rows_per_s | ≥ 5 | **2.00** |  |  |  |"
    assert "0 of 1 goals are met. By the table's columns: 0 of 1 *defaults*.\n\n" in text
    assert "\n\nKafka is ahead in none." in text
    missed = (
        "made-up: rows_per_s of *defaults* 2.00 of at most 4.00, 50% of it "
        "(goal ≥ 5, beyond the bound)"
    )
    assert "1 goals are missed. 1 are *beyond the bound*" in text
    assert f"- Unknown.\n  - {missed}" in text
    (line,) = report.brief(alternate.run(made, bench))
    assert line.endswith("logbus 2.0, kafka 1.0, ratio 2.00 (2.00–2.00), goal ≥ 5 not met")
    (line,) = report.brief(alternate.run(absent, bench))
    assert line == "98 absent [defaults]: cannot run: Maven is missing"


def test_benchmark_summary_names_the_measures_in_which_kafka_is_ahead() -> None:
    kinds, alternate, summary = peers("row"), peers("alternate"), peers("summary")
    goals = (kinds.Goal("rows_per_s", 0.5), kinds.Goal("p99_ms", 2.0, "less"))
    sides = {
        name: {"median": measures, "runs": [{"measures": measures}]}
        for name, measures in {
            "logbus": {"rows_per_s": 3.0, "p99_ms": 6.0},
            "kafka": {"rows_per_s": 4.0, "p99_ms": 4.0},
            "floor": {"rows_per_s": 5.0, "p99_ms": 1.0},
            "floor, flushed": {"rows_per_s": 4.5},
        }.items()
    }
    made, _ = row(goals, {})
    found = alternate.compared(made, kinds.Variant("tuned"), sides)
    assert [each["peer"] for each in found] == ["kafka", "kafka"]
    kept = {
        "row": "made-up", "number": 1, "work": "",
        "variants": [{"variant": "tuned", "compared": found}, {"variant": "x", "cannot": "no"}],
    }  # fmt: skip
    text = "\n".join(summary.lines([kept]))
    assert "2 of 2 goals are met. By the table's columns: 2 of 2 *tuned*." in text
    behind = (
        "- made-up [tuned]: rows_per_s is 0.75 times Kafka's\n"
        "- made-up [tuned]: p99_ms is 1.5 times Kafka's\n"
    )
    assert f"Kafka is ahead in 2:\n\n{behind}" in text
    assert not list(summary.lines([{**kept, "variants": []}]))


def test_benchmark_estimates_the_rate_of_clients_alone_only_if_the_cores_were_busy() -> None:
    bound = peers("ceilings").without_servers

    def found(clients: float, broker: float) -> Any:
        spent = {"clients": clients, "broker": broker, "zookeeper": 0.5}
        processes = {role: {"cpu_s": seconds} for role, seconds in spent.items()}
        ours = {"median": {"records_per_s": 100.0}, "processes": processes}
        kafka = {"median": {"records_per_s": 50.0}, "processes": {}}
        return {"machine": {"cpus": 2}, "sides": {"logbus": ours, "kafka": kafka}}

    # 500 records at 100 a second take 5 s, in which two cores have 10 s of processor time. The
    # servers took 2.5 s of these. Without servers, 7.5 s are left, so the rate may be a third
    # higher. The 12 s of the clients include time before the measurement, which does not count.
    assert bound(found(12.0, 2.0), "records_per_s", count=500) == pytest.approx(2 * 10 / 7.5)
    assert bound(found(7.0, 2.0), "records_per_s", count=500) is None, "the cores were idle"
    assert bound(found(7.0, 9.5), "records_per_s", count=500) is None, "the servers took everything"


@pytest.mark.parametrize(
    ("floors", "better", "said"),
    [
        ([2.0, 3.0, 4.0], "more", "at most 3.00 (2.00–4.00), 50% of it (goal ≥ 3.5, at the bound"),
        ([2.0, 3.0, 3.4], "more", "at most 3.00 (2.00–3.40), 50% of it (goal ≥ 3.5, beyond the "),
        ([3.6, 3.7, 4.0], "more", "at most 3.70 (3.60–4.00), 41% of it (goal ≥ 3.5, within the "),
        ([0.2, 0.4, 0.6], "less", "at least 0.40 (0.20–0.60), 3.8 times it (goal ≤ 0.5, at the "),
        ([0.6, 0.7, 0.8], "less", "at least 0.70 (0.60–0.80), 2.1 times it (goal ≤ 0.5, beyond "),
        ([0.2, 0.3, 0.5], "less", "at least 0.30 (0.20–0.50), 5.0 times it (goal ≤ 0.5, within "),
    ],
)  # fmt: skip
def test_benchmark_report_says_whether_a_missed_goal_is_within_reach(
    floors: list[float], better: str, said: str
) -> None:
    kinds, alternate, missed = peers("row"), peers("alternate"), peers("missed")
    goal = kinds.Goal("rows_per_s", 3.5 if better == "more" else 0.5, better)
    runs = {"logbus": [1.5], "kafka": [1.0], "floor": [floors[0], *floors]}
    made, _ = row((goal,), runs)
    with peers("bench").Bench() as bench:
        found = alternate.run(made, bench)
    assert said in "\n".join(missed.lines([found]))
    assert "of at" not in "\n".join(missed.lines([found | {"quick": True}]))


def test_scaling_benchmark_first_stops_the_servers_of_earlier_benchmarks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise these servers could end during a measurement, and the meter would count their
    processor time as that of clients.
    """
    growth, order = importlib.import_module("peers.rows.growth"), []
    with peers("bench").Bench() as bench:
        monkeypatch.setattr(bench, "stop_all", lambda: order.append("ended"))
        variant = peers("row").Variant()
        with growth.open_growth(
            bench, variant, run=lambda *_: order.append("run") or {}, sizes=[1], unit=""
        ) as sides:
            sides["1"].run()
    assert order[:2] == ["ended", "run"]


def test_new_result_of_one_benchmark_variant_keeps_the_results_of_other_variants(
    tmp_path: Path,
) -> None:
    kinds, alternate, kept = peers("row"), peers("alternate"), peers("kept")
    made, order = row((kinds.Goal("rows_per_s", 1.0),), {"logbus": [2], "kafka": [1]})
    made = dataclasses.replace(made, variants=tuple(map(kinds.Variant, ("defaults", "tuned"))))
    with peers("bench").Bench() as bench:
        whole = alternate.run(made, bench)
        for each in whole["variants"]:
            each["machine"]["date"] = "2026-01-01"
        (tmp_path / "made-up.json").write_text(json.dumps(whole), "utf-8")
        order.clear()
        tuned = alternate.run(made, bench, ["tuned"])
    assert len(order) == 8, "another variant ran too"
    both = kept.keep(tmp_path, tuned, made, whole=False)
    assert [each["variant"] for each in both["variants"]] == ["defaults", "tuned"]
    dates = [each["machine"]["date"] for each in both["variants"]]
    assert dates[0] == "2026-01-01" < dates[1]
    assert kept.read(tmp_path / "made-up.json") == both
    why = {"variant": "tuned", "cannot": "Maven is missing", "machine": {}}
    failed = kept.keep(tmp_path, tuned | {"variants": [why]}, made, whole=False)
    assert failed == both, "a failed variant replaced figures"
    alone = kept.keep(tmp_path, tuned, made, whole=True)
    assert [each["variant"] for each in alone["variants"]] == ["tuned"]


def test_benchmarks_and_their_variants_are_chosen_by_name() -> None:
    chosen = peers("__main__").chosen
    assert len(chosen([], [])) > len(chosen([], [], quick=True)) > 0
    assert [row.name for row in chosen(["start", "disk"], [], quick=False)] == ["start", "disk"]
    assert [row.name for row in chosen(["disk"], ["lz4"])] == ["disk"]
    for rows, variants in ((["dsk"], []), (["disk"], ["fast"]), ([], ["lz4"])):
        with pytest.raises(ValueError, match=r"no such row|has no variant|--variant needs a row"):
            chosen(rows, variants)


def test_benchmark_continues_if_one_of_the_compared_systems_is_missing_or_fails() -> None:
    kinds, alternate, report = peers("row"), peers("alternate"), peers("report")

    def fail() -> dict[str, float]:
        raise OSError("the disk is full")

    def hang() -> dict[str, float]:
        threading.Event().wait()
        raise AssertionError("nobody sets it")

    runs = {"1": lambda: {"x_s": 1.0}, "2": fail, "3": hang, "5": lambda: {"x_s": 5.0}}
    sides = {name: kinds.Side(run, dict, "alone") for name, run in runs.items()}
    sides["4"] = kinds.Side.missing("apt-get install it")
    opened = contextlib.nullcontext(sides)
    made = kinds.Row(
        "made-up", 99, "", (), lambda *_: opened, rounds=1, apart=True, seconds_max=1.0
    )
    with peers("bench").Bench() as bench:
        found = alternate.run(made, bench)
    (variant,) = found["variants"]
    assert list(variant["sides"]) == ["1", "5"]
    assert variant["absent"] == {
        "2": "failed: OSError: the disk is full",
        "3": "failed: TookTooLong: the benchmark took longer than 1 s",
        "4": "apt-get install it",
    }
    assert peers("__main__").has_failed(variant), "some sides failed"
    lines = "\n".join(report.brief(found))
    assert "99 made-up [defaults]: 4 is missing: apt-get install it" in lines


def test_benchmark_does_not_count_processor_time_of_its_servers_as_that_of_clients() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass\nimport sys; sys.stdin.read()"
    within: dict[str, list[int]] = {}
    meter = peers("meter")
    with meter.Meter({}, set(), lambda: within) as metered:
        with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE) as server:
            within["broker"] = [server.pid]
            while sum(metered.seen("broker")) < 0.3:
                threading.Event().wait(0.01)
        within.clear()
    assert set(metered.found) == {"broker", "clients"}
    assert metered.found["broker"]["cpu_s"] >= 0.3
    assert metered.found["broker"]["peak_mb"] > 1
