"""A library of kernels: folders that are the truth, and the index that answers for them."""
