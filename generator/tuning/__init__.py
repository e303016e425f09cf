"""Tuning support of the generator: the specs to search, and a library that grows while the GPU measures."""
