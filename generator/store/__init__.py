"""A library of variants: folders that are the truth, and the index that answers for them."""
