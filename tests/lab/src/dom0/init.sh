#!/bin/busybox sh
# Brings dom0 up: devices, Xen's daemons, the bridge, the command port.
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib64 HOME=/
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts

fail() {
    echo "lab: dom0 failed: $1"
    sleep 1
    poweroff -f
}

for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" || fail "module $module"
done
mount -t xenfs xenfs /proc/xen || fail "xenfs"

xenstored --pid-file=/run/xenstored.pid || fail "xenstored"
tries=0
until xenstore-read / >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || fail "xenstore does not answer"
    usleep 20000
done
xen-init-dom0 >/dev/null || fail "xen-init-dom0"
xenconsoled || fail "xenconsoled"

ip link set lo up
ip link add xenbr0 type bridge
ip link set xenbr0 up
ip link set eth0 up
ip link set eth0 master xenbr0
ip addr add 10.0.2.15/24 dev xenbr0 || fail "the network"
ip route add default via 10.0.2.2

# The shell listens a moment after it starts: the port itself says when.
nc -ll -p 2222 -e /bin/lab-command &
tries=0
until netstat -ltn | grep -q ':2222 '; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || fail "the command port"
    usleep 20000
done
echo "lab: dom0 ready"
wait
