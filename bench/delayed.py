#!/usr/bin/env python3
"""A network that is further away: passes TCP connections on, each way half of so many milliseconds later. Ends with its input.

usage: bench/delayed.py MILLISECONDS LISTEN=TARGET...     (ports of 127.0.0.1)
example: bench/delayed.py 5 4001=4000 < /dev/zero
"""
import queue
import socket
import sys
import threading
import time


def pump(source, sink, delay):
    due = queue.SimpleQueue()

    def deliver():
        while True:
            at, data = due.get()
            pause = at - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return  # its other side has ended

    threading.Thread(target=deliver, daemon=True).start()
    data = b"first"
    while data:
        try:
            data = source.recv(1 << 18)
        except OSError:
            data = b""
        due.put((time.monotonic() + delay, data))


def serve(listener, target, delay):
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", target), 5)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((near, far), (far, near)):
            threading.Thread(target=pump, args=(*ends, delay), daemon=True).start()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    delay = float(sys.argv[1]) / 2000
    for pair in sys.argv[2:]:
        listen, target = map(int, pair.split("="))
        listener = socket.create_server(("127.0.0.1", listen))
        threading.Thread(target=serve, args=(listener, target, delay), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.buffer.read()


main()
