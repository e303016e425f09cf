"""A cost model of kernels: equations, and tables of figures for each GPU.

`cards.card_named` and `cards.usual_card` return a GPU's figures. `kernel.k_tile` returns the cycles of a k-tile of a
spec, `kernel.launch` those of a problem, and `predict.predict` a fitted estimate of the time. No function needs a
device. The figures are data in `tables/`, each with its source. benchmarks/cpi.py takes the measured ones.
hgemm/dispatch_table.py selects kernels with integers only, so that C computes the same values.
"""
