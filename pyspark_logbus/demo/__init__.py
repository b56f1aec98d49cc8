"""``make demo`` and ``logbus demo``: count real log lines with Spark and check every total.

The demo starts ZooKeeper and brokers as processes and sends log lines at a set rate. A Spark query
counts the lines by minute and kind and writes the counts to another topic. The demo prints the
counts live, compares all totals and stops every process that it started. It uses the public API,
``LocalCluster`` and Spark; only ``run`` reads znodes.

``run`` controls the demo. ``sources`` finds the lines, ``parsing`` classifies them, ``query``
starts Spark, ``shipper`` sends, ``results`` reads the counts, ``screen`` prints.
"""
