"""A libzmq peer for the interoperability tests: python3 peer.py ROLE ENDPOINT [ENDPOINT...].

pub      binds PUB and publishes numbered messages until its input ends
dialpub  the same, but connects (the engine dials the router)
sub      connects SUB to the first endpoint, asks the second for a replay through DEALER
router   binds ROUTER and answers each request with three batches and the end marker
"""
import struct
import sys
import threading

import zmq

role, endpoints = sys.argv[1], sys.argv[2:]
ctx = zmq.Context()


def seq(n):
    return struct.pack(">Q", n)


def say(*words):
    print(*words, flush=True)


def publish(sock):
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    n = 0
    while not stop.wait(0.002):
        sock.send_multipart([b"kv@a@m", seq(n), b"x" * (n % 1000)])
        n += 1


if role == "pub":
    sock = ctx.socket(zmq.PUB)
    sock.setsockopt(zmq.HEARTBEAT_IVL, 100)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    say("tcp://127.0.0.1:%d" % port)
    publish(sock)
elif role == "dialpub":
    sock = ctx.socket(zmq.PUB)
    sock.connect(endpoints[0])
    say("ready")
    publish(sock)
elif role == "sub":
    sub = ctx.socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
    sub.setsockopt(zmq.HEARTBEAT_IVL, 100)
    sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
    sub.connect(endpoints[0])
    say("ready")
    for _ in range(3):
        topic, number, payload = sub.recv_multipart()
        say("live", topic.decode(), struct.unpack(">Q", number)[0], len(payload))
    dealer = ctx.socket(zmq.DEALER)
    dealer.connect(endpoints[1])
    dealer.send_multipart([b"", seq(1)])
    while True:
        frames = dealer.recv_multipart()
        number = frames[-2]
        if number == b"\xff" * 8:
            say("end", len(frames))
            break
        say("replay", len(frames), struct.unpack(">Q", number)[0], len(frames[-1]))
elif role == "router":
    sock = ctx.socket(zmq.ROUTER)
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    say("tcp://127.0.0.1:%d" % port)
    while True:
        frames = sock.recv_multipart()
        who, start = frames[0], struct.unpack(">Q", frames[2])[0]
        for i in range(3):
            sock.send_multipart([who, b"", seq(start + i), b"y" * (70000 * i)])
        sock.send_multipart([who, b"", b"\xff" * 8, b""])
ctx.destroy(linger=0)
