"""This broker in its cluster: registration, snapshot of ZooKeeper, controller, other brokers."""
