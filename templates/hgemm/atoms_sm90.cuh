// The atoms of sm_90a: tensor memory accelerator (TMA), mbarriers, clusters, and products of a warpgroup (wgmma).
#pragma once

#include <hgemm/atoms.cuh>

#if defined(HGEMM_HOST)
#include <hgemm/atoms_sm90_host.hpp>
#else
#include <hgemm/atoms_sm90_device.cuh>
#endif
