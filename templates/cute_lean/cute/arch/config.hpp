// Replaces CuTe's <cute/arch/config.hpp>: which of the atoms used here the target architecture has. See cute/config.hpp.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CUTE_ARCH_TMA_SM90_ENABLED
#define CUTE_ARCH_STSM_SM90_ENABLED
#endif
