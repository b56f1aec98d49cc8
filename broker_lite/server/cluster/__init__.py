"""The broker in its cluster: registration, metadata snapshot, controller and peer connections."""
