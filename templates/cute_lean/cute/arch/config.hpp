// Stands in for CuTe's <cute/arch/config.hpp>: which atoms the architecture at hand has, of those used here. See
// cute/config.hpp.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CUTE_ARCH_TMA_SM90_ENABLED
#define CUTE_ARCH_STSM_SM90_ENABLED
#endif
