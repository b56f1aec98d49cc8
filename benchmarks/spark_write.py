"""Batch write of 200 B values, beside a sink that only drains the same Arrow batches.

python benchmarks/spark_write.py [--rows N] [--rounds N] [--output FILE]
"""

from __future__ import annotations

import argparse

from spark_bench import median, median_cpu, report, session, spent, timed

import pyspark_logbus as logbus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output")
    args = parser.parse_args()
    spark = session("write")
    with (
        logbus.LocalCluster(brokers=1) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        bus.create_topic("lines", partitions=args.partitions)
        text = "x" * (args.value_bytes - 10)
        rows = spark.range(0, args.rows, 1, args.partitions).selectExpr(
            f"concat('{text}', cast(id + 1000000000 as string)) value"
        )

        def write() -> float:
            writer = rows.write.format("logbus").mode("append").option("topic", "lines")
            writer = writer.option("bootstrap.servers", cluster.bootstrap_servers)
            return timed(writer.save)

        def floor() -> float:
            return timed(rows.write.format("floor").mode("append").save)

        first = write()
        floor()
        write()
        pairs = [(spent(cluster, floor), spent(cluster, write)) for _ in range(args.rounds)]
        ends = bus.admin.list_offsets(
            dict.fromkeys(bus.cluster().partitions_of("lines"), -1)
        ).values()
        written = sum(end.offset for end in ends)
        assert written == args.rows * (args.rounds + 2), written
    spark.stop()
    floors, writes = ([time for time, _ in column] for column in zip(*pairs))
    report(
        "spark_write",
        {
            "rows": args.rows,
            "value_bytes": args.value_bytes,
            "first_s": round(first, 3),
            "floor_s": median(floors),
            "logbus_s": median(writes),
            "floor_rows_per_s": round(args.rows / median(floors)),
            "logbus_rows_per_s": round(args.rows / median(writes)),
            "ratio": median([low / high for low, high in zip(floors, writes)]),
            "goal": 0.55,
            "floor_cpu": median_cpu([cost for (_, cost), _ in pairs]),
            "logbus_cpu": median_cpu([cost for _, (_, cost) in pairs]),
        },
        args.output,
    )


if __name__ == "__main__":
    main()
