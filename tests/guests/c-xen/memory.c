/* The four functions that a compiler calls by itself, and that the agent's archive needs, and two for texts. They use no SSE
 * registers: the agent copies inside the upcall, where these are not saved. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t length)
{
    void *answer = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
    return answer;
}

void *memset(void *to, int byte, size_t length)
{
    void *answer = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(length) : "a"(byte) : "memory");
    return answer;
}

void *memmove(void *to, const void *from, size_t length)
{
    uint8_t *target = to;
    const uint8_t *source = from;
    if ((uintptr_t)to - (uintptr_t)from >= length) {
        return memcpy(to, from, length);
    }
    /* The target begins inside the source, so copy from the end. */
    while (length-- > 0) {
        target[length] = source[length];
    }
    return to;
}

int memcmp(const void *left, const void *right, size_t length)
{
    const uint8_t *one = left, *other = right;
    for (size_t index = 0; index < length; index++) {
        if (one[index] != other[index]) {
            return one[index] < other[index] ? -1 : 1;
        }
    }
    return 0;
}

size_t strlen(const char *text)
{
    size_t length = 0;
    while (text[length] != 0) {
        length++;
    }
    return length;
}

int strcmp(const char *text, const char *other)
{
    while (*text != 0 && *text == *other) {
        text++;
        other++;
    }
    return *(const unsigned char *)text - *(const unsigned char *)other;
}
