"""Copies topics, settings and groups' offsets of a Kafka or logbus cluster to a logbus cluster.

In reading order: ``offset_map`` (where a record went), ``carrying`` (a batch as it is sent on),
``positions`` (where a copy goes on), ``planning`` (topics, settings, groups), all pure; then, with
the I/O, ``source`` and ``target``, ``claim`` (only one mirror at a time), ``copies`` and ``notes``
(what is known of a partition, and what of it is written down), ``resuming``, ``group_sync``, and
``mirror``, which runs them. Blocking; one mirror belongs to one thread.
"""
