"""`python -m generator` is `generate`."""

from generator.cli.main import generate_main

if __name__ == "__main__":
    generate_main()
