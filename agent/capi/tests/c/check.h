/* Checks that print their line. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unikprof.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* Checks that the calling function was called with the stack aligned, as its compiler may rely on. */
#define CHECK_STACK() CHECK((uintptr_t)__builtin_frame_address(0) % 16 == 0)

/* Checks the code that a call returns; prints the text of a wrong one. */
#define CHECK_CODE(call, expected)                                             \
    do {                                                                       \
        int64_t code_ = (call);                                                \
        if (code_ != (expected)) {                                             \
            fprintf(stderr, "%s:%d: %s is %lld (%s), not %s\n", __FILE__, __LINE__, #call, \
                    (long long)code_, unikprof_error_text((int32_t)code_), #expected); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#endif
