"""Pure state machines: a partition's replica and the controller. See README.md."""
