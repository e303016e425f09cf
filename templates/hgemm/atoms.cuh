// The atom layer: the only door between a kernel and the machine. Kernels touch memory, other threads and the tensor
// cores through these functions alone, so another implementation of them can run and judge the same kernel text.
#pragma once

#if defined(HGEMM_HOST)
#include <hgemm/atoms_host.hpp>
#else
#include <hgemm/atoms_device.cuh>
#endif
