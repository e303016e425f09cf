"""Prove kernels on the CPU: build, run, check and count them without a GPU."""
