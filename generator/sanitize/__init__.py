"""Check a kernel of any origin by its PTX: a TOML file says how it is launched and what its buffers are."""
