"""The HGEMM generator: from a spec to a compiled, inspected and stored kernel."""

__version__ = "0.1.0"
