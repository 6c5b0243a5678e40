/* The archive's memmove, which precedes the C library's on the command line. */
#include <string.h>

#include "check.h"

#define BYTES 40

int main(void)
{
    for (int from = 0; from < BYTES; from++) {
        for (int to = 0; to < BYTES; to++) {
            for (int length = 0; length <= BYTES; length++) {
                unsigned char bytes[2 * BYTES], expected[2 * BYTES];
                void *(*volatile move)(void *, const void *, size_t) = memmove;
                for (int index = 0; index < 2 * BYTES; index++) {
                    bytes[index] = expected[index] = (unsigned char)index;
                }
                for (int index = 0; index < length; index++) {
                    expected[to + index] = (unsigned char)(from + index);
                }
                CHECK(move(bytes + to, bytes + from, (size_t)length) == bytes + to);
                CHECK(memcmp(bytes, expected, sizeof bytes) == 0);
            }
        }
    }
    printf("all as it should be\n");
    return 0;
}
