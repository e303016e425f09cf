"""Where variants are built at the same time: by processes of this machine, or by those of a cluster."""
