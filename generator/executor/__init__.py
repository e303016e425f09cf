"""Kernels run on the CPU: the very text that the device's compiler gets, judged instruction by instruction."""
