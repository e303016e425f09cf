"""The cut of CuTe's wgmma header: the atom that a kernel names and nothing else."""

import pytest

from generator.build.compile import ATOMS, MORE_ATOMS, only_named_atom
from generator.build.toolchain import headers, templates_folder
from generator.errors import HgemmError

WHOLE = headers("wgmma/kernel.cuh", templates_folder()).files


def texts(files):
    return {header.name: header.text for header in files}


@pytest.mark.parametrize("kind", ["F32F16F16", "F32BF16BF16", "F16F16F16"])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_each_shape_is_found_and_left_alone(n, kind):
    name = f"64x{n}x16_{kind}_SS"
    cut = texts(only_named_atom(WHOLE, f"struct Policy {{\n  HGEMM_WGMMA({name});"))
    text = cut[ATOMS].decode()
    assert text.count("struct MMA_") == text.count(f"struct MMA_{name}\n") == 1
    assert text.count("{") == text.count("}")
    assert f"m64n{n}k16" in text
    assert MORE_ATOMS not in cut


def test_other_headers_stay_as_they_are():
    cut = texts(only_named_atom(WHOLE, "  HGEMM_WGMMA(64x256x16_F32F16F16_SS);"))
    rest = {name: text for name, text in texts(WHOLE).items() if name not in (ATOMS, MORE_ATOMS)}
    assert {name: text for name, text in cut.items() if name != ATOMS} == rest


def test_a_kernel_without_wgmma_gets_no_atom():
    cut = texts(only_named_atom(WHOLE, "struct Policy {};"))
    assert b"struct MMA_" not in cut[ATOMS] and b"warpgroup_wait" in cut[ATOMS]


def test_headers_without_wgmma_stay_as_they_are():
    files = headers("mma_sync/kernel.cuh", templates_folder()).files
    assert only_named_atom(files, "struct Policy {};") == files


def test_an_unknown_atom_is_named():
    with pytest.raises(HgemmError, match="no wgmma atom MMA_64x300x16_F32F16F16_SS"):
        only_named_atom(WHOLE, "  HGEMM_WGMMA(64x300x16_F32F16F16_SS);")
