"""Kernels on TMA, mbarriers and wgmma, with a producer and consumer warpgroups: for sm_90a."""
