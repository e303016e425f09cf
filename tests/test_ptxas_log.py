"""Reading ptxas's report: one kernel, several, called functions, warnings, nothing."""

from __future__ import annotations

from generator.build.inspect import PtxasReport, parse_ptxas_log, ptxas_warnings

LOG = """ptxas info    : 16 bytes gmem, 32 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_89'
ptxas info    : Function properties for first
ptxas         .     776 bytes stack frame, 1256 bytes spill stores, 1292 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 776 bytes cumulative stack size, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 29.512 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""


def test_each_kernel_has_its_own_figures_with_the_functions_that_it_calls():
    assert parse_ptxas_log(LOG) == {
        "first": PtxasReport("first", "sm_89", 64, 776, 1256, 1292, 1024),
        "second": PtxasReport("second", "sm_90a", 255, 8, 4, 12, 0),
    }
    assert parse_ptxas_log(LOG)["first"].spill_bytes == 2548


def test_a_log_without_a_report_has_no_kernels():
    assert parse_ptxas_log("") == {}
    assert parse_ptxas_log("probe.cu(3): warning #177-D: variable was declared but never referenced") == {}


def test_a_report_that_breaks_off_has_zeros():
    assert parse_ptxas_log(LOG[: LOG.index("ptxas         .")])["first"] == PtxasReport("first", "sm_89", 0, 0, 0, 0, 0)


def test_warnings_are_kept_once_each_on_one_line():
    warning = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert ptxas_warnings(f"{LOG}{warning}\n\0{warning}\n") == (" ".join(warning.split()),)
    assert ptxas_warnings(LOG) == ()


def test_warnings_of_the_front_end_are_not_ptxass():
    assert ptxas_warnings('probe.cu(3): warning #177-D: variable "x" was declared but never referenced\n') == ()
    told = "ptxas warning : Value of threads per SM for entry probe is out of range. .minnctapersm will be ignored"
    assert ptxas_warnings(told) == (told,)
