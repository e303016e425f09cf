"""How long the parts of a kernel take on a card, and what bounds it: equations, and a table of figures a card.

Nothing here asks a device. `cards.card_named` and `cards.usual_card` give the figures, `kernel.k_tile` the cycles of a k-tile of
a spec, `launch.launch` those of a problem. The figures are data, in `tables/`, each with its source; measured ones are
from benchmarks/cpi.py. hgemm/dispatch_table.py, which chooses among variants, counts in whole numbers, so that C counts the same.
"""
