"""Tuning: find the best of many kernels for each problem by successive halving, and record it."""
