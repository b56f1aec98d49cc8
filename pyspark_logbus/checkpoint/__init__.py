"""``logbus checkpoint``: a Kafka query's checkpoint, carried over to ``format("logbus")``."""
