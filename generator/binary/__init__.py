"""What a compiled kernel is: its ELF facts, its instructions, its residency, held against the plan."""
