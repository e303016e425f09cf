"""`hgemm sanitize`: its findings in a small kernel, and the input that it rejects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import hgemm

from generator.build.compile import compile_text
from generator.errors import RequestError
from generator.proof.executor import HostToolchain
from generator.ptx.parser import parse
from generator.sanitize.check import schedules
from generator.sanitize.description import Pointer, description_of, read_description, read_module
from generator.sanitize.running import SanitizeRequest, run_schedule
from generator.sanitize.starter import launch_file

# Each thread writes what its mirror image read: out[i] = in[63 - i]. The third parameter chooses a fault.
MIRROR = """.version 9.0
.target sm_90
.address_size 64
.visible .entry mirror(.param .u64 .ptr .global .align 4 in, .param .u64 out, .param .u32 fault)
.reqntid 64
{
  .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
  .shared .align 16 .b8 words[4096];
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [out];
  cvta.to.global.u64 %rd2, %rd2;
  ld.param.u32 %r1, [fault];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, words;
  setp.eq.u32 %p1, %r1, 2;  // bounds: behind the input
  selp.u32 %r4, 64, 0, %p1;
  add.u32 %r4, %r4, %r2;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd3, %rd1, %rd3;
  ld.global.u32 %r5, [%rd3];
  setp.eq.u32 %p2, %r1, 8;  // bank conflicts: a row of 128 bytes for each thread
  selp.u32 %r6, 5, 0, %p2;
  shl.b32 %r7, 4, %r6;
  min.u32 %r7, %r7, 64;
  mad.lo.u32 %r8, %r2, %r7, %r3;
  st.shared.u32 [%r8], %r5;
  setp.eq.u32 %p3, %r1, 1;  // race: no barrier
  @%p3 bra $L_read;
  setp.eq.u32 %p4, %r1, 4;  // deadlock: one warp at another barrier
  setp.gt.u32 %p5, %r2, 31;
  and.pred %p5, %p4, %p5;
  @%p5 bar.sync 1, 64;
  @!%p5 bar.sync 0, 64;
$L_read:
  setp.eq.u32 %p6, %r1, 3;  // uninitialised: behind what was written
  selp.u32 %r9, 96, 63, %p6;
  sub.u32 %r9, %r9, %r2;
  mad.lo.u32 %r10, %r9, %r7, %r3;
  ld.shared.u32 %r11, [%r10];
  mul.wide.u32 %rd4, %r2, 4;
  add.u64 %rd4, %rd2, %rd4;
  setp.eq.u32 %p7, %r1, 5;  // never written
  setp.eq.u32 %p8, %r2, 7;
  and.pred %p7, %p7, %p8;
  @!%p7 st.global.u32 [%rd4], %r11;
  setp.eq.u32 %p7, %r1, 6;  // written again
  @%p7 st.global.u32 [%rd4], %r11;
  setp.eq.u32 %p7, %r1, 7;  // mbarrier: not initialized
  @%p7 mbarrier.arrive.shared.b64 %rd5, [%r3+1024];
  ret;
}
"""
LAUNCH = """
grid = [1, 1, 1]
parameters = [{{ buffer = "x" }}, {{ buffer = "y" }}, {{ type = "u32", value = {fault} }}]
[buffers.x]
dtype = "u32"
shape = [64]
role = "in"
init = "integers"
[buffers.y]
dtype = "u32"
shape = [64]
role = "out"
"""
EXPECTED = "def mirrored(buffers):\n    return {'y': buffers['x'][::-1] + %d}\n"


@pytest.fixture
def check(tmp_path: Path, host_toolchain: HostToolchain) -> Callable[..., tuple[dict, tuple[dict, ...]]]:
    """Return a function that runs one schedule of the kernel with a fault."""
    (tmp_path / "mirror.ptx").write_text(MIRROR)

    def run(fault: int = 0, off: int = 0, schedule: int = 0) -> tuple[dict, tuple[dict, ...]]:
        (tmp_path / "mirror.toml").write_text(LAUNCH.format(fault=fault))
        (tmp_path / "reference.py").write_text(EXPECTED % off)
        adversary = schedules(schedule + 1, 0)[schedule]
        outcome = run_schedule(
            SanitizeRequest(
                "mirror",
                str(tmp_path / "mirror.ptx"),
                str(tmp_path / "mirror.toml"),
                str(host_toolchain.executable("mirror", MIRROR)),
                str(host_toolchain.runner()),
                adversary.timing,
                adversary.order,
                adversary.seed,
                reference=f"{tmp_path / 'reference.py'}:mirrored",
            )
        )
        return outcome.checks[0], outcome.sites

    return run


def conflicts(sites: tuple[dict, ...]) -> int:
    return sum(site["wavefronts"] - site["ideal_wavefronts"] for site in sites)


def test_clean_kernel_passes_every_schedule(check):
    for schedule in range(5):
        found, sites = check(schedule=schedule)
        assert found["passed"], found
        assert (found["max_error"], conflicts(sites)) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (1, {"race", "uninitialised"}),
        (2, {"bounds"}),
        (3, {"uninitialised"}),
        (4, {"deadlock"}),
        (5, {"write_once"}),
        (6, {"write_once"}),
        (7, {"mbarrier"}),
    ],
)
def test_each_fault_is_found(check, fault, kinds):
    found, _ = check(fault)
    assert {one["kind"] for one in found["findings"]} & kinds, found
    assert not found["passed"]


def test_bank_conflicts_are_counted_but_do_not_fail(check):
    found, sites = check(8)
    assert found["passed"]
    assert conflicts(sites) > 0


def test_a_wrong_result_names_the_element(check):
    found, _ = check(off=1)
    assert not found["passed"]
    assert not found["findings"]
    assert "y[0] is" in found["reason"] and "64 of 64 elements are wrong" in found["reason"]


def test_sanitize_reports_findings_and_sets_the_exit_status(tmp_path, capsys, host_toolchain):
    (tmp_path / "mirror.ptx").write_text(MIRROR)
    (tmp_path / "mirror.toml").write_text(LAUNCH.format(fault=2))
    status, out, err = hgemm(capsys, "sanitize", tmp_path / "mirror.ptx", "--schedules", "1", "--json")
    document = json.loads(out)
    assert (status, document["passed"], document["kernel"]) == (1, False, "mirror")
    assert "past the end of x" in document["findings"][0]["message"]
    assert "[1/1] late, ahead_low" in err
    status, _, err = hgemm(capsys, "sanitize", tmp_path / "mirror.ptx", "--ignore", "bound")
    assert status == 2 and "did you mean bounds?" in err


@pytest.mark.slow
def test_ignored_kinds_are_listed_and_do_not_fail(tmp_path, capsys):
    (tmp_path / "mirror.ptx").write_text(MIRROR)
    (tmp_path / "mirror.toml").write_text(LAUNCH.format(fault=2))
    status, out, _ = hgemm(capsys, "sanitize", tmp_path / "mirror.ptx", "--schedules", "1", "--ignore", "bounds,poison")
    assert status == 0 and "ignored bounds at mirror.ptx:" in out and "ok    mirror" in out


# ---- What is refused ------------------------------------------------------------------------------------------------


PARAMETERS = [{"buffer": "x"}, {"buffer": "y"}, {"type": "u32", "value": 0}]
BUFFERS = {
    "x": {"dtype": "u32", "shape": [64], "role": "in", "init": "integers"},
    "y": {"dtype": "u32", "shape": [64], "role": "out"},
}


def table(**changes) -> dict:
    return {"grid": [1, 1, 1], "parameters": PARAMETERS, "buffers": BUFFERS, **changes}


REFUSED = {
    "unknown key grids: did you mean grid": table(grids=[1]),
    "grid is missing": {name: value for name, value in table().items() if name != "grid"},
    "block is 32x1x1, and the PTX requires 64x1x1": table(block=[32, 1, 1]),
    "grid 1x1x1 is not a multiple of cluster 2x1x1": table(cluster=2),
    "parameters has 2 entries, and the PTX 3: .param .u64, .param .u64, .param .u32": table(parameters=PARAMETERS[:2]),
    "parameters[2] has 8 B, and the PTX 4 B (.param .u32)": table(
        parameters=[*PARAMETERS[:2], {"type": "u64", "value": 1}]
    ),
    "parameters[2] has type f32, and the PTX has .param .u32": table(
        parameters=[*PARAMETERS[:2], {"type": "f32", "value": 1.5}]
    ),
    "there is no buffer 'z': the file has x, y": table(parameters=[{"buffer": "z"}, *PARAMETERS[1:]]),
    "value 300 does not fit u8": table(parameters=[*PARAMETERS[:2], {"type": "u8", "value": 300}]),
    "unknown key offset": table(parameters=[*PARAMETERS[:2], {"type": "u32", "value": 1, "offset": 2}]),
    "dtype is 'f17', but must be one of f16": table(buffers={**BUFFERS, "x": {**BUFFERS["x"], "dtype": "f17"}}),
    "a buffer that is only read needs values": table(
        buffers={**BUFFERS, "x": {**BUFFERS["x"], "init": "uninitialised"}}
    ),
    "init is 'uniform', but must be one of integers": table(
        buffers={**BUFFERS, "x": {**BUFFERS["x"], "init": "uniform"}}
    ),
    "strides has 2 numbers, and shape 1": table(buffers={**BUFFERS, "x": {**BUFFERS["x"], "strides": [1, 1]}}),
    "there is no buffer [1]": table(parameters=[{"buffer": [1]}, *PARAMETERS[1:]]),
    "init is 1000": table(buffers={**BUFFERS, "x": {**BUFFERS["x"], "init": 10**400}}),
    "grid 65536x65536x1 has too many CTAs": table(grid=[65536, 65536]),  # 2^32, which is 0 in 32 bits
    "the buffers take 8,589,934,": table(buffers={**BUFFERS, "x": {**BUFFERS["x"], "shape": [2**31 - 1]}}),
    "the buffers take 4,294,967,552 B": table(
        buffers={**BUFFERS, "x": {**BUFFERS["x"], "shape": [2**20, 2**10], "strides": [0, 0]}}
    ),
    "dynamic_smem_bytes is 300000": table(dynamic_smem_bytes=300000),
    "the limit is 232448 B": table(dynamic_smem_bytes=232448),
    "the PTX has no kernel other: its kernels are mirror": table(kernel="other"),
    "a is 'x', but must be a buffer with its dimensions": table(reference={"a": "x", "b": "x[k]", "d": "y[m]"}),
    "the first extent of box, 8, is 32 B; it must be as long as the swizzle, 64 B": table(
        tensor_maps={"t": {"buffer": "x", "box": [8], "swizzle": 64}}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_mismatched_launch_file_gives_a_one_line_error(message):
    with pytest.raises(RequestError) as error:
        description_of(REFUSED[message], parse(MIRROR), "mirror.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("mirror.toml: ")
    assert "\n" not in str(error.value)


def test_cubin_is_rejected_with_the_command_for_ptx(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_bytes(b"\x7fELF\x02")
    with pytest.raises(RequestError, match="machine code, and sanitize reads PTX: compile with `nvcc -ptx`"):
        read_module(path)


def test_source_is_rejected_with_the_command_for_ptx(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text("__global__ void kernel() {}")
    with pytest.raises(RequestError, match="CUDA C.., and sanitize reads PTX: compile with `nvcc -ptx"):
        read_module(path)


def test_the_first_launch_file_is_complete_and_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "mirror.ptx"
    path.write_text(MIRROR)
    assert hgemm(capsys, "sanitize", path, "--init")[0] == 0
    written = (tmp_path / "mirror.toml").read_text()
    found = read_description(tmp_path / "mirror.toml", parse(MIRROR))
    assert (found.block, [*found.buffers]) == ((64, 1, 1), ["p0", "p1"])
    assert written == launch_file(path, parse(MIRROR).kernel(), parse(MIRROR))
    status, _, err = hgemm(capsys, "sanitize", path, "--init")
    assert status == 2 and "exists: remove it" in err
    _, out, _ = hgemm(capsys, "sanitize", path, "--init", "--launch", tmp_path / "other.toml")
    assert out.endswith(f"then run `hgemm sanitize {path} --launch {tmp_path / 'other.toml'}`\n")


STRUCT = """
struct Rows { float const* x; float* y; int count; float scale; };
extern "C" __global__ void scaled(Rows rows) {
  if (threadIdx.x < rows.count) rows.y[threadIdx.x] = rows.scale * rows.x[threadIdx.x];
}
"""


def test_the_first_launch_file_has_the_fields_of_a_struct(tmp_path):
    path, text = tmp_path / "scaled.ptx", compile_text(STRUCT, "scaled.cu", "compute_80").rstrip(b"\0").decode()
    module = parse(text)
    file = tmp_path / "scaled.toml"
    file.write_text(launch_file(path, module.kernel(), module))
    (found,) = read_description(file, module).parameters
    assert found.size_bytes == 24
    assert [(at, type(one).__name__, getattr(one, "type", "")) for at, one in found.fields] == [
        (0, "Pointer", ""),
        (8, "Pointer", ""),
        (16, "Scalar", "u32"),
        (20, "Scalar", "f32"),
    ]


BY_ADDRESS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scaled(.param .align 8 .b8 rows[24])
{
  .reg .b32 %r<3>; .reg .f32 %f<2>; .reg .b64 %rd<7>;
  mov.b64 %rd1, rows;
  add.s64 %rd2, %rd1, 16;
  ld.param.v2.u32 {%r1, %r2}, [%rd2];
  ld.param.u64 %rd3, [%rd2+-16];
  ld.param.u64 %rd4, [%rd1+8];
  cvta.to.global.u64 %rd5, %rd3;
  cvta.to.global.u64 %rd6, %rd4;
  ld.global.f32 %f1, [%rd5];
  st.global.f32 [%rd6], %f1;
  ret;
}
"""


def test_the_first_launch_file_follows_the_address_of_a_struct(tmp_path):
    module, file = parse(BY_ADDRESS), tmp_path / "scaled.toml"
    file.write_text(launch_file(tmp_path / "scaled.ptx", module.kernel(), module))
    (rows,) = read_description(file, module).parameters
    kinds = {at: "pointer" if isinstance(one, Pointer) else one.type for at, one in rows.fields}
    assert kinds == {0: "pointer", 8: "pointer", 16: "u32", 20: "u32"}
