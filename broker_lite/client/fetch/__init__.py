"""Fetches from leaders, for consumers, Spark and mirrors.

- ``position``, ``lineage``: the state of one partition between fetches, and its leader epochs
- ``fetches``: requests and answers of many partitions
- ``fetch_engine``: prefetches the partitions of a consumer
- ``range_reader``, ``small_ranges``, ``ends``: fixed offset ranges and end offsets, for Spark
"""
