"""Kernels on mma.sync whose tiles come by TMA: plan, ways_out, rules, defaults, naming, emit, expectation."""
