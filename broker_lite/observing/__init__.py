"""Read the state of a whole cluster through the public client, and judge its health.

A sample (``sample``) is the state of brokers and partitions at one time. ``verdict`` judges it. A
reading (``sampler``) is a sample with the offsets, the groups and their lags. The console and
``logbus top`` read a cluster repeatedly; ``logbus health`` and ``doctor`` take one sample.
"""
