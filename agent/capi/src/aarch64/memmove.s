// memmove for kernels that have none. A member of its own in the archive: the linker takes it only where nothing
// else defines the name, and another definition wins over this one.

    .text
    .weak memmove
    .type memmove, %function
memmove:                            // x0: to, x1: from, x2: bytes
    sub x3, x0, x1
    cmp x3, x2
    b.lo 2f                         // the end of what is to be read would be overwritten
    mov x4, x0
    add x5, x1, x2
1:  cmp x1, x5
    b.eq 3f
    ldrb w6, [x1], #1
    strb w6, [x4], #1
    b 1b
2:  cbz x2, 3f
    sub x2, x2, #1
    ldrb w6, [x1, x2]
    strb w6, [x0, x2]
    b 2b
3:  ret
    .size memmove, . - memmove
