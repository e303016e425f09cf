/* The kernels' code, as it lies in images.bin; HGEMM_IMAGES is that file's path as a string. */
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".globl hgemm_images\n"
    ".hidden hgemm_images\n"
    ".type hgemm_images, %object\n"
    "hgemm_images:\n"
    ".incbin \"" HGEMM_IMAGES "\"\n"
    ".size hgemm_images, . - hgemm_images\n"
    ".popsection\n");

typedef int hgemm_images_stand_above; /* ISO C has no empty translation unit */
