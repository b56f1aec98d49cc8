"""``make demo`` and ``logbus demo``: the main job on real log lines, with figures that must agree.

It starts ZooKeeper and brokers as real processes, ships lines at a pace, lets a Spark query count
them by minute and kind into another topic, prints the counts live, reconciles every figure and
stops all that it started. It uses what a user would: the public face, ``LocalCluster`` and Spark.
``run`` tells the story; ``sources`` has the lines, ``parsing`` their meaning, ``query`` Spark's
part, ``shipper`` and ``results`` the two ends, ``screen`` what is seen. Only ``run`` reads znodes.
"""
