"""The operator torch.ops.hgemm.matmul and layers that use it, for eager and compiled models. Needs torch.

import hgemm.torch
hgemm.torch.use("emitted")
y = hgemm.torch.linear(x, weight, activation="relu")
hgemm.torch.patch(model)
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("hgemm.torch needs torch: pip install torch", name="torch") from None

from hgemm.torch.aten import Override, overridden, override
from hgemm.torch.epilogue import backward_epilogue, fused, training_epilogue
from hgemm.torch.layers import Linear, Patch, patch
from hgemm.torch.operator import external_matmul, linear, matmul, use, used_library

__all__ = [
    "Linear",
    "Override",
    "Patch",
    "backward_epilogue",
    "external_matmul",
    "fused",
    "linear",
    "matmul",
    "overridden",
    "override",
    "patch",
    "training_epilogue",
    "use",
    "used_library",
]
