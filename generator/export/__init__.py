"""From a library's folder to a C library: images, dispatch table, sources, builds, and the packages that find them."""
