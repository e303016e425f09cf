"""Sources that the compiler must reject."""

from __future__ import annotations

from dataclasses import replace

import pytest

from generator.build.compile import compile_kernel
from generator.build.emit import EmittedKernel
from generator.build.toolchain import headers, templates_folder
from generator.errors import BuildError


def assert_refused_by_the_compiler(kernel: EmittedKernel, right: str, wrong: str) -> None:
    """Compile a kernel with `wrong` for the first `right` of its text: an assertion in the text must stop it."""
    assert right in kernel.source
    altered = replace(kernel, source=kernel.source.replace(right, wrong, 1))
    with pytest.raises(BuildError) as error:
        compile_kernel(altered, headers(kernel.entry_header, templates_folder()))
    assert "static assertion failed" in error.value.log
