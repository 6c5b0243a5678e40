/* The guest's own TCP: sockets on loopback, and their bytes to and from the agent. */
#ifndef SERVER_H
#define SERVER_H

/* Listens on 127.0.0.1 and answers the port. Ends the process where it cannot. */
int server_start(void);

/* Accepts, reads and writes, as far as that goes without waiting, and polls the agent. */
void server_turn(void);

#endif
