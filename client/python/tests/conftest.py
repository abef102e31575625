"""What the tests share: a real router before simulated replicas, whose addresses are in the environment."""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import kvpilot
from kvpilot.v1 import decision_pb2

ROUTER, REST = os.environ["KVPILOT_GRPC"], os.environ["KVPILOT_HTTP"]
MESSAGES: list[Any] = [{"role": "user", "content": "What is a KV cache?"}]
CHAT: dict[str, Any] = {"model": "sim", "messages": MESSAGES, "max_tokens": 12}
LONG: dict[str, Any] = {**CHAT, "max_tokens": 50_000, "ignore_eos": True}


def eventually(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (got := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return got


def in_flight() -> int:
    ranks = httpx.get(f"http://{REST}/kvpilot/v1/loads").json()["ranks"]
    return sum(rank.get("requests", 0) for rank in ranks)


def outcome(client: kvpilot.Client, **key: str) -> decision_pb2.Outcome:
    """The outcome of a decision, once it has one: what ends in the background is recorded a moment later."""
    def found() -> decision_pb2.Outcome | None:
        decision = client.explain(**key)[-1]
        return decision.outcome if decision.HasField("outcome") else None

    got: decision_pb2.Outcome = eventually("the decision has no outcome", found)
    return got


def closed_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    yield
    eventually("a test left load behind", lambda: in_flight() == 0)


@pytest.fixture
def client() -> Iterator[kvpilot.Client]:
    with kvpilot.Client(ROUTER) as c:
        yield c


@pytest.fixture
def replicas(client: kvpilot.Client) -> list[str]:
    return [replica.url for replica in client.list_replicas("sim")]


@pytest.fixture
def faults(replicas: list[str]) -> Iterator[Callable[..., None]]:
    """Sets faults of all replicas."""
    def put(**fault: Any) -> None:
        for url in replicas:
            httpx.post(url + "/sim/faults", content=json.dumps(fault) if fault else "").raise_for_status()

    yield put
    put()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing is found by the garbage collector: what ends, ends by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
