"""Fetches from leaders, for consumers, Spark and mirrors.

- ``position``, ``lineage``: the state of one partition between fetches, and its leader epochs
- ``fetches``: requests and answers of many partitions
- ``range_reader``, ``first_answers``: fixed offset ranges, for Spark
"""
