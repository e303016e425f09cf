"""What tuning generates: the specs among which it searches, and a library that gets them while the GPU measures."""
