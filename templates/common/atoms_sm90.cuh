// The atoms of sm_90 and later: TMA, mbarriers, clusters, and wgmma.
#pragma once

#include <common/atoms.cuh>

#if defined(HGEMM_HOST)
#include <common/atoms_sm90_host.hpp>
#else
#include <common/atoms_sm90_device.cuh>
#endif
