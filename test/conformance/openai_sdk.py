"""Drives the official OpenAI and Anthropic SDKs for Python against one base URL and prints what
they returned, one JSON line per case. With "broken" as the second argument it reads one stream of each
kind that breaks off, and prints how."""
import json
import sys

import anthropic
import openai

base = sys.argv[1]
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=30)
claude = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=30)
model = "sim"
messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Grüße, 世界 🌍! Tell me a story."}]
fixed = {"temperature": 0, "seed": 1}
OWN = {"id", "created", "created_at", "completed_at", "system_fingerprint", "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "call_id", "item_id"}


def plain(v):
    if hasattr(v, "model_dump"):
        v = v.model_dump(mode="json")
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items() if k not in OWN}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return v


def joined(stream):
    """Puts the pieces of a stream together: how tokens are grouped into chunks is the engine's affair of the moment."""
    out = {"choices": {}, "events": [], "text": "", "usage": None, "heads": []}
    for chunk in map(plain, stream):
        for x in chunk.get("choices") or []:
            at = out["choices"].setdefault(str(x["index"]), {"text": "", "roles": [], "finish": []})
            delta = x.get("delta") or {}
            at["text"] += delta.get("content") or x.get("text") or ""
            if delta.get("role"):
                at["roles"].append(delta["role"])
            if x.get("finish_reason"):
                at["finish"].append([x["finish_reason"], x.get("stop_reason")])
        if "choices" in chunk and chunk.get("usage"):
            out["usage"] = chunk["usage"]
        head = [chunk.get("object"), chunk.get("model")]
        if head not in out["heads"]:
            out["heads"].append(head)
        if chunk.get("type") and chunk["type"] != (out["events"] or [None])[-1]:
            out["events"].append(chunk["type"])
        delta = chunk.get("delta") or {}
        if isinstance(delta, str):  # a response's text
            delta = {"text": delta}
        out["text"] += delta.get("text") or ""
        if delta.get("stop_reason"):
            out["stop"] = delta["stop_reason"]
    return out


def failure(call):
    try:
        return {"unexpected": plain(call())}
    except (openai.APIStatusError, anthropic.APIStatusError) as e:
        return {"class": type(e).__name__, "status": e.status_code, "body": plain(e.body)}


def chat(**more):
    return client.chat.completions.create(model=model, messages=messages, **{**fixed, **more})


def abort():
    seen = 0
    with chat(max_tokens=2000, stream=True) as stream:
        for _ in stream:
            seen += 1
            if seen == 3:
                break
    return seen


cases = {
    "chat": lambda: plain(chat(max_tokens=12)),
    "chat stream": lambda: joined(chat(max_tokens=12, stream=True)),
    "chat stream with usage": lambda: joined(chat(max_tokens=5, stream=True, stream_options={"include_usage": True})),
    "several choices": lambda: plain(chat(max_tokens=6, n=3)),
    "several choices, streamed": lambda: joined(chat(max_tokens=6, n=3, stream=True)),
    "logprobs": lambda: plain(chat(max_tokens=4, logprobs=True, top_logprobs=2)),
    "stop": lambda: plain(chat(max_tokens=20, stop=["e"]).choices),
    "engine's own fields": lambda: plain(chat(max_tokens=4, extra_body={"return_token_ids": True, "cache_salt": "s", "unknown_field": {"a": [1]}})),
    "completion": lambda: plain(client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, **fixed)),
    "completion stream": lambda: joined(client.completions.create(model=model, prompt="Once 🌍", max_tokens=8, stream=True, **fixed)),
    "a response": lambda: failure(lambda: client.responses.create(model=model, input="hello", max_output_tokens=6, temperature=0).output_text),
    "a response, streamed": lambda: joined(client.responses.create(model=model, input="hello", max_output_tokens=6, temperature=0, stream=True)),
    "embeddings": lambda: failure(lambda: [[d.index, len(d.embedding)] for d in client.embeddings.create(model=model, input=["one", "two"], encoding_format="float").data]),
    "count of tokens": lambda: failure(lambda: claude.messages.count_tokens(model=model, messages=[{"role": "user", "content": "hello 🌍"}])),
    "models": lambda: sorted(m.id for m in client.models.list()),
    "unknown model": lambda: {k: v for k, v in failure(lambda: client.chat.completions.create(model="nobody", messages=messages)).items() if k != "body"},
    "refused by the engine": lambda: failure(lambda: chat(max_tokens=-1)),
    "abort": abort,
    "an Anthropic message": lambda: failure(lambda: claude.messages.create(model=model, max_tokens=8, messages=[{"role": "user", "content": "hello 🌍"}]).content),
    "an Anthropic stream": lambda: failure(lambda: joined(claude.messages.create(model=model, max_tokens=8, stream=True, messages=[{"role": "user", "content": "hello"}]))),
}


def broken(start):
    """What a program sees of a stream whose replica dies in the middle of it."""
    events = 0
    try:
        for _ in start():
            events += 1
        return {"class": "none"}
    except Exception as e:  # its class is the result
        return {"class": type(e).__name__, "said": "ended early" in f"{e} {getattr(e, 'body', '')}", "some": events > 0}


streams = {
    "chat": lambda: broken(lambda: chat(stream=True, max_tokens=1000)),
    "completion": lambda: broken(lambda: client.completions.create(model=model, prompt="Once upon a time", max_tokens=1000, extra_body={"ignore_eos": True}, stream=True)),
    "response": lambda: broken(lambda: client.responses.create(model=model, input="hello", max_output_tokens=1000, stream=True)),
    "message": lambda: broken(lambda: claude.messages.create(model=model, max_tokens=100, stream=True, messages=messages[1:])),
}
unended = {  # streams without [DONE]
    "chat": lambda: joined(chat(max_tokens=5, stream=True))["choices"]["0"]["finish"],
    "several choices": lambda: [c["finish"] for c in joined(chat(max_tokens=5, n=3, stream=True))["choices"].values()],
    "completion": lambda: joined(client.completions.create(model=model, prompt="Once", max_tokens=5, stream=True, **fixed))["choices"]["0"]["finish"],
}
half = {  # answers of which half comes
    "chat": lambda: failure(lambda: chat(max_tokens=50))["status"],
    "completion": lambda: failure(lambda: client.completions.create(model=model, prompt="Once", max_tokens=50))["status"],
    "response": lambda: failure(lambda: client.responses.create(model=model, input="hello", max_output_tokens=50))["status"],
    "message": lambda: [failure(lambda: claude.messages.create(model=model, max_tokens=50, messages=messages[1:]))[k] for k in ("status", "class")],
}
told = {  # what an Anthropic client is told of the prompt in a conversation
    "turns": lambda: [claude.messages.create(model=model, max_tokens=4, messages=[{"role": "user", "content": "word " * 400}] * 1 + [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {i}"}]).usage.cache_read_input_tokens > 0 for i in range(4)],
}
for name, run in {"broken": streams, "unended": unended, "half": half, "told": told}.get("".join(sys.argv[2:]), cases).items():
    try:
        result = run()
    except Exception as e:  # the comparison shows it
        result = {"failed": f"{type(e).__name__}: {e}"}
    print(json.dumps({"case": name, "result": result}, sort_keys=True), flush=True)
