"""openai's SDK at the chosen replicas: what it gets, what the router learns, and what happens when something is missing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import openai
import pytest
from conftest import CHAT, MESSAGES, REST, ROUTER, closed_port, eventually, in_flight, outcome
from google.protobuf import duration_pb2
from test_wire import Router, serve

import kvpilot
from kvpilot.openai import async_openai, sync_openai
from kvpilot.transport import AsyncTransport, Transport
from kvpilot.v1 import decision_pb2 as d
from kvpilot.v1 import reservation_pb2, routing_pb2

BASE = f"http://{REST}/v1"
PATH = "/v1/chat/completions"
Faults = Callable[..., None]


@pytest.fixture
def sdk(client: kvpilot.Client) -> Iterator[openai.OpenAI]:
    with sync_openai(client, base_url=BASE, max_retries=0) as made:
        yield made


def test_a_stream_goes_to_the_replica_and_is_reported(client: kvpilot.Client, sdk: openai.OpenAI) -> None:
    assert type(sdk) is openai.OpenAI
    raw = sdk.chat.completions.with_raw_response.create(**CHAT, stream=True, extra_headers={"x-kvpilot-policy": "round-robin"})
    assert "x-kvpilot-overhead-us" not in raw.headers  # which the router adds to what passes through it
    chunks = list(raw.parse())
    assert "".join(c.choices[0].delta.content or "" for c in chunks)  # no chunk without choices: usage was not asked for
    decision = client.explain(decision_id=raw.headers["x-kvpilot-decision"])[0]
    done = outcome(client, decision_id=decision.decision_id)
    assert done.end == d.END_COMPLETED and done.output_tokens == 12 and done.HasField("ttft") and done.HasField("cached_tokens")
    assert decision.policy == "round-robin" and decision.replica_id == raw.headers["x-kvpilot-replica"]
    *_, last = sdk.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    assert last.usage is not None and last.usage.completion_tokens == 12 and not last.choices


def test_whole_answers_completions_and_other_routes(client: kvpilot.Client, sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(**CHAT)
    answer = raw.parse()
    assert answer.usage is not None and answer.usage.completion_tokens == 12 and answer.choices[0].message.content
    done = outcome(client, decision_id=raw.headers["x-kvpilot-decision"])
    assert done.end == d.END_COMPLETED and done.output_tokens == 12
    assert sdk.completions.create(model="sim", prompt="Once", max_tokens=5).choices[0].text
    assert "".join(c.choices[0].text for c in sdk.completions.create(model="sim", prompt="Once", max_tokens=5, stream=True))
    assert "sim" in {m.id for m in sdk.models.list()}  # through the router, as are the next two
    assert sdk.embeddings.create(model="sim", input="one", encoding_format="float").data
    if hasattr(sdk, "responses"):  # since 1.66
        assert sdk.responses.create(model="sim", input="hello", max_output_tokens=5).output_text
    assert sdk.chat.completions.create(**{**CHAT, "model": "sql"}).model == "sql"


def test_a_stream_that_is_left(client: kvpilot.Client, sdk: openai.OpenAI) -> None:
    for leave in "close", "break":
        raw = sdk.chat.completions.with_raw_response.create(
            model="sim", messages=MESSAGES, max_tokens=50_000, stream=True, extra_body={"ignore_eos": True})
        stream = raw.parse()
        for _ in stream:
            break
        if leave == "close":
            stream.close()
        decision_id = raw.headers["x-kvpilot-decision"]
        del stream, raw, _
        gc.collect()
        assert outcome(client, decision_id=decision_id).end == d.END_CANCELED, leave


def test_the_end_of_with_releases_at_once_and_break_does_not(client: kvpilot.Client, sdk: openai.OpenAI, no_collector: None) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        model="sim", messages=MESSAGES, max_tokens=50_000, stream=True, extra_body={"ignore_eos": True})
    with raw.parse() as stream:
        for _ in stream:
            break
        assert next(iter(stream)).choices  # a stream of the SDK may be read on after break, so this is no end
        assert in_flight() == 1
    assert outcome(client, decision_id=raw.headers["x-kvpilot-decision"]).end == d.END_CANCELED


def test_a_stream_that_is_left_lying_ends_with_its_lease(client: kvpilot.Client) -> None:
    with sync_openai(client, base_url=BASE, max_retries=0, lease=0.5) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(
            model="sim", messages=MESSAGES, max_tokens=50_000, stream=True, extra_body={"ignore_eos": True})
        stream = raw.parse()
        next(iter(stream))
        assert outcome(client, decision_id=raw.headers["x-kvpilot-decision"]).end == d.END_EXPIRED
        stream.close()


def test_refusals_are_the_sdks_errors(client: kvpilot.Client, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="nobody", messages=MESSAGES)
    assert missing.value.code == "model_not_found" and missing.value.response.headers["x-kvpilot-reason"] == "MODEL_NOT_FOUND"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(**{**CHAT, "max_tokens": -1})
    assert "max_tokens" in str(bad.value)  # the engine's own words
    assert outcome(client, decision_id=bad.value.response.headers["x-kvpilot-decision"]).end == d.END_REJECTED
    with pytest.raises(openai.RateLimitError):
        sdk.chat.completions.create(**CHAT, extra_headers={"x-kvpilot-ttft-ms": "0.000001"})


def test_a_replica_that_breaks_or_is_busy(client: kvpilot.Client, sdk: openai.OpenAI, faults: Faults, replicas: list[str]) -> None:
    faults(die_after=3, paths=["/v1/chat"])
    raw = sdk.chat.completions.with_raw_response.create(**CHAT, stream=True)
    with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):  # by the SDK's version
        list(raw.parse())
    assert outcome(client, decision_id=raw.headers["x-kvpilot-decision"]).end == d.END_FAILED
    faults(error_after=3, paths=["/v1/chat"])
    raw = sdk.chat.completions.with_raw_response.create(**CHAT, stream=True)
    with pytest.raises(openai.APIError):
        list(raw.parse())
    assert outcome(client, decision_id=raw.headers["x-kvpilot-decision"]).end == d.END_FAILED
    faults()
    httpx.post(replicas[0] + "/sim/faults", json={"status": 503, "paths": ["/v1/chat"]}).raise_for_status()
    for _ in range(4):  # whichever was chosen first, the other one answers
        assert sdk.chat.completions.create(**CHAT).choices
    faults(status=503, paths=["/v1/chat"])
    with pytest.raises(openai.InternalServerError):  # in the end the router's own answer
        sdk.chat.completions.create(**CHAT)


def test_an_unreachable_replica_is_replaced(replicas: list[str]) -> None:
    gone = routing_pb2.ChooseReplicaResponse(
        url=f"http://{closed_port()}", replica_id="gone", reservation_id="1", lease=duration_pb2.Duration(seconds=60), model="sim")
    here = routing_pb2.ChooseReplicaResponse(
        url=replicas[0], replica_id="here", reservation_id="2", lease=duration_pb2.Duration(seconds=60), model="sim", request_headers={"x-test": "1"})
    router = Router(0, gone, here)
    with serve(router) as port, kvpilot.Client(f"127.0.0.1:{port}", api_key="secret") as c:
        with sync_openai(c, base_url=BASE, max_retries=0, lease=30) as sdk:
            assert sdk.api_key == "secret"
            raw = sdk.chat.completions.with_raw_response.create(**CHAT, extra_headers={"x-kvpilot-deny": "other"})
            assert raw.headers["x-kvpilot-replica"] == "here" and raw.parse().choices
    first, second = router.asked
    assert first["x-kvpilot-deny"] == "other" and second["x-kvpilot-deny"] == "other,gone"
    assert second["x-kvpilot-path"] == PATH and second["x-kvpilot-reports"] == "end" and second["x-kvpilot-lease-ms"] == "30000"
    assert second["authorization"] == "Bearer secret"
    released = {r.reservation_id: r.release.reason for r in router.reports if r.HasField("release")}
    assert released == {"1": reservation_pb2.RELEASE_REASON_FAILED, "2": reservation_pb2.RELEASE_REASON_COMPLETED}


def test_without_a_way_to_choose_or_to_reach_the_router_answers(replicas: list[str]) -> None:
    with kvpilot.Client(closed_port()) as nobody, sync_openai(nobody, base_url=BASE, max_retries=0) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(**CHAT)
        assert raw.headers["x-kvpilot-overhead-us"] and raw.parse().choices
    gone = [routing_pb2.ChooseReplicaResponse(url=f"http://{closed_port()}", replica_id=str(i), reservation_id=str(i))
            for i in range(3)]
    router = Router(0, *gone)
    with serve(router) as port, kvpilot.Client(f"127.0.0.1:{port}") as c, sync_openai(c, base_url=BASE, max_retries=0) as sdk:
        assert sdk.chat.completions.with_raw_response.create(**CHAT).headers["x-kvpilot-overhead-us"]
    reasons = [r.release.reason for r in router.reports if r.HasField("release")]
    assert reasons == [reservation_pb2.RELEASE_REASON_FAILED] * 3
    with kvpilot.Client(closed_port()) as nobody:
        with sync_openai(nobody, base_url=f"http://{closed_port()}/v1", max_retries=0) as sdk:
            with pytest.raises(openai.APIConnectionError):
                sdk.chat.completions.create(**CHAT)


def test_the_callers_key_does_not_reach_the_replica(client: kvpilot.Client) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"choices": []})

    headers = {"authorization": "Bearer mine", "x-api-key": "mine", "cookie": "mine", "x-kvpilot-policy": "round-robin"}
    for key in None, "engines":
        transport = Transport(client, engine_key=key, through=httpx.MockTransport(answer))
        with httpx.Client(transport=transport, base_url="http://router", headers=headers) as http:
            http.post(PATH, json=CHAT).raise_for_status()
            http.get("/v1/models").raise_for_status()
    direct, through, keyed, _ = seen
    assert "mine" not in str(direct.headers.raw) and "x-kvpilot-policy" not in direct.headers
    assert direct.url.host == "127.0.0.1" and direct.headers["accept-encoding"] == "identity" and direct.headers["x-request-id"]
    assert through.headers["authorization"] == "Bearer mine" and through.url.host == "router"
    assert keyed.headers["authorization"] == "Bearer engines"


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_every_httpx(name: str, client: kvpilot.Client) -> None:
    http = pytest.importorskip(name)
    with http.Client(transport=Transport(client), base_url=f"http://{REST}", timeout=30) as c:
        answer = c.post("/v1/messages", json={"model": "sim", "messages": MESSAGES, "max_tokens": 5}).raise_for_status()
        assert answer.json()["content"] and answer.headers["x-kvpilot-replica"]
        with c.stream("POST", "/v1/messages", json={"model": "sim", "messages": MESSAGES, "max_tokens": 5, "stream": True}) as s:
            assert b"message_stop" in s.read()
            assert outcome(client, decision_id=s.headers["x-kvpilot-decision"]).output_tokens == 5
        assert c.post(PATH, content=b"{").status_code == 400

    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as a, http.AsyncClient(transport=AsyncTransport(a), timeout=30) as c:
            answer = await c.post(f"http://{REST}{PATH}", json=CHAT)
            assert answer.json()["choices"] and answer.headers["x-kvpilot-replica"]

    asyncio.run(run())


def test_a_choice_that_takes_too_long_is_a_timeout() -> None:
    class Slow(Router):
        def RouteBody(self, request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "late")

    with serve(Slow()) as port, kvpilot.Client(f"127.0.0.1:{port}") as c, sync_openai(c, base_url=BASE, max_retries=0) as sdk:
        with pytest.raises(openai.APITimeoutError):
            sdk.chat.completions.create(**CHAT)


def test_asyncio(client: kvpilot.Client) -> None:
    async def run() -> dict[str, str]:
        ids: dict[str, str] = {}
        async with kvpilot.AsyncClient(ROUTER) as c, c.track() as tracker, async_openai(tracker, base_url=BASE) as sdk:
            assert type(sdk) is openai.AsyncOpenAI
            raw = await sdk.chat.completions.with_raw_response.create(**CHAT, stream=True)
            ids["stream"] = raw.headers["x-kvpilot-decision"]
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in raw.parse()])
            assert (await sdk.chat.completions.create(**CHAT)).choices and (await sdk.models.list()).data
            long = {"model": "sim", "messages": MESSAGES, "max_tokens": 50_000, "stream": True, "extra_body": {"ignore_eos": True}}
            raw = await sdk.chat.completions.with_raw_response.create(**long)
            ids["left"] = raw.headers["x-kvpilot-decision"]
            async with raw.parse() as stream:
                async for _ in stream:
                    break
            reading = asyncio.Event()

            async def work() -> None:
                raw = await sdk.chat.completions.with_raw_response.create(**long)
                ids["canceled"] = raw.headers["x-kvpilot-decision"]
                async for _ in raw.parse():
                    reading.set()

            task = asyncio.create_task(work())
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            whole = asyncio.create_task(sdk.chat.completions.create(**{**long, "stream": False}))
            while in_flight() == 0:
                await asyncio.sleep(0.01)
            whole.cancel()
            with pytest.raises(asyncio.CancelledError):
                await whole
            with pytest.raises(openai.NotFoundError):
                await sdk.chat.completions.create(model="nobody", messages=MESSAGES)
            await tracker.close()  # as when the router has restarted
            assert (await sdk.chat.completions.create(**CHAT)).choices
        return ids

    ids = asyncio.run(run())
    done = outcome(client, decision_id=ids["stream"])
    assert done.end == d.END_COMPLETED and done.output_tokens == 12 and done.HasField("ttft")
    assert outcome(client, decision_id=ids["left"]).end == d.END_CANCELED
    assert outcome(client, decision_id=ids["canceled"]).end == d.END_CANCELED
    eventually("a canceled request left its booking", lambda: in_flight() == 0)
