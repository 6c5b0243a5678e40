#!/bin/busybox sh
# The hotplug script that xl runs for a guest's network interface.
export PATH=/bin LD_LIBRARY_PATH=/lib64
case "$1" in
online | add)
    ip link set dev "$vif" master xenbr0
    ip link set dev "$vif" up
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
    ;;
*)
    ip link set dev "$vif" down 2>/dev/null
    true
    ;;
esac
