// The atoms of WMMA: fragments of 16 x 16 that a warp loads and multiplies.
#pragma once

#include <hgemm/atoms.cuh>

#if defined(HGEMM_HOST)
#include <hgemm/atoms_wmma_host.hpp>
#else
#include <hgemm/atoms_wmma_device.cuh>
#endif
