"""A library as one page for people: its table, pictures of what was measured, and a page for each variant."""
