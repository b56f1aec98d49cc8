"""Records of a topic for the console: search with limits, live tail, export, and readable
values."""
