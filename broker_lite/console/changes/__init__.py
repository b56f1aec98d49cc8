"""The changes that users can make to a cluster from its pages.

A change has a form, a plan, a typed confirmation if data or offsets can be lost, and a call of the
public client. ``table`` lists the changes.
"""
