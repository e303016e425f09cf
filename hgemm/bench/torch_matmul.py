"""The torch.matmul baseline, with torch's default choice of kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hgemm.bench.measure import BASELINE
from hgemm.bench.operands import Operands
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.dtypes import stored_dtype
from hgemm.errors import DeviceError, HgemmError


class TorchError(HgemmError):
    """torch raised an error."""


class Torch:
    """torch on a device. The device's context must be current."""

    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError:
            raise DeviceError("torch is not installed: pip install torch, or use another --baseline") from None
        self.torch, self.device, self.name = torch, device, f"torch {torch.__version__}"

    def propose(self, work: Work, count: int) -> TorchMatmul:
        """Return torch's only contender."""
        return TorchMatmul(self.torch, self.device.ordinal)

    def free(self) -> None:
        pass


@dataclass
class TorchMatmul:
    """Both the proposal and its only contender."""

    torch: Any
    ordinal: int
    name: str = "torch"
    side: str = BASELINE

    @property
    def contenders(self) -> list[TorchMatmul]:
        return [self]

    def bind(self, operands: Operands, stream: int) -> list[Callable[[], None]]:
        """Return a launch for each set. A launch raises TorchError if torch does not support the types."""
        matmul = self.torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_fp16_accumulation = operands.work.acc == "f16"
        matmul.allow_tf32 = operands.work.dtype_a == "tf32"
        return [self._launch(operands, at, stream) for at in range(operands.sets)]

    def _launch(self, operands: Operands, at: int, stream: int) -> Callable[[], None]:
        work, torch_stream = operands.work, self.torch.cuda.ExternalStream(stream, device=self.ordinal)
        a, b, d = (self._tensor(operands, name, at) for name in "abd")
        a = a if work.layout[0] == "t" else a.transpose(-1, -2)
        b = b if work.layout[1] == "t" else b.transpose(-1, -2)

        def launch() -> None:
            try:
                with self.torch.cuda.stream(torch_stream):
                    self.torch.matmul(a, b, out=d)
            except RuntimeError as error:
                raise TorchError(" ".join(str(error).split())) from None

        return launch

    def _tensor(self, operands: Operands, name: str, at: int) -> Any:
        """Return one operand of a set as stored, without a copy. Shapes: (rows, columns), or (batch, rows, columns)."""
        place = operands.places[name]
        pointer = operands.blocks[name] + at * place.pitch * place.item
        memory = _Memory(pointer, place.batch * place.stride * place.item)
        dtype = {"f16": self.torch.float16, "bf16": self.torch.bfloat16, "f32": self.torch.float32}[
            stored_dtype(place.dtype)
        ]
        flat = self.torch.as_tensor(memory, device=f"cuda:{self.ordinal}").view(dtype)
        shape = (place.rows, place.columns)
        return flat.view(place.batch, *shape) if place.batch > 1 else flat.view(shape)

    def free(self) -> None:
        pass


class _Memory:
    """Device memory as an object that torch can wrap."""

    def __init__(self, pointer: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }
