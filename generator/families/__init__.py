"""The families of kernels: each is one way of building a product, with a kernel header, a template and a vocabulary of its own.

`mma_sync` multiplies with mma.sync, on every architecture; `mma_sync_tma` does on tiles that TMA brings, from sm_90 on; `sm90`
multiplies such tiles with wgmma, on sm_90a, or tiles that threads copy by cp.async.
A family is a folder here with one module for each stage that it has a say in:

    plan         the numbers that follow from a spec, and the fields that the family decides (`implied`)
    ways_out     the changes that may mend its illegal specs
    rules        what is illegal
    defaults     what is planned where a request says nothing
    naming       its words in a symbol
    emit         its template, its header, and the values that the template takes
    expectation  what inspection must find

A family may be written in several forms (`Spec.form`): `atoms`, and `cute`, which has its own `cute_emit`, and `cute_rules` for
what it cannot say; for mma_sync also `dsl`, with `dsl_emit` and `dsl_rules`.

The stages of `generator` of the same names ask for the family of a spec (`Spec.family`) and hold what all families share.
"""
