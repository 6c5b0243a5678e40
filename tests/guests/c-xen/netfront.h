/* The guest's network device: frames to and from the backend in another domain. */
#ifndef NETFRONT_H
#define NETFRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest frame: of Ethernet, without its checksum. */
#define FRAME_SIZE 1514

/* Set when frames have arrived or have been sent. */
extern volatile bool netfront_event;

/* Connects the first device; ends the guest if there is none. */
void netfront_start(void);

const uint8_t *netfront_hardware_address(void);

/* Copies the next frame; returns its length, 0 if there is none. A longer one is dropped. */
size_t netfront_receive(uint8_t frame[FRAME_SIZE]);

/* Whether there is room to send a frame. If not, netfront_event is set when there is. */
bool netfront_has_room(void);

/* Sends a frame. netfront_has_room() must have returned true. */
void netfront_send(const uint8_t *frame, size_t length);

#endif
