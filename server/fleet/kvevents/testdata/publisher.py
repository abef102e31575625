"""A libzmq publisher that behaves as vLLM's does, for the interoperability test.

python3 publisher.py PUB_ENDPOINT ROUTER_ENDPOINT WITH_TOPIC

Commands on standard input, each answered with one line:
  send HEX   number the batch, publish it and keep it for replays
  lose HEX   number and keep it, but publish nothing
  skip       use up a number
"""
import struct
import sys

import zmq

TOPIC = b"kv@peer@model"
ctx = zmq.Context()
pub = ctx.socket(zmq.PUB)
pub.setsockopt(zmq.SNDHWM, 100000)
router = ctx.socket(zmq.ROUTER)  # its high-water mark is the default, 1000, as in vLLM
pub.bind(sys.argv[1])
router.bind(sys.argv[2])
with_topic = sys.argv[3] == "1"
buffer, seq = [], 0


def number(n):
    return struct.pack(">Q", n)


def replay():
    frames = router.recv_multipart()
    if len(frames) != 3:
        return
    who, _, start = frames
    head = [who, b"", TOPIC] if with_topic else [who, b""]
    end = [who, b"", b""] if with_topic else [who, b""]
    for n, payload in buffer:
        if n >= struct.unpack(">Q", start)[0]:
            router.send_multipart(head + [number(n), payload])
    router.send_multipart(end + [b"\xff" * 8, b""])


poller = zmq.Poller()
poller.register(router, zmq.POLLIN)
poller.register(sys.stdin, zmq.POLLIN)
print("ready", pub.getsockopt(zmq.LAST_ENDPOINT).decode().strip("\0"), router.getsockopt(zmq.LAST_ENDPOINT).decode().strip("\0"), flush=True)
while True:
    events = dict(poller.poll())
    if router in events:
        replay()
    if sys.stdin.fileno() in events:
        words = sys.stdin.readline().split()
        if not words:
            break
        if words[0] != "skip":
            payload = bytes.fromhex(words[1])
            if words[0] == "send":
                pub.send_multipart([TOPIC, number(seq), payload])
            buffer.append((seq, payload))
            del buffer[:-10000]
        seq += 1
        print(seq, flush=True)
ctx.destroy(linger=0)
