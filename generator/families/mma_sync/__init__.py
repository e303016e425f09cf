"""Kernels on mma.sync and ldmatrix, with copies by cp.async or by way of registers: for every architecture."""
