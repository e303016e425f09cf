"""The benchmark times a library's variants and cuBLASLt in turns, in one process.

It needs only the driver and NumPy.
"""
