"""Kernels run on the CPU: the very text that the device's compiler gets, judged instruction by instruction."""

COSTS_CASE = "costs of a k-tile"
"""The check after those of the shapes: what a k-tile costs is as planned."""
