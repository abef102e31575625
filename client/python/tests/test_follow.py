"""Streams that are followed, and trackers: how each end of a stream reaches the router."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from conftest import CHAT, LONG, ROUTER, closed_port, eventually, in_flight, outcome
from google.protobuf import duration_pb2
from test_wire import Router, serve

import kvpilot
from kvpilot.v1 import decision_pb2 as d
from kvpilot.v1 import reservation_pb2, routing_pb2

Faults = Callable[..., None]
STREAM: dict[str, Any] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
LONG_STREAM: dict[str, Any] = {**LONG, "stream": True}
PATH = "/v1/chat/completions"


def working(replicas: list[str]) -> int:
    return sum(sum(r["running"] + r["waiting"] for r in httpx.get(url + "/sim/state").json()["ranks"]) for url in replicas)


def ask(sdk: Any, body: dict[str, Any]) -> Any:
    """A stream of openai's SDK; what the SDK has no argument for goes into extra_body."""
    known = {"model", "messages", "max_tokens", "stream", "stream_options"}
    return sdk.chat.completions.create(**{k: v for k, v in body.items() if k in known},
                                       extra_body={k: v for k, v in body.items() if k not in known})


def test_the_sdks_stream(client: kvpilot.Client) -> None:
    with client.choose(body=STREAM) as choice, openai.OpenAI(**choice.openai_options()) as sdk:
        text = ""
        for chunk in choice.follow(ask(sdk, choice.body_for(STREAM)), progress_every=4):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    done = outcome(client, decision_id=choice.response.decision_id)
    assert text and done.end == d.END_COMPLETED and done.output_tokens == 12 and done.HasField("ttft")


def test_an_httpx_answer_and_plain_iterators(client: kvpilot.Client) -> None:
    with httpx.Client(timeout=30) as http, client.choose(body=STREAM) as choice:
        with http.stream("POST", choice.url + PATH, json=choice.body_for(STREAM)) as answer:
            assert b"".join(choice.follow(answer)).rstrip().endswith(b"[DONE]")
    assert outcome(client, decision_id=choice.response.decision_id).output_tokens == 12
    with client.choose(model="sim", text="a") as tokens:
        assert "".join(tokens.follow(iter("abc"))) == "abc"
        with pytest.raises(RuntimeError, match="followed already"):
            tokens.follow(iter("abc"))
    done = outcome(client, decision_id=tokens.response.decision_id)
    assert done.output_tokens == 3 and done.end == d.END_COMPLETED


def test_a_loop_that_is_left_cancels_the_request(client: kvpilot.Client, replicas: list[str]) -> None:
    with client.choose(body=LONG_STREAM) as choice, openai.OpenAI(**choice.openai_options()) as sdk:
        for _ in choice.follow(ask(sdk, choice.body_for(LONG_STREAM))):
            break
    assert outcome(client, decision_id=choice.response.decision_id).end == d.END_CANCELED
    eventually("the replica goes on working", lambda: working(replicas) == 0)


def test_break_alone_releases_at_once(client: kvpilot.Client, replicas: list[str], no_collector: None) -> None:
    choice = client.choose(body=LONG_STREAM)  # without `with`, which releases too
    with openai.OpenAI(**choice.openai_options()) as sdk:
        stream = ask(sdk, choice.body_for(LONG_STREAM))
        for _ in choice.follow(stream):
            break
        assert outcome(client, decision_id=choice.response.decision_id).end == d.END_CANCELED  # its lease is a minute long
        eventually("the replica goes on working", lambda: working(replicas) == 0)

    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as c:
            choice = await c.choose(body=LONG_STREAM)
            async with openai.AsyncOpenAI(**choice.openai_options()) as sdk:
                stream = await ask(sdk, choice.body_for(LONG_STREAM))
                async for _ in choice.follow(stream):
                    break
                while not (await c.explain(decision_id=choice.response.decision_id))[0].HasField("outcome"):
                    await asyncio.sleep(0.02)
                assert stream is not None

    asyncio.run(asyncio.wait_for(run(), 20))
    eventually("the replica goes on working", lambda: working(replicas) == 0)


def test_a_stream_that_is_dropped_is_canceled(client: kvpilot.Client, replicas: list[str]) -> None:
    choice = client.choose(body=LONG_STREAM)
    sdk = openai.OpenAI(**choice.openai_options())
    followed = choice.follow(ask(sdk, choice.body_for(LONG_STREAM)))
    next(followed)
    cycle: list[Any] = [followed]
    cycle.append(cycle)
    del followed, cycle
    gc.collect()
    done = outcome(client, decision_id=choice.response.decision_id)
    assert done.end == d.END_CANCELED and done.output_tokens >= 1
    eventually("the replica goes on working", lambda: working(replicas) == 0)
    sdk.close()


class Counts:
    """A stream that counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return "a"

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return "a"

    def close(self) -> None:
        self.closed += 1


def test_what_the_collector_has_found_is_closed_once(client: kvpilot.Client) -> None:
    stream, choice = Counts(), client.choose(model="sim", text="a")
    followed = choice.follow(stream)
    next(followed)
    followed._finalizer()  # as the collector does, before an SDK's generators that it has found too
    followed.close()
    assert outcome(client, decision_id=choice.response.decision_id).end == d.END_CANCELED
    assert stream.closed == 1

    async def run() -> str:
        async with kvpilot.AsyncClient(ROUTER) as c:
            choice = await c.choose(model="sim", text="a")
            followed = choice.follow(stream)
            await anext(followed)
            followed._finalizer()
            await followed.aclose()
        return choice.response.decision_id

    assert outcome(client, decision_id=asyncio.run(run())).end == d.END_CANCELED
    assert stream.closed == 2


def test_an_answer_that_ended_is_complete_however_it_is_left(client: kvpilot.Client) -> None:
    with client.choose(body=CHAT) as choice, openai.OpenAI(**choice.openai_options()) as sdk:
        for chunk in choice.follow(ask(sdk, choice.body_for({**CHAT, "stream": True}))):
            if chunk.choices and chunk.choices[0].finish_reason:
                break
    assert outcome(client, decision_id=choice.response.decision_id).end == d.END_COMPLETED


def test_failures_of_reader_and_replica(client: kvpilot.Client, faults: Faults) -> None:
    with pytest.raises(KeyError), client.choose(body=STREAM) as reader, openai.OpenAI(**reader.openai_options()) as sdk:
        for _ in reader.follow(ask(sdk, reader.body_for(STREAM))):
            raise KeyError
    assert outcome(client, decision_id=reader.response.decision_id).end == d.END_CANCELED  # the replica did not fail
    with pytest.raises(openai.BadRequestError), client.choose(body=STREAM) as bad, openai.OpenAI(**bad.openai_options()) as sdk:
        bad.follow(ask(sdk, bad.body_for({**STREAM, "max_tokens": -1})))
    assert outcome(client, decision_id=bad.response.decision_id).end == d.END_REJECTED
    with httpx.Client(timeout=30) as http:
        faults(die_after=3, paths=["/v1/chat"])
        with pytest.raises(httpx.RemoteProtocolError):
            list(client.stream_direct(CHAT, http=http, request_id="py-die"))
        faults(error_after=3, paths=["/v1/chat"])
        with pytest.raises(kvpilot.ReplicaError, match="error event"):
            list(client.stream_direct(CHAT, http=http, request_id="py-error"))
    for request_id in "py-die", "py-error":
        assert outcome(client, request_id=request_id).end == d.END_FAILED


BOOKED = routing_pb2.ChooseReplicaResponse(replica_id="r", reservation_id="b", lease=duration_pb2.Duration(nanos=90_000_000))


def renewals(router: Router) -> int:
    return sum(r.HasField("renew") for r in router.reports)


def test_the_lease_is_renewed_while_the_replica_is_waited_for() -> None:
    router = Router(0, BOOKED, BOOKED)

    def slow() -> Iterator[str]:
        eventually("the lease is not renewed", lambda: renewals(router) >= 3)
        yield "a"

    with serve(router) as port, kvpilot.Client(f"127.0.0.1:{port}") as c:
        with c._choose_for(PATH, b"{}", {}, None) as choice:
            assert list(choice.follow(slow())) == ["a"]
    ended = router.reports[-1].release
    assert ended.reason == reservation_pb2.RELEASE_REASON_COMPLETED
    assert ended.output_tokens == 1

    async def aslow() -> AsyncIterator[str]:
        while renewals(router) < 3:
            await asyncio.sleep(0.01)
        yield "a"

    async def run(port: int) -> None:
        async with kvpilot.AsyncClient(f"127.0.0.1:{port}") as c, await c._choose_for(PATH, b"{}", {}, None) as choice:
            assert [t async for t in choice.follow(aslow())] == ["a"]

    router.reports.clear()
    with serve(router) as port:
        asyncio.run(asyncio.wait_for(run(port), 20))
    assert router.reports[-1].release.reason == reservation_pb2.RELEASE_REASON_COMPLETED


def test_the_lease_ends_what_is_left_lying(client: kvpilot.Client) -> None:
    choice = client.choose(model="sim", text="a", lease=0.3)
    followed = choice.follow(iter("abc"))
    next(followed)
    assert outcome(client, decision_id=choice.response.decision_id).end == d.END_EXPIRED
    followed.close()


def test_a_tracker_carries_the_reports_of_many_choices_and_its_end_releases_them(client: kvpilot.Client) -> None:
    tracker = client.track()
    choices = [tracker.choose(model="sim", text="a") for _ in range(8)]
    assert in_flight() == 8
    threads = [threading.Thread(target=lambda c=c: (c.prefill_done(), c.progress(3), c.renew())) for c in choices[:4]]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    choices[0].outcome(output_tokens=9)
    choices[0].release(reservation_pb2.RELEASE_REASON_COMPLETED)
    assert outcome(client, decision_id=choices[0].response.decision_id).output_tokens == 9
    with pytest.raises(kvpilot.ConflictError) as ended:
        choices[0].progress(10)
    assert ended.value.reason == "RESERVATION_ENDED"
    assert in_flight() == 7 and not tracker.closed  # a report that failed did not end the stream
    tracker.close()
    eventually("the end of the stream releases", lambda: in_flight() == 0)
    with pytest.raises(kvpilot.TrackerClosedError):
        tracker.choose(model="sim", text="a")
    assert tracker.closed


def test_a_direct_stream_over_a_tracker(client: kvpilot.Client) -> None:
    with client.track() as tracker, httpx.Client(timeout=30) as http:
        assert list(client.stream_direct(CHAT, http=http, tracker=tracker, request_id="py-tracked", progress_every=4))
        done = outcome(client, request_id="py-tracked")
    assert done.end == d.END_COMPLETED and done.output_tokens == 12 and done.HasField("ttft")


def test_a_tracker_without_a_router_is_closed() -> None:
    with kvpilot.Client(closed_port()) as nobody:
        tracker = nobody.track()
        eventually("the tracker is open", lambda: tracker.closed)
        with pytest.raises(kvpilot.TrackerClosedError):
            tracker.choose(model="sim", text="a")
        tracker.close()


DIES = """
import os, sys, kvpilot
tracker = kvpilot.Client(sys.argv[1]).track()
for _ in range(3):
    tracker.choose(model="sim", text="a")
print("booked", flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_what_a_dead_process_had_chosen_by_a_tracker_is_released_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", DIES, ROUTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=os.environ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "booked\n"
        assert in_flight() == 3
        process.stdin.close()
        assert process.wait(20) == 1
    eventually("the bookings outlive their process", lambda: in_flight() == 0)  # their leases are a minute long


def test_asyncio_follows(client: kvpilot.Client, replicas: list[str]) -> None:
    async def run() -> dict[str, str]:
        ids: dict[str, str] = {}
        async with kvpilot.AsyncClient(ROUTER) as c, c.track() as tracker:
            for name, chooser in {"client": c, "tracker": tracker}.items():
                async with await chooser.choose(body=STREAM) as choice, openai.AsyncOpenAI(**choice.openai_options()) as sdk:
                    async for chunk in choice.follow(await ask(sdk, choice.body_for(STREAM)), progress_every=4):
                        assert chunk.object
                ids[name] = choice.response.decision_id
            async with await c.choose(body=LONG_STREAM) as choice, openai.AsyncOpenAI(**choice.openai_options()) as sdk:
                async for _ in choice.follow(await ask(sdk, choice.body_for(LONG_STREAM))):
                    break
            ids["left"] = choice.response.decision_id
            choice = await c.choose(body=LONG_STREAM)
            sdk = openai.AsyncOpenAI(**choice.openai_options())
            followed = choice.follow(await ask(sdk, choice.body_for(LONG_STREAM)))
            await anext(followed)
            ids["dropped"] = choice.response.decision_id
            cycle: list[Any] = [followed]
            cycle.append(cycle)
            del followed, cycle
            gc.collect()
            await sdk.close()
        return ids

    ids = asyncio.run(run())
    for name in "client", "tracker":
        done = outcome(client, decision_id=ids[name])
        assert done.end == d.END_COMPLETED and done.output_tokens == 12 and done.HasField("ttft")
    for name in "left", "dropped":
        assert outcome(client, decision_id=ids[name]).end == d.END_CANCELED
    eventually("the replica goes on working", lambda: working(replicas) == 0)


def test_asyncio_cancellation_and_leases(client: kvpilot.Client) -> None:
    async def run() -> list[str]:
        async with kvpilot.AsyncClient(ROUTER) as c:
            reading = asyncio.Event()

            async def stuck() -> AsyncIterator[str]:
                yield "a"
                reading.set()
                await asyncio.Event().wait()

            async def work(choice: kvpilot.AsyncChoice) -> None:
                async for _ in choice.follow(stuck()):
                    pass

            canceled = await c.choose(model="sim", text="a")
            task = asyncio.create_task(work(canceled))
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            lying = await c.choose(model="sim", text="a", lease=0.3)
            followed = lying.follow(stuck())
            while not (await c.explain(decision_id=lying.response.decision_id))[0].HasField("outcome"):
                await asyncio.sleep(0.02)
            await followed.aclose()
            await followed.aclose()
            return [x.response.decision_id for x in (canceled, lying)]

    ends = [outcome(client, decision_id=i).end for i in asyncio.run(run())]
    assert ends == [d.END_CANCELED, d.END_EXPIRED]


def test_asyncio_a_canceled_choose_books_nothing(client: kvpilot.Client) -> None:
    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as c:
            (await c.tokenize("sim", text="connected"))
            for pause in (0, 0.0005, 0.001, 0.002, 0.005):  # before, during and after the router's work
                tasks = [asyncio.create_task(c.choose(model="sim", text="a", lease=60)) for _ in range(4)]
                await asyncio.sleep(pause)
                for task in tasks:
                    task.cancel()
                for choice in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(choice, kvpilot.AsyncChoice):
                        await choice.release(reservation_pb2.RELEASE_REASON_COMPLETED)

    asyncio.run(run())
    eventually("a canceled choose left its booking", lambda: in_flight() == 0)


def test_asyncio_tracker(client: kvpilot.Client) -> None:
    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as c:
            async with c.track() as tracker:
                choices = await asyncio.gather(*(tracker.choose(model="sim", text="a") for _ in range(8)))
                assert in_flight() == 8
                await asyncio.gather(*(choice.progress(2) for choice in choices))
                await choices[0].release(reservation_pb2.RELEASE_REASON_COMPLETED)
                with pytest.raises(kvpilot.ConflictError):
                    await choices[0].renew()
                assert in_flight() == 7 and not tracker.closed
            with pytest.raises(kvpilot.TrackerClosedError):
                await choices[1].renew()
        async with kvpilot.AsyncClient("127.0.0.1:1") as nobody, nobody.track() as closed:
            while not closed.closed:
                await asyncio.sleep(0.01)
            with pytest.raises(kvpilot.TrackerClosedError):
                await closed.choose(model="sim", text="a")

    asyncio.run(run())
    eventually("the end of the stream releases", lambda: in_flight() == 0)


def test_a_client_that_is_closed_reports_nothing(client: kvpilot.Client) -> None:
    with kvpilot.Client(ROUTER) as c:
        choice = c.choose(model="sim", text="a", lease=0.3)
    with pytest.raises(kvpilot.UnavailableError):
        choice.renew()
    with contextlib.closing(choice.follow(iter("a"))) as followed:
        assert list(followed) == ["a"]

    async def run() -> None:
        async with kvpilot.AsyncClient(ROUTER) as a:
            late = await a.choose(model="sim", text="a", lease=0.3)
        with pytest.raises(kvpilot.UnavailableError):
            await late.renew()

    asyncio.run(run())




def test_a_reader_need_not_close_what_has_ended(client: kvpilot.Client) -> None:
    async def run() -> kvpilot.AsyncFollowed[str]:
        async with kvpilot.AsyncClient(ROUTER) as c:
            followed = (await c.choose(model="sim", text="a", request_id="py-error-async")).follow(forever_async())
            await anext(followed)
            return followed

    async def forever_async() -> AsyncIterator[str]:
        for line in forever:
            yield line
            await asyncio.Event().wait()

    forever = ['data: {"error": {"message": "broken"}}'] * 2
    sync = client.choose(model="sim", text="a", request_id="py-error-sync").follow(iter(forever))
    next(sync)
    kept = asyncio.run(run())
    for name in "py-error-sync", "py-error-async":
        assert outcome(client, request_id=name).end == d.END_FAILED
    assert kept is not None
