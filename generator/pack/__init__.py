"""Model packs: the linear layers of a model, and the few kernels that serve them for every number of rows."""
