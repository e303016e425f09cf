"""Export a library of kernels as a C library, and find gaps in what it supports."""
