// The atom layer: kernels touch memory, other threads and tensor cores through these functions only. So the CPU executor can
// run the same kernel source with another implementation of them.
#pragma once

#if defined(HGEMM_HOST)
#include <common/atoms_host.hpp>
#else
#include <common/atoms_device.cuh>
#endif
