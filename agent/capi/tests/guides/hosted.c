/* What surrounds the C of docs/guide/hosted.md: tests/guests/c-hosted, and the program. */
#include <stdint.h>
#include <stdio.h>

void profiler_start(uint64_t stack_end);
int server_start(void);
void server_turn(void);
void work(void);

int main(void)
{
//= 1
}
