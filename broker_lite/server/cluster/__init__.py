"""The part of a broker that belongs to its cluster: the registration in ZooKeeper, the metadata,
the controller, and the connections to other brokers.
"""
