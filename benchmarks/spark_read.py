"""Batch read to noop, seven columns, beside an Arrow source that yields ready batches from memory.

``logbus`` is a reader on the broker's machine, which reads the broker's files; ``fetched`` is the
same reader with ``localReads=false``: what a reader elsewhere costs, but for the network. Each side
is loaded anew for each round; processor seconds (``*_cpu``) include that, times do not.

python benchmarks/spark_read.py [--rows N] [--rounds N] [--output FILE]
"""

from __future__ import annotations

from spark_bench import fill, median, median_cpu, parser, report, session, spent, timed

import pyspark_logbus as logbus


def main() -> None:
    args = parser(__doc__, rows=4_000_000).parse_args()
    spark = session("read")
    with (
        logbus.LocalCluster(brokers=1) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        bus.create_topic("lines", partitions=args.partitions)
        fill(bus, "lines", args.rows, args.value_bytes, args.partitions)

        def read(schema: str | None = None, local: bool = True) -> float:
            reader = spark.read.format("logbus").option("subscribe", "lines")
            reader = reader.option("localReads", local)
            reader = reader.option("bootstrap.servers", cluster.bootstrap_servers)
            frame = (reader.schema(schema) if schema else reader).load()
            return timed(lambda: frame.write.format("noop").mode("overwrite").save())

        def sent() -> float:
            return read(local=False)

        def floor() -> float:
            reader = spark.read.format("floor").option("rows", args.rows)
            reader = reader.option("tasks", args.partitions).option("batchRows", 5_000)
            frame = reader.option("valueBytes", args.value_bytes).load()
            return timed(lambda: frame.write.format("noop").mode("overwrite").save())

        first = read()
        floor()
        sent()
        read()
        rounds = [
            (
                spent(cluster, floor),
                spent(cluster, read),
                spent(cluster, sent),
                read("value binary"),
            )
            for _ in range(args.rounds)
        ]
    spark.stop()
    of_floor, of_read, of_sent, values = (list(column) for column in zip(*rounds))
    floors, reads, sends = ([time for time, _ in row] for row in (of_floor, of_read, of_sent))
    report(
        "spark_read",
        {
            "rows": args.rows,
            "value_bytes": args.value_bytes,
            "first_s": round(first, 3),
            "floor_s": median(floors),
            "logbus_s": median(reads),
            "fetched_s": median(sends),
            "value_column_only_s": median(values),
            "floor_rows_per_s": round(args.rows / median(floors)),
            "logbus_rows_per_s": round(args.rows / median(reads)),
            "ratio": median([low / high for low, high in zip(floors, reads)]),
            "fetched_ratio": median([low / high for low, high in zip(floors, sends)]),
            "goal": 0.75,
            "floor_cpu": median_cpu([cost for _, cost in of_floor]),
            "logbus_cpu": median_cpu([cost for _, cost in of_read]),
            "fetched_cpu": median_cpu([cost for _, cost in of_sent]),
        },
        args.output,
    )


if __name__ == "__main__":
    main()
