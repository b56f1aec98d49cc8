"""Group coordinators: I/O, timers and ZooKeeper writes around the pure package ``coordinator``."""
