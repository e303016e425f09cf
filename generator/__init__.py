"""The HGEMM generator: from a spec to a compiled, inspected and registered kernel."""

__version__ = "0.1.0"
