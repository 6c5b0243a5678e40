/* The guest's network device: frames to and from the backend in another domain. */
#ifndef NETFRONT_H
#define NETFRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest frame: of Ethernet, without its checksum. */
#define FRAME_SIZE 1514

/* Set when frames have come, or have been sent. */
extern volatile bool netfront_event;

/* Connects the first device; ends the guest where there is none. */
void netfront_start(void);

const uint8_t *netfront_hardware_address(void);

/* Copies the next frame; answers its length, 0: none for now. A longer one is dropped. */
size_t netfront_receive(uint8_t frame[FRAME_SIZE]);

/* Is there room for a frame to be sent? Where there is none, netfront_event tells when. */
bool netfront_has_room(void);

/* Sends a frame; netfront_has_room() has said that it may. */
void netfront_send(const uint8_t *frame, size_t length);

#endif
