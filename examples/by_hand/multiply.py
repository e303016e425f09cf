"""Loads one kernel with cuda.bindings, without the package hgemm, multiplies two matrices and checks the result.

    generate --arch sm_80 --tile 128x128x32
    python examples/by_hand/multiply.py emitted/hgemm_sm80_*128x128x32*

It reads the launch from the kernel's record.json. Types: A, B and D in f16. Exit status 77: this machine has no NVIDIA GPU.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

NO_GPU = 77
NO_BINARY_FOR_GPU = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
COUNTER_BYTES = 65536 * 4
ELEMENT_TYPES = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "tf32": "TFLOAT32"}
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
M, N, K = 304, 200, 136  # multiples of 8 elements, so that every kernel's alignment is met


def call(name: str, *arguments: Any) -> Any:
    """Call the driver. Raises RuntimeError if it fails."""
    status, *values = getattr(driver, name)(*arguments)
    if int(status):
        raise RuntimeError(f"{name} returned {int(status)}")
    return values[0] if values else None


# ---- Grid and workspace ----


def tiles(launch: dict, m: int, n: int) -> int:
    """Return the CTA tiles of D, in whole clusters."""
    rows, columns = launch.get("cluster_shape", (1, 1))
    grid = launch["grid"]
    return -(-m // (grid["tile_m"] * rows)) * -(-n // (grid["tile_n"] * columns)) * rows * columns


def splits_of(launch: dict) -> int:
    """Return the CTAs that share the k of a tile. Rule launch leaves it to the caller: here, 1."""
    return 1 if launch["grid"]["rule"] == "launch" else launch["grid"]["splits"]


def resident_ctas(launch: dict, function: Any, device: Any) -> int:
    """Return the CTAs that the device holds at a time, in whole clusters."""
    sms = call("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
    ctas = launch["cluster"][0]
    if ctas > 1:
        return ctas * call("cuOccupancyMaxActiveClusters", function, config_of(launch, ctas * sms))
    found = ("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, launch["threads"], launch["smem_bytes"])
    return sms * call(*found)


def grid_x(launch: dict, m: int, n: int, batch: int, resident: int) -> int:
    """Return grid.x. grid.y and grid.z are 1."""
    grid = launch["grid"]
    if grid["rule"] == "stream_k":
        return min(resident, grid["max_ctas"])
    work = tiles(launch, m, n) * batch * splits_of(launch)
    return min(work, resident) if grid.get("persistent", grid["rule"] == "persistent") else work


def workspace_bytes(record: dict, m: int, n: int, batch: int) -> int:
    launch, partial = record["launch"], record["traits"]["workspace"].get("partial_bytes", 0)
    grid = launch["grid"]
    if not partial or grid["rule"] == "launch":
        return 0
    parts = 2 * grid["max_ctas"] if grid["rule"] == "stream_k" else tiles(launch, m, n) * batch * grid["splits"]
    return COUNTER_BYTES + parts * partial


# ---- TMA descriptors ----


def tensor_map(rule: dict, address: int, rows: int, columns: int, leading: int, element_bytes: int) -> bytes:
    """Return the 128 bytes that describe a matrix of `rows` rows of `columns` contiguous elements, without a batch."""
    element = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{ELEMENT_TYPES[rule['element']]}")
    swizzle = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[rule['swizzle_bytes']]}")
    extents = [driver.cuuint64_t(extent) for extent in (columns, rows, 1)]
    row_bytes = leading * element_bytes
    strides = [driver.cuuint64_t(row_bytes)] * 2
    box = [driver.cuuint32_t(extent) for extent in rule["box"]]
    interleave = driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    promoted = 256 if row_bytes % 256 == 0 else 128  # 256 is slower where rows start within 256 bytes
    promotion = getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{promoted}B")
    fill = driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    steps = [driver.cuuint32_t(1)] * 3
    place = (element, 3, address, extents, strides, box, steps, interleave, swizzle, promotion, fill)
    encoded = call("cuTensorMapEncodeTiled", *place)  # owns the bytes
    return ctypes.string_at(encoded.getPtr(), 128)


def edge_maps(rule: dict, address: int, rows: int, columns: int, tile: int) -> list[bytes]:
    """Return three maps: for whole boxes, for the last box of a tile, and for the last k-tile.

    Rows of the first two extend beyond the matrix up to whole tiles, but at most to the end of the next row.
    """
    extended = min(-(-columns // tile) * tile, 2 * columns)
    width = tile % rule["box"][0]
    narrow = {**rule, "box": [width, *rule["box"][1:]]}
    return [
        tensor_map(rule, address, rows, extended, columns, 2),
        tensor_map(narrow, address, rows, extended, columns, 2) if width else bytes(128),
        tensor_map(rule, address, rows, columns, columns, 2),
    ]


# ---- Launch ----


def config_of(launch: dict, grid: int) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = launch["threads"], 1, 1
    config.sharedMemBytes, config.hStream = launch["smem_bytes"], driver.CUstream(0)
    return config


def aligned(content: bytes) -> tuple[ctypes.Array, int]:
    """Return memory with this content and its address, aligned to 64 bytes as a CUtensorMap is."""
    block = ctypes.create_string_buffer(len(content) + 64)
    address = -(-ctypes.addressof(block) // 64) * 64
    ctypes.memmove(address, content, len(content))
    return block, address


def load(folder: Path, record: dict) -> Any:
    status, module = driver.cuModuleLoadData((folder / "kernel.cubin").read_bytes())
    if int(status) == NO_BINARY_FOR_GPU:  # a GPU of a later architecture: let the driver compile the PTX
        module = call("cuModuleLoadData", (folder / "kernel.ptx").read_bytes() + b"\0")
    elif int(status):
        raise RuntimeError(f"cuModuleLoadData returned {int(status)}")
    function = call("cuModuleGetFunction", module, record["symbol"].encode())
    name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, name, record["launch"]["smem_bytes"])
    return function


def upload(array: np.ndarray) -> int:
    address = int(call("cuMemAlloc", array.nbytes))
    call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
    return address


def multiply(folder: Path, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a b, computed by the kernel in a folder. Shapes: a (m, k), b (k, n)."""
    record = json.loads((folder / "record.json").read_text())
    launch, (by_rows, by_columns) = (
        record["launch"],
        (letter == one for letter, one in zip(record["spec"]["layout"], "tn")),
    )
    (m, k), n = a.shape, b.shape[1]
    a_stored = np.ascontiguousarray(a if by_rows else a.T)
    b_stored = np.ascontiguousarray(b.T if by_columns else b)
    d = np.zeros((m, n), "f2")
    at_a, at_b, at_d = map(upload, (a_stored, b_stored, d))
    size = workspace_bytes(record, m, n, 1)
    workspace = upload(np.zeros(size, "u1")) if size else 0  # its counters are zero before the first launch

    pointers, leading = (at_a, at_b, 0, at_d, 0, workspace), (a_stored.shape[1], b_stored.shape[1], 0, n)
    at_launch = (1, 0, 8, 0)  # one split, no whole tiles, groups of 8 rows of tiles, no bias
    problem = struct.pack("<6Q4q5q4i2f2IiI", *pointers, *leading, *(0,) * 5, m, n, k, 1, 1.0, 0.0, *at_launch)
    parameters = [aligned(problem)]
    rules = {rule["operand"]: rule for rule in launch.get("tensor_maps", ())}
    if rules:
        places = {"a": (at_a, *a_stored.shape), "b": (at_b, *b_stored.shape), "d": (at_d, m, n)}
        has_edges = any(rule.get("edge") for rule in rules.values())
        maps = []
        for name, place in places.items():
            rule = rules.get(name)
            if rule and rule.get("edge"):
                maps += edge_maps(rule, *place, launch["grid"]["tile_m" if name == "a" else "tile_n"])
                continue
            maps.append(tensor_map(rule, *place, place[2], 2) if rule else bytes(128))
            if has_edges and name != "d":
                maps += [bytes(128)] * 2  # not used
        parameters.append(aligned(b"".join(maps)))

    function = load(folder, record)
    grid = grid_x(launch, m, n, 1, resident_ctas(launch, function, call("cuDeviceGet", 0)))
    addresses = (ctypes.c_void_p * len(parameters))(*(address for _, address in parameters))
    call("cuLaunchKernelEx", config_of(launch, grid), function, ctypes.addressof(addresses), 0)
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH", d.ctypes.data, at_d, d.nbytes)
    for address in (at_a, at_b, at_d, *([workspace] if workspace else ())):
        call("cuMemFree", address)
    return d


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(f"usage: multiply.py FOLDER of one kernel; got {len(arguments)} arguments", file=sys.stderr)
        return 1
    folder = Path(arguments[0])
    try:
        call("cuInit", 0)
    except RuntimeError as error:
        print(f"no NVIDIA GPU: {error}")
        return NO_GPU
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, shape).astype("f2") for shape in ((M, K), (K, N)))
    wrong = int((multiply(folder, a, b) != a.astype("f8") @ b.astype("f8")).sum())
    print(f"{M}x{N}x{K} {folder.name}: {wrong} of {M * N} elements wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
