/* The guest's own TCP: sockets on loopback; their bytes are passed to and from the agent. */
#ifndef SERVER_H
#define SERVER_H

/* Listens on 127.0.0.1 and returns the port. Ends the process on failure. */
int server_start(void);

/* Accepts, reads and writes as far as possible without waiting, and polls the agent. */
void server_turn(void);

#endif
