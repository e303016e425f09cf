"""Kernels that are written in CuTe DSL: their modules run in a process of its own, and leave PTX."""
