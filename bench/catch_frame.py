"""Prints, byte by byte, one frame of fathom's that leaves through an interface of this network namespace."""

import socket
import sys

EVERY_PROTOCOL = socket.htons(3)
MAGIC = b"fthm"

with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, EVERY_PROTOCOL) as tap:
    tap.bind((sys.argv[1], 3))
    tap.settimeout(10)
    while MAGIC not in (frame := tap.recv(2048)):
        pass
print(frame.hex(" "))
