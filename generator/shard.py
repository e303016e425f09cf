"""One part of a set of variants, for machines that share the work and do not talk to one another."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from generator.errors import RequestError

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """The part `number` of `count`, counted from 1.

    A hash of its symbol puts a variant into a part. So parts of a large sweep are of about equal size and cost whatever its
    order, and a variant that is added or left out moves no other.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `2/16`. Raises: RequestError where there is no such part."""
        match = _SHARD.fullmatch(text.strip())
        number, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= count:
            raise RequestError(f"--shard {text} is no part: write i/n with 1 <= i <= n, such as 2/16")
        return cls(number, count)

    def takes(self, symbol: str) -> bool:
        """Tell whether a variant belongs to this part."""
        return int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
