"""Produce with librdkafka (confluent-kafka) until stdin ends; print each acknowledgement.

    python librdkafka.py SERVERS TOPIC PARTITIONS RECORDS_PER_SECOND [SETTING=VALUE …]

Each line has the partition and the Unix time in seconds, and the error if the record failed.
"""

from __future__ import annotations

import os
import select
import sys
import time

from confluent_kafka import KafkaError, Message, Producer

VALUE = bytes(100)


def report(error: KafkaError | None, record: Message) -> None:
    """Print the outcome of one record: its acknowledgement or its error."""
    failure = f" {error}" if error is not None else ""
    print(record.partition(), time.time(), failure, sep=" ")


def main() -> None:
    servers, topic, partitions, rate = sys.argv[1:5]
    settings = dict(setting.split("=", 1) for setting in sys.argv[5:])
    producer = Producer({"bootstrap.servers": servers, **settings})
    began, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        due = int((time.monotonic() - began) * int(rate))
        for number in range(sent, due):
            producer.produce(topic, VALUE, partition=number % int(partitions), on_delivery=report)
        sent = max(sent, due)
        producer.poll(0.001)
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
