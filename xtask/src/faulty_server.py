"""An HTTP server with one fault, for the proof of the findings: faulty_server.py FAULT PORT."""

import asyncio
import random
import resource
import socket
import struct
import sys
import threading
import time

BODY = b"x" * 500
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 500\r\n\r\n" + BODY
FAILURE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
END_OF_HEAD = b"\r\n\r\n"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def listener(port, backlog=511):
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("0.0.0.0", port))
    listening.listen(backlog)
    return listening


def requests(connection):
    received = b""
    while True:
        while END_OF_HEAD not in received:
            piece = connection.recv(65536)
            if not piece:
                return
            received += piece
        _, received = received.split(END_OF_HEAD, 1)
        yield


def for_each_request(answer):
    def serve(connection):
        for _ in requests(connection):
            answer(connection)

    return serve


def in_threads(port, serve, backlog=511, nodelay=True, before_accept=0):
    def run(connection):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(nodelay))
            serve(connection)
        except OSError:
            pass
        finally:
            connection.close()

    listening = listener(port, backlog)
    while True:
        time.sleep(before_accept)
        try:
            connection, _ = listening.accept()
        except OSError:
            # No descriptor is left.
            time.sleep(0.01)
            continue
        threading.Thread(target=run, args=(connection,), daemon=True).start()


class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.received = transport, b""

    def data_received(self, data):
        self.received += data
        while END_OF_HEAD in self.received:
            _, self.received = self.received.split(END_OF_HEAD, 1)
            self.transport.write(HEAD + BODY)


def in_one_loop(port, beside=None):
    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answers, "0.0.0.0", port, backlog=511)
        if beside:
            loop.create_task(beside())
        await server.serve_forever()

    asyncio.run(run())


def one_thread(port):
    listening = listener(port)
    while True:
        connection, _ = listening.accept()
        for _ in requests(connection):
            work(0.005)
            connection.sendall(LAST)
            break
        connection.close()


async def deaf():
    while True:
        await asyncio.sleep(0.7)
        time.sleep(0.3)


def lock(connection):
    work(0.005)
    connection.sendall(HEAD + BODY)


def sleep(connection):
    time.sleep(0.02)
    connection.sendall(HEAD + BODY)


def pause(connection):
    connection.sendall(HEAD)
    time.sleep(0.0405)
    connection.sendall(BODY)


def nagle(connection):
    connection.sendall(HEAD)
    connection.sendall(BODY[:250])
    connection.sendall(BODY[250:])


def tail(connection):
    if random.random() < 0.1:
        time.sleep(0.1)
    connection.sendall(HEAD + BODY)


def half(connection):
    if random.random() < 0.5:
        time.sleep(0.02)
    connection.sendall(HEAD + BODY)


def parts(connection):
    connection.sendall(HEAD)
    for begin in range(0, 500, 100):
        time.sleep(0.01)
        connection.sendall(BODY[begin : begin + 100])


PLACES = threading.Semaphore(2)


def pool(connection):
    with PLACES:
        time.sleep(0.02)
    connection.sendall(HEAD + BODY)


def failures(connection):
    connection.sendall(FAILURE if random.random() < 0.05 else HEAD + BODY)


def resets(connection):
    for number, _ in enumerate(requests(connection), 1):
        connection.sendall(HEAD + BODY)
        if number == 50:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            return


def short(connection):
    for number, _ in enumerate(requests(connection), 1):
        if number == 20:
            connection.sendall(HEAD + BODY[:100])
            return
        connection.sendall(HEAD + BODY)


def once(connection):
    for _ in requests(connection):
        connection.sendall(LAST)
        return


def descriptors(port):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    in_threads(port, for_each_request(lambda connection: connection.sendall(HEAD + BODY)))


FAULTS = {
    "none": in_one_loop,
    "one-thread": one_thread,
    "lock": lambda port: in_threads(port, for_each_request(lock)),
    "sleep": lambda port: in_threads(port, for_each_request(sleep)),
    "pause": lambda port: in_threads(port, for_each_request(pause)),
    "nagle": lambda port: in_threads(port, for_each_request(nagle), nodelay=False),
    "deaf": lambda port: in_one_loop(port, deaf),
    "tail": lambda port: in_threads(port, for_each_request(tail)),
    "half": lambda port: in_threads(port, for_each_request(half)),
    "parts": lambda port: in_threads(port, for_each_request(parts)),
    "pool": lambda port: in_threads(port, for_each_request(pool)),
    "failures": lambda port: in_threads(port, for_each_request(failures)),
    "resets": lambda port: in_threads(port, resets),
    "short": lambda port: in_threads(port, short),
    "queue": lambda port: in_threads(port, once, backlog=1, before_accept=0.005),
    "descriptors": descriptors,
}

FAULTS[sys.argv[1]](int(sys.argv[2]))
