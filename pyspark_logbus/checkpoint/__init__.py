"""``logbus checkpoint``: convert the checkpoint of a Kafka query for ``format("logbus")``."""
