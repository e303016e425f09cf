/* Embeds images.bin, the code of all kernels. HGEMM_IMAGES is the path of that file as a string. */
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

typedef int hgemm_images_are_in_the_asm; /* ISO C does not allow an empty translation unit */
