"""examples/link: plain C that runs an emitted kernel, built here, and run on a driver that only writes down what it is told."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, _no_gpu, made

from generator.catalog import load_catalog
from generator.pipeline import Settings

SOURCE = ROOT / "examples" / "link" / "multiply.c"
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror")
NO_GPU = 77
DRIVER = r"""
/* A driver without a GPU: memory is the host's, and a launch is done by the CPU after its arguments were written down. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char kernel[512];
static int smem;
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &kernel[device]; return 0; }
int cuCtxSetCurrent(void *context) { return context == NULL; }
int cuModuleLoadData(void **module, char const *image) { *module = kernel; return strncmp(image, "image", 5) ? 200 : 0; }
int cuModuleGetFunction(void **function, void *module, char const *name) {
  *function = strcpy(module, name);
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { smem = value; return function != kernel || attribute != 8; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { *address = (uint64_t)(uintptr_t)malloc(bytes); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, void const *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuGetErrorString(int status, char const **text) { *text = status == 200 ? "no image" : "refused"; return 0; }

static int whole(uint16_t half) { return (half & 0x7FFF) == 0 ? 0 : (half >> 15 ? -1 : 1) * ((half & 0x7FFF) == 0x4000 ? 2 : 1); }
static uint16_t half(int value) { /* of magnitudes below 2048 */
  unsigned magnitude = (unsigned)abs(value), exponent = 25;
  if (value == 0) return 0;
  for (; magnitude < 1024; magnitude *= 2) --exponent;
  return (uint16_t)((value < 0) << 15 | exponent << 10 | (magnitude & 1023));
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  uint64_t words[15];
  int32_t sizes[4];
  FILE *file = fopen(getenv("LAUNCHED"), "wb");
  fwrite(parameters[0], 1, 144, file);
  fclose(file);
  printf("%s %u %u %u %u %u %u %u %d\n", kernel, gx, gy, gz, bx, by, bz, shared, smem);
  memcpy(words, parameters[0], sizeof words);
  memcpy(sizes, (char *)parameters[0] + 120, sizeof sizes);
  for (int i = 0; i < sizes[0]; ++i)
    for (int j = 0; j < sizes[1]; ++j) {
      int sum = 0;
      for (int k = 0; k < sizes[2]; ++k)
        sum += whole(((uint16_t *)(uintptr_t)words[0])[i * (int64_t)words[6] + k]) *
               whole(((uint16_t *)(uintptr_t)words[1])[j * (int64_t)words[7] + k]);
      if (!getenv("LAZY") || i) ((uint16_t *)(uintptr_t)words[3])[i * (int64_t)words[9] + j] = half(sum);
    }
  return function != kernel || stream != NULL || extra != NULL;
}
"""


def built(source: Path, program: Path, *flags: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, cc, here: the example is not built")
    done = subprocess.run([compiler, *FLAGS, *flags, source, "-o", program, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("example") / "multiply")


@pytest.fixture(scope="module")
def on_paper(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the driver is one that writes down what it is told."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    built(folder / "driver.c", folder / "libcuda.so.1", "-shared", "-fPIC")
    (folder / "image").write_text("image")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "LAUNCHED": str(folder / "launched")}


def run(program: Path, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


def test_the_numbers_in_it_are_those_of_the_record(program: Path, settings: Settings) -> None:
    """And where there is a GPU the product is right; elsewhere it says so and leaves with 77, which means skipped."""
    text = SOURCE.read_text(encoding="ascii")
    (symbol,) = re.findall(r'"(hgemm_\w+)"', text)
    (general,) = load_catalog(["general"])
    (outcome,) = made({**general, "arch": "sm_80", "layout": "tn"}, settings)
    folder = settings.library.folder / symbol
    record = json.loads((folder / "record.json").read_text())
    assert outcome.error == "" and record["symbol"] == symbol
    launch = record["launch"]
    tile_m, tile_n = launch["grid"]["tile_m"], launch["grid"]["tile_n"]
    assert (
        f"TILE_M = {tile_m}, TILE_N = {tile_n}, THREADS = {launch['threads']}, SMEM_BYTES = {launch['smem_bytes']}"
        in text
    )
    assert launch["grid"]["rule"] == "one_tile" and launch["cluster"] == [1, 1, 1]

    done = run(program, folder / "kernel.ptx")
    if _no_gpu():
        assert done.returncode == NO_GPU and done.stdout.startswith("no NVIDIA GPU here") and not done.stderr
    else:
        assert done.returncode == 0 and done.stdout == "200x136x96: 0 of 27200 elements wrong\n", done.stderr


def test_the_driver_gets_what_python_would_pack(program: Path, on_paper: dict[str, str]) -> None:
    done = run(program, Path(on_paper["LD_LIBRARY_PATH"]) / "image", env=on_paper)
    launched, verdict = done.stdout.splitlines()
    assert launched.startswith("hgemm_sm80_tn_") and launched.split()[1:] == "4 1 1 128 1 1 49152 49152".split()
    assert (done.returncode, verdict) == (0, "200x136x96: 0 of 27200 elements wrong")
    block = Path(on_paper["LAUNCHED"]).read_bytes()
    a, b, c, d, bias, workspace, *numbers = struct.unpack("<6Q4q5q4i2f", block)
    assert a and b and d and (c, bias, workspace) == (0, 0, 0)
    assert numbers == [96, 96, 0, 136, 0, 0, 0, 0, 0, 200, 136, 96, 1, 1.0, 0.0]


def test_a_wrong_product_is_found(program: Path, on_paper: dict[str, str]) -> None:
    done = run(program, Path(on_paper["LD_LIBRARY_PATH"]) / "image", env={**on_paper, "LAZY": "1"})
    assert done.returncode == 1 and done.stdout.splitlines()[1].endswith(": 136 of 27200 elements wrong")


def test_misuse_and_a_refusal_are_told(program: Path, on_paper: dict[str, str], tmp_path: Path) -> None:
    for arguments in ([], [tmp_path / "absent"]):
        done = run(program, *arguments)
        assert done.returncode == 2 and done.stderr.startswith("usage: multiply FILE")
    (tmp_path / "other").write_text("no kernel")
    done = run(program, tmp_path / "other", env=on_paper)
    assert done.returncode == 1 and done.stderr.startswith("multiply: cannot load the image")
