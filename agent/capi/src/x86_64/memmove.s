# memmove for kernels that have none (Mini-OS without its C library). A member of its own in the archive:
# the linker takes it only where nothing else defines the name, and another definition wins over this one.

    .text
    .weak memmove
    .type memmove, @function
memmove:                            # rdi: to, rsi: from, rdx: bytes
    movq %rdi, %rax
    movq %rdx, %rcx
    movq %rdi, %r8
    subq %rsi, %r8
    cmpq %rdx, %r8
    jb 1f                           # the end of what is to be read would be overwritten
    rep movsb
    ret
1:  testq %rcx, %rcx
    jz 2f
    movb -1(%rsi,%rcx), %r8b
    movb %r8b, -1(%rdi,%rcx)
    decq %rcx
    jmp 1b
2:  ret
    .size memmove, . - memmove
