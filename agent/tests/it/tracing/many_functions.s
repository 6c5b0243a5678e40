/* 250 functions of 64 bytes with four probes each, an entry and three exits: the number plus one. */
.text
.balign 64
.globl many_functions
.type many_functions,@function
many_functions:
.rept 250
.balign 64
push %rbx; test $1, %dil; je 1f; lea 1(%rdi), %rax; pop %rbx; ret
1: test $2, %dil; je 2f; lea 1(%rdi), %rax; pop %rbx; ret
2: lea 1(%rdi), %rax; pop %rbx; ret
.endr
.globl many_functions_end
many_functions_end:
.size many_functions, .-many_functions
