#ifndef LWIP_INIT_H
#define LWIP_INIT_H

#define LWIP_VERSION_MAJOR 1
#define LWIP_VERSION_MINOR 3

#endif
