"""The broker process: I/O, timers and threads around the state machines of other packages.

Read the modules in this order: ``broker`` (start and stop), ``network`` (connections), ``dispatch``
(from request to handler), ``handlers`` (a module for each API), ``partitions`` (replicas and disk
I/O), ``cluster`` (ZooKeeper and the controller), ``coordinators`` (groups and transactions).

All code runs on the thread of one event loop, unless a module names another thread.
"""
