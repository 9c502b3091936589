"""A network device that delays packets, for a host of a virtual cluster on a kernel without netem.

    python3 tools/virtual_cluster.py exec h1 python benchmarks/delay.py \
        --address 10.77.0.1 --ms 10

The device `tun0` of each host has the host's address in another network, 10.177.0.0/24. Its packets
wait in this process, and then travel over the limited link `eth0` in UDP datagrams. The process
runs until it is killed, and prints a line when the device is up.
"""

import argparse
import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections import deque
from typing import Final

__all__ = ["DEVICE", "delayed_address"]

DEVICE: Final = "tun0"
PORT: Final = 4790
MTU: Final = 8900  # with its headers, a packet fits eth0's 9000
SET_DEVICE, TUN, WITHOUT_HEADER = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
BUFFER_BYTES: Final = 4 * 2**20


def main() -> None:
    """Makes the device, and forwards packets for ever."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--address", required=True, help="of this host on eth0")
    parser.add_argument("--ms", type=float, default=10, help="the delay of each packet")
    options = parser.parse_args()
    network = options.address.rpartition(".")[0]
    device, link = open_device(options.address), open_link(options.address)
    print(f"{DEVICE} is {delayed_address(options.address)}", flush=True)
    forward(device, link, network, options.ms / 1000)


def delayed_address(address: str) -> str:
    """Returns the address of a host on the delayed network.

    >>> delayed_address("10.77.0.3")
    '10.177.0.3'
    """
    return "10.177.0." + address.rpartition(".")[2]


def open_device(address: str) -> int:
    """Makes the device; returns its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, SET_DEVICE, struct.pack("16sH", DEVICE.encode(), TUN | WITHOUT_HEADER))
    for words in (
        f"address add {delayed_address(address)}/24 dev {DEVICE}",
        f"link set {DEVICE} mtu {MTU} txqueuelen 10000 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return device


def open_link(address: str) -> socket.socket:
    """Returns the socket for datagrams between hosts."""
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        link.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    link.bind((address, PORT))
    return link


def forward(device: int, link: socket.socket, network: str, delay_s: float) -> None:
    """Sends each packet of the device after the delay, and delivers those that arrive."""
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([device, link.fileno()], [], [], timeout)
        if device in ready:
            waiting.append((time.monotonic() + delay_s, os.read(device, 2**16)))
        if link.fileno() in ready:
            os.write(device, link.recv(2**16))
        while waiting and waiting[0][0] <= time.monotonic():
            packet = waiting.popleft()[1]
            link.sendto(packet, (f"{network}.{packet[19]}", PORT))  # the last byte of its target


if __name__ == "__main__":
    main()
