"""Records of a topic: search with limits, live tail, export, and values as people read them."""
