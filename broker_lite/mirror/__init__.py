"""``logbus mirror``: copies topics, settings and group offsets of a Kafka or logbus cluster (the
source) to a logbus cluster (the target).

These modules do no I/O, in reading order:

- ``offset_map``: maps offsets of a partition at the source to offsets of its copy
- ``rewrite``: turns a fetched batch into the batch that the mirror sends
- ``positions``: the format of the state that a mirror stores, and where a copy resumes
- ``planning``: decisions about topics, settings and groups
- ``copies``: the state of the copied partitions

These modules do I/O: ``source`` and ``target`` (the two clusters), ``claim`` (ensures that only one
mirror copies a source), ``checkpoint`` (stores the state), ``resuming`` (finds where to resume),
``topic_sync`` (copies topics and settings), ``record_sync`` (copies records), ``group_sync``
(copies group offsets), and ``mirror``, which runs them. One mirror belongs to one thread."""
