#!/usr/bin/env python3
"""A real-time thread that takes one core for some microseconds at each frame that arrives at eth0, before the frame's reader runs there.

late_thread.py MICROSECONDS CORE
"""

import os
import socket
import sys
import time

IPV4 = 0x0800
PRIORITY = 50
TO_THIS_HOST = 0  # PACKET_HOST of packet(7)

takes_ns, core = int(sys.argv[1]) * 1000, int(sys.argv[2])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(IPV4))
frames.bind(("eth0", IPV4))
while True:
    _, source = frames.recvfrom(64)
    end = time.monotonic_ns() + takes_ns if source[2] == TO_THIS_HOST else 0
    while time.monotonic_ns() < end:
        pass
