"""Changes of a cluster from its pages: a form, a plan, a typed confirmation where data or offsets
can be lost, and the call of the public client. ``table`` lists them."""
