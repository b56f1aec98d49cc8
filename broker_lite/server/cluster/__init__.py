"""Connect this broker with its cluster: register it in ZooKeeper, read the metadata, run the
controller, and keep connections to the other brokers.
"""
