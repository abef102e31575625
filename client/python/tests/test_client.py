"""Both clients against a real router before simulated replicas, whose addresses are in the environment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import httpx
import pytest
from conftest import CHAT, MESSAGES, REST, ROUTER, closed_port, in_flight

import kvpilot
from kvpilot.v1 import decision_pb2, replica_pb2, routing_pb2


def outcome(client: kvpilot.Client, decision_id: str) -> decision_pb2.Outcome:
    return client.explain(decision_id=decision_id)[0].outcome


def test_choice_is_booked_reported_and_released(client: kvpilot.Client) -> None:
    with client.choose(model="sim", messages=MESSAGES, session_id="s", explain=True, return_token_ids=True) as choice:
        assert choice.booked and choice.url.startswith("http://127.0.0.1:")
        assert in_flight() == 1
        assert choice.response.decision.candidates and list(choice.response.token_ids.ids)
        choice.prefill_done()
        choice.progress(5)
        choice.progress(5)  # reports may be repeated
        choice.renew()
        choice.outcome(output_tokens=7)
    assert in_flight() == 0
    done = outcome(client, choice.response.decision_id)
    assert done.end == decision_pb2.END_COMPLETED and done.output_tokens == 7


def test_exception_releases_as_failed(client: kvpilot.Client) -> None:
    with pytest.raises(RuntimeError), client.choose(model="sim", text="hello") as choice:
        raise RuntimeError
    assert outcome(client, choice.response.decision_id).end == decision_pb2.END_FAILED


def test_dry_run_books_nothing(client: kvpilot.Client) -> None:
    with client.choose(model="sim", token_ids=[1, 2, 3], booking=routing_pb2.BOOKING_DRY_RUN) as choice:
        assert not choice.booked and in_flight() == 0
        choice.prefill_done()


def test_candidates_policy_and_adapter(client: kvpilot.Client) -> None:
    with client.choose(model="sim", text="a") as first:
        with client.choose(model="sim", text="a", deny=[first.replica_id], policy="round-robin") as second:
            assert second.replica_id != first.replica_id and second.response.policy == "round-robin"
        with client.choose(model="sim", text="a", pin=first.replica_id) as pinned:
            assert pinned.replica_id == first.replica_id and pinned.response.reason == "pinned"
    with client.choose(model="sim", adapter="sql", text="a") as lora:
        assert lora.response.model == "sql"


def test_errors_have_kinds_and_reasons(client: kvpilot.Client) -> None:
    with pytest.raises(kvpilot.NotFoundError) as missing:
        client.choose(model="none", text="a")
    assert missing.value.reason == "MODEL_NOT_FOUND"
    with pytest.raises(kvpilot.NotFoundError) as forgotten:
        client.explain(decision_id="nothing")
    assert forgotten.value.reason == "DECISION_NOT_FOUND"
    with pytest.raises(kvpilot.InvalidRequestError):
        client.choose(model="sim", text="a", priority=2000)
    with pytest.raises(ValueError, match="one of"):
        client.choose(model="sim", text="a", token_ids=[1])
    with kvpilot.Client(closed_port(), timeout=2) as nobody, pytest.raises(kvpilot.UnavailableError):
        nobody.choose(model="sim", text="a")


@pytest.mark.parametrize("target", ["http://localhost:8080", "https://localhost:8080/", ["http://localhost:8080"], ["a:1", "http://localhost:8080"]])
def test_a_url_is_no_target(target: str | list[str]) -> None:
    for kind in (kvpilot.Client, kvpilot.AsyncClient):
        with pytest.raises(ValueError, match=r"must be HOST:PORT of the router's gRPC address, without https?://, for example localhost:9090"):
            kind(target)
    with pytest.raises(ValueError, match="not empty"):
        kvpilot.Client("")


def test_the_rest_address_is_no_target() -> None:
    with kvpilot.Client(REST) as wrong, pytest.raises(kvpilot.Error, match=r"this is kvpilot's REST address .* gRPC is at its gRPC address"):
        wrong.choose(model="sim", text="a")


def test_a_server_of_http_is_no_target(replicas: list[str]) -> None:
    with kvpilot.Client(replicas[0].removeprefix("http://"), timeout=5) as wrong, pytest.raises(kvpilot.Error, match="the target is not the router's gRPC address"):
        wrong.choose(model="sim", text="a")


def test_a_choice_needs_a_prompt(client: kvpilot.Client) -> None:
    with pytest.raises(ValueError, match=r"give one of messages, text, token_ids, body: the prompt is missing \(token_ids=\[\] chooses by load alone\)"):
        client.choose(model="sim")
    with pytest.raises(ValueError, match="not text and body"):
        client.choose(model="sim", text="a", body=CHAT)
    with pytest.raises(ValueError, match="give one of messages, text, body: the prompt is missing"):
        client.tokenize("sim")
    with client.choose(model="sim", token_ids=[]) as choice:
        assert choice.booked


def test_several_targets_fail_over() -> None:
    with kvpilot.Client([closed_port(), ROUTER]) as c, c.choose(model="sim", text="a") as choice:
        assert choice.booked


def test_tokens(client: kvpilot.Client) -> None:
    ids = client.tokenize("sim", text="hello world")
    assert ids and client.detokenize("sim", ids).endswith("hello world")
    assert len(client.tokenize("sim", messages=MESSAGES)) > len(client.tokenize("sim", text=MESSAGES[0]["content"]))


def test_answers_through_the_router(client: kvpilot.Client) -> None:
    whole = client.complete("/v1/chat/completions", CHAT)
    assert whole["choices"][0]["message"]["content"]
    events = list(client.stream("/v1/completions", {"model": "sim", "prompt": "a", "max_tokens": 5, "stream": True}))
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"])
    with pytest.raises(kvpilot.NotFoundError):
        list(client.stream("/v1/chat/completions", {**CHAT, "model": "none", "stream": True}))


def test_direct_stream_reports_its_lifecycle(client: kvpilot.Client) -> None:
    with httpx.Client(timeout=30) as http:
        events = list(client.stream_direct(CHAT, http=http, request_id="direct-1", progress_every=2))
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    done = client.explain(request_id="direct-1")[0].outcome
    assert done.end == decision_pb2.END_COMPLETED and done.HasField("ttft") and done.output_tokens == 12


def test_direct_stream_left_early_is_canceled(client: kvpilot.Client) -> None:
    with httpx.Client(timeout=30) as http:
        with contextlib.closing(client.stream_direct({**CHAT, "max_tokens": 5000}, http=http, request_id="direct-2")) as events:
            next(events)
    assert client.explain(request_id="direct-2")[0].outcome.end == decision_pb2.END_CANCELED


def test_direct_stream_refused_by_the_replica(client: kvpilot.Client) -> None:
    with httpx.Client(timeout=30) as http, pytest.raises(httpx.HTTPStatusError):
        list(client.stream_direct({**CHAT, "max_tokens": -1}, http=http, request_id="direct-3"))
    assert client.explain(request_id="direct-3")[0].outcome.end == decision_pb2.END_REJECTED


def test_replicas_are_listed(client: kvpilot.Client) -> None:
    replicas = client.list_replicas("sim")
    assert len(replicas) == 2 and all(r.state == replica_pb2.REPLICA_STATE_READY for r in replicas)
    with pytest.raises(kvpilot.InvalidRequestError):
        client.list_replicas("x" * 1000)
    with contextlib.closing(client.watch_replicas(timeout=30)) as updates:
        assert {next(updates).replica.replica_id for _ in replicas} == {r.replica_id for r in replicas}


def test_decisions_are_watched(client: kvpilot.Client) -> None:
    stop = threading.Event()

    def choose() -> None:  # a watch has no sign that it has begun, so choices are made until it has shown one
        while not stop.is_set():
            with client.choose(model="sim", text="a", request_id=f"watched-{time.monotonic_ns()}"):
                pass

    chooser = threading.Thread(target=choose)
    chooser.start()
    try:
        with contextlib.closing(client.watch_decisions(model="sim", only_chosen=True, timeout=30)) as updates:
            ended = next(u.decision for u in updates if u.decision.HasField("outcome"))
    finally:
        stop.set()
        chooser.join()
    assert ended.request_id.startswith("watched-") and ended.outcome.end == decision_pb2.END_COMPLETED
    with pytest.raises(kvpilot.DeadlineError):
        list(client.watch_decisions(model="none", timeout=0.05))


def test_asyncio_watches_and_lists() -> None:
    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as c:
            assert len(await c.list_replicas()) == 2
            async with contextlib.aclosing(c.watch_replicas("sim", timeout=30)) as replicas:
                assert (await anext(replicas)).replica.url.startswith("http://")

            stop = asyncio.Event()

            async def choose() -> None:
                while not stop.is_set():
                    async with await c.choose(model="sim", text="a"):
                        pass

            chooser = asyncio.create_task(choose())
            async with contextlib.aclosing(c.watch_decisions(model="sim", timeout=30)) as updates:
                async for update in updates:
                    if update.decision.HasField("outcome"):
                        break
            stop.set()
            await chooser
            with pytest.raises(kvpilot.DeadlineError):
                assert not [u async for u in c.watch_decisions(model="none", timeout=0.05)]

    asyncio.run(run())


def test_asyncio() -> None:
    async def run() -> None:
        async with kvpilot.AsyncClient([closed_port(), ROUTER]) as c, httpx.AsyncClient(timeout=30) as http:
            async with await c.choose(model="sim", body=CHAT) as choice:
                await choice.prefill_done()
                await choice.progress(3)
            events = [e async for e in c.stream_direct(CHAT, http=http)]
            assert events[-1]["usage"]["completion_tokens"] == 12
            assert [e async for e in c.stream("/v1/chat/completions", {**CHAT, "stream": True})]
            assert (await c.complete("/v1/chat/completions", CHAT))["choices"]
            assert (await c.detokenize("sim", await c.tokenize("sim", text="abc"))).endswith("abc")
            with pytest.raises(kvpilot.NotFoundError):
                await c.choose(model="none", text="a")

    asyncio.run(run())


def test_canceled_task_releases_its_booking(client: kvpilot.Client) -> None:
    async def run() -> str:
        async with kvpilot.AsyncClient(ROUTER) as c:
            inside, name = asyncio.Event(), ""

            async def work() -> None:
                nonlocal name
                async with await c.choose(model="sim", text="a") as choice:
                    name = choice.response.decision_id
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return name

    assert outcome(client, asyncio.run(run())).end == decision_pb2.END_CANCELED
