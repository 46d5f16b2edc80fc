"""Prints, byte by byte, one frame of fathom's that leaves through an interface of this network namespace."""

import socket
import sys

EVERY_PROTOCOL = socket.htons(3)
IPV4, UDP, DISCARD = b"\x08\x00", 17, b"\x00\x09"

with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, EVERY_PROTOCOL) as tap:
    tap.bind((sys.argv[1], 3))
    tap.settimeout(10)
    while True:
        frame = tap.recv(2048)
        if frame[12:14] == IPV4 and frame[23] == UDP and frame[36:38] == DISCARD:
            break
print(frame.hex(" "))
