"""Read PTX and translate it to C++ for the CPU executor."""
