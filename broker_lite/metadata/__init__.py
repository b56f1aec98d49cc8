"""Cluster metadata in ZooKeeper, and the metadata snapshot from which brokers serve requests.

Read the modules in this order:

- ``znodes``: every path and its JSON; ``store``: the interface to ZooKeeper; ``zookeeper/``: its
  implementation with kazoo
- ``cache``: the snapshot; ``loader``: reads the snapshot; ``notices``: change notices
- ``registration``: a broker's registration; ``producer_ids``: blocks of producer ids
- ``credentials``, ``acls``, ``quotas``: users, access control lists and quotas;
  ``security_znodes``: reads and writes them
- ``group_claims``: a broker's exclusive right to write a group's offsets; ``group_kind``,
  ``group_offsets``, ``group_writer``, ``group_deletion``, ``native_members``: the other state of
  groups

All code runs on the event loop's thread, unless a module names another thread."""
