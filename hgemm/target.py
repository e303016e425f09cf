"""A device as selection sees it: what it runs, how many SMs it has, and how much shared memory a CTA may take."""

from __future__ import annotations

from dataclasses import dataclass

from hgemm.device import Device
from hgemm.errors import RequestError

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One GPU by its numbers; it need not be here."""

    capability: tuple[int, int]
    sms: int
    smem_bytes_per_cta: int

    @property
    def number(self) -> int:
        """Return 90 for compute capability 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def name(self) -> str:
        return f"sm_{self.number}"

    @classmethod
    def of(cls, device: Device) -> Target:
        """Return a device that is here."""
        return cls(device.capability, device.sms, device.smem_bytes_per_cta)

    @classmethod
    def typical(cls, arch: str, sms: int = 0) -> Target:
        """Return a common GPU of an architecture such as sm_89, or one with so many SMs.

        Raises: RequestError where the architecture is not known.
        """
        number = "".join(digit for digit in arch if digit.isdigit())
        if int(number or 0) not in TYPICAL:
            raise RequestError(f"arch {arch!a} is unknown: use {', '.join(f'sm_{known}' for known in TYPICAL)}")
        usual_sms, smem_kib = TYPICAL[int(number)]
        return cls(divmod(int(number), 10), sms or usual_sms, smem_kib * KIB)


TYPICAL = {
    75: (40, 64),
    80: (108, 163),
    86: (84, 99),
    87: (16, 163),
    88: (16, 99),
    89: (142, 99),
    90: (132, 227),
    100: (148, 227),
    103: (160, 227),
    110: (20, 227),
    120: (170, 99),
    121: (48, 99),
}
"""SMs, and KiB of shared memory a CTA, of T4, A100, A40, Orin, a later one, L40S, H100 and H200, B200, B300, Thor, RTX 5090, GB10.

Source: CUDA Programming Guide 13.x, section 5.1.3, table 31 (shared memory); the products' data sheets (SMs).
"""
