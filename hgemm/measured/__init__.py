"""What was measured: sessions of a library as files that only grow, and what follows from them for selection."""
