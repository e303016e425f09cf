"""Pictures of a kernel, as SVG: where its operands lie among the banks, and which lane holds what."""
