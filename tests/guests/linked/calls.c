/* Calls a function in batches, and prints the median and the least time of a call over the batches:
 * calls BATCHES CALLS. docs/evidence/benchmarks.md compares tracers with it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

__attribute__((noinline)) uint64_t work(uint64_t number)
{
    __asm__ volatile("" : "+r"(number));
    return number * 3 + 1;
}

__attribute__((no_instrument_function)) static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
    size_t batches = count > 2 ? strtoul(arguments[1], NULL, 10) : 0;
    unsigned long calls = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    double *times = malloc((batches + 1) * sizeof *times);
    if (batches == 0 || calls == 0 || times == NULL) {
        return 1;
    }
    uint64_t sum = 0;
    for (size_t batch = 0; batch < batches; batch++) {
        double begun = now_ns();
        for (unsigned long call = 0; call < calls; call++) {
            sum += work(call);
        }
        times[batch] = (now_ns() - begun) / (double)calls;
    }
    qsort(times, batches, sizeof *times, by_size);
    printf("a call: median %.1f ns, least %.1f ns (%llu)\n", times[batches / 2], times[0],
        (unsigned long long)sum);
    fflush(stdout);
    free(times);
    return 0;
}
