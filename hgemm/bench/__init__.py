"""The benchmark: variants of a library beside cuBLASLt, interleaved in one process; needs the driver and NumPy only."""
