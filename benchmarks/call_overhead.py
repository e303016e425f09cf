"""What a product costs the host in Python over a bare cuLaunchKernelEx of the same kernel: microseconds a call.

    python benchmarks/call_overhead.py --library emitted [--json FILE]

Rounds of calls with each way in turn, on tensors of torch, few enough that the GPU's queue never fills; medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hgemm  # noqa: E402
from hgemm.device import driver, open_device  # noqa: E402

ROUNDS, CALLS = 61, 200
SHAPES = ((64, 256, 256), (1, 128, 128))


def ways(library: hgemm.Library, m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name: each launches the same kernel once."""
    import torch

    import hgemm.torch

    hgemm.torch.use(library)
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    wt, out = w.t(), torch.empty(m, n, device="cuda", dtype=torch.float16)
    others = [torch.empty_like(out) for _ in range(8)]
    plan = library.plan(hgemm.Problem(m, n, k))
    plan(x, wt, out)
    bound = plan.bind(x, wt, out)
    ((launcher, *_),) = [[*plan._launchers.values()]]
    (slot,) = launcher._free
    launch, config, handle, address = launcher._launch_kernel, slot.config, launcher._handle, slot.address
    turn = iter(range(1 << 62))
    return {
        "bare": lambda: launch(config, handle, address, 0),
        "plan": lambda: plan(x, wt, out),
        "plan.bind": bound,
        "matmul": lambda: library.matmul(x, wt, out),
        "matmul, other addresses": lambda: library.matmul(x, wt, others[next(turn) % len(others)]),
        "matmul, new tensor": lambda: library.matmul(x, wt),
        "torch.ops.hgemm.matmul": lambda: torch.ops.hgemm.matmul(x, wt),
        "torch.mm, out given": lambda: torch.mm(x, wt, out=out),
        "torch.mm": lambda: torch.mm(x, wt),
    }


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of a call, by name. Units: microseconds."""
    device, times = open_device(), {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            device.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
            device.synchronize()
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", default="emitted")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    import torch

    library = hgemm.open(wanted.library)
    version = int(driver().cuDriverGetVersion()[1])
    found = {
        "device": open_device().name,
        "driver": version,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    found |= {"date": time.strftime("%Y-%m-%d"), "unit": "us a call", "shapes": []}
    with torch.no_grad():
        for m, n, k in SHAPES:
            calls = ways(library, m, n, k)
            times = measure(calls)
            found["shapes"].append({"m": m, "n": n, "k": k, "times": times})
            print(f"{m}x{n}x{k}")
            for name, value in times.items():
                print(f"  {name:26} {value:7.2f} us  {value - times['bare']:+6.2f} over bare")
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
