"""A look at a whole cluster through the public client: samples, and the verdict over them."""
