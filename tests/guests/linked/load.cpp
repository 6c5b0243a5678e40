/* A known tree of calls on several threads, with exceptions, tail calls, switches and virtual calls. Each function
 * counts its own calls; `done` is printed with the sums. */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#define CALLED(name)                                                                                                       \
    do {                                                                                                                   \
        own.name++;                                                                                                        \
    } while (0)
#define NOINLINE __attribute__((noinline, noclone))

namespace load {

struct Counts {
    uint64_t fibonacci, raises, catches, leaf, tail, jumps, method;
};

static thread_local Counts own;
static std::atomic<uint64_t> sums[sizeof(Counts) / sizeof(uint64_t)];
static volatile uint64_t sink;

NOINLINE uint64_t fibonacci(uint64_t number)
{
    CALLED(fibonacci);
    if (number < 2)
        return number;
    uint64_t sum = fibonacci(number - 1) + fibonacci(number - 2);
    /* So that no call becomes a jump back to the entry, which is not a call. */
    sink = sink + 1;
    return sum;
}

struct Guard {
    ~Guard() { sink = sink + 1; }
};

NOINLINE void raises(uint64_t depth)
{
    CALLED(raises);
    Guard guard;
    if (depth == 0)
        throw std::runtime_error("a part of the load");
    raises(depth - 1);
    sink = sink + 1;
}

NOINLINE uint64_t catches(uint64_t depth)
{
    CALLED(catches);
    try {
        raises(depth);
    } catch (const std::runtime_error &) {
        return 1;
    }
    return 0;
}

NOINLINE uint64_t leaf(uint64_t number)
{
    CALLED(leaf);
    return number * 3 + sink % 2;
}

/* Leaves by a jump to `leaf`. */
NOINLINE uint64_t tail(uint64_t number)
{
    CALLED(tail);
    return leaf(number + 1);
}

/* A jump table, some of whose branches are tail calls. */
NOINLINE uint64_t jumps(uint64_t number)
{
    CALLED(jumps);
    switch (number % 12) {
    case 0: return tail(number);
    case 1: return fibonacci(3);
    case 2: return number * 5;
    case 3: return number ^ 0x55;
    case 4: return number / 7;
    case 5: return leaf(number);
    case 6: return number - 9;
    case 7: return number << 2;
    case 8: return catches(1);
    case 9: return ~number;
    case 10: return -number;
    default: return 7;
    }
}

struct Shape {
    virtual uint64_t area(uint64_t number) = 0;
    virtual ~Shape() {}
};

struct Circle : Shape {
    NOINLINE uint64_t area(uint64_t number) override
    {
        CALLED(method);
        return number + 1;
    }
};

struct Square : Shape {
    NOINLINE uint64_t area(uint64_t number) override
    {
        CALLED(method);
        return tail(number);
    }
};

static void work(uint64_t rounds)
{
    Circle circle;
    Square square;
    Shape *shapes[] = { &circle, &square };
    for (uint64_t round = 0; round < rounds; round++) {
        sink = sink + fibonacci(6) + catches(round % 9) + jumps(round) + shapes[round % 2]->area(round);
    }
    const uint64_t *counts = (const uint64_t *)&own;
    for (size_t at = 0; at < sizeof(Counts) / sizeof(uint64_t); at++)
        sums[at] += counts[at];
}

} // namespace load

int main()
{
    std::vector<std::thread> threads;
    for (int at = 0; at < 3; at++)
        threads.emplace_back(load::work, 60);
    for (std::thread &thread : threads)
        thread.join();
    std::printf("done fibonacci %lu raises %lu catches %lu leaf %lu tail %lu jumps %lu method %lu\n", load::sums[0].load(),
                load::sums[1].load(), load::sums[2].load(), load::sums[3].load(), load::sums[4].load(), load::sums[5].load(),
                load::sums[6].load());
    std::fflush(stdout);
    return 0;
}
