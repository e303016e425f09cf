"""Tuning: find the best of many variants for each problem by successive halving, and record it."""
