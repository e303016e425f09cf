"""Kernels on mma.sync, cp.async and ldmatrix: for every architecture from sm_80 on."""
