"""What is kept of a stream, so that another router can continue it. Nothing here waits or sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import grpc

from kvpilot import _core

HEADER = "x-kvpilot-resume"
RECEIVED = "kvpilot_received"
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")

MAX_CARRIED = 16 << 20  # bytes that are kept of a stream; a longer one is not continued
FIRST_TRIES, LATER_TRIES = 3, 12  # in a row: before anything has come, and after
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0

IDS = re.compile(rb'"(prompt_token_ids|token_ids)":\[[0-9, ]*\]')
ENDS = (b"data: [DONE]", b"event: message_stop", b"event: response.completed", b"event: response.incomplete")


class Carrier:
    """The events of one stream. feed returns those for the caller, without the ids that it did not ask for."""

    def __init__(self, body: bytes) -> None:
        self._body, self._received, self._rest, self._tries = body, bytearray(), b"", 0

    def feed(self, part: bytes) -> bytes:
        whole, end, self._rest = (self._rest + part).rpartition(b"\n\n")
        if not end:
            return b""
        self._received += whole + end
        self._tries = 0
        return b"".join(_plain(event + b"\n\n") for event in whole.split(b"\n\n"))

    @property
    def over(self) -> bool:
        """Whether the stream has come to its end."""
        last = bytes(self._received[-4096:]).rstrip(b"\n").rpartition(b"\n\n")[2]
        return any(end in last for end in ENDS)

    def lost(self, error: _core.Error) -> bool:
        """Whether a stream that ended with the error has lost its router, and another one may continue it."""
        if error.code is not grpc.StatusCode.UNAVAILABLE or error.reason not in ("", "SHUTTING_DOWN", "ROUTER_UNREACHABLE"):
            return False
        if len(self._received) > MAX_CARRIED:
            return False
        self._tries += 1
        return self._tries <= (LATER_TRIES if self._received else FIRST_TRIES)

    @property
    def pause(self) -> float:
        """Seconds to wait before the stream is asked for again."""
        return float(min(FIRST_PAUSE * 2 ** (self._tries - 1), LAST_PAUSE))

    def request(self) -> tuple[bytes, str]:
        """The body for the next router, and the header that says what it is."""
        self._rest = b""
        if not self._received:
            return self._body, "carry"
        received = json.dumps(self._received.decode(errors="replace")).encode()
        return self._body.strip()[:-1] + b',"' + RECEIVED.encode() + b'":' + received + b"}", "continue"


def _plain(event: bytes) -> bytes:
    """An event as the caller gets it: nothing when it is there for the ids alone."""
    if event.startswith(b": ids "):
        return b""
    plain = IDS.sub(rb'"\1":null', event)
    if len(plain) != len(event) and b'"delta":{}' in plain and b'"finish_reason":null' in plain:
        return b""
    return plain


def carrier(path: str, body: bytes, headers: Mapping[str, str] | None) -> Carrier | None:
    """A Carrier for requests whose streams routers continue; None for any other, and where the caller says itself what becomes of the stream."""
    if path not in PATHS or any(name.lower() == HEADER for name in headers or ()):
        return None
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    if not isinstance(asked, dict) or asked.get("stream") is not True or asked.get("return_token_ids") is not None:
        return None
    return Carrier(body)
