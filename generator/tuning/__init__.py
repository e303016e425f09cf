"""The specs that `hgemm tune` searches, and their generation while the GPU measures."""
