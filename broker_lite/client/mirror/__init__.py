"""Copies topics, settings and groups' offsets of a Kafka or logbus cluster to a logbus cluster.

In reading order: ``offset_map`` (where a record went), ``carrying`` (a batch as it is sent on),
``positions`` (where a copy goes on), ``planning`` (topics, settings, groups), all pure; then
``source``, ``target`` and ``mirror`` with the I/O. Blocking; one mirror belongs to one thread.
"""
