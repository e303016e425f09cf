"""Tuning: of many variants the best for each problem, found by successive halving and recorded."""
