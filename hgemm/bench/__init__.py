"""The benchmark times a library's kernels and cuBLASLt in turns, in one process.

It needs only the driver and NumPy.
"""
