"""Converts messages as vLLM does, one JSON line at a time: a request into a chat request, which is compared with the one that came with it, or
the chunks of a chat into the events of a message."""

import asyncio
import json
import sys

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

# The router's chat has one limit of two of the same meaning, and reads no usage in the middle of a stream. Names are drawn.
OTHERWISE = ("max_completion_tokens", "stream_options", "request_id")


class Converter(AnthropicServingMessages):
    def __init__(self):
        pass

    async def events(self, chunks):
        async def generator():
            for c in chunks:
                kind = ErrorResponse if "error" in c else ChatCompletionStreamResponse
                yield kind.model_validate(c)
                if "error" in c:
                    return

        return "".join([e async for e in self.message_stream_converter(generator())])


def fields(request):
    return {k: v for k, v in json.loads(request.model_dump_json()).items() if k not in OTHERWISE}


def compare(message, chat):
    """Both ways of placing inline system messages must give the chat: it may not depend on the engine's template."""
    got = fields(ChatCompletionRequest.model_validate(chat))
    for merge in (False, True):
        want = fields(
            Converter.to_chat_completion_request(
                AnthropicMessagesRequest.model_validate(message), merge_inline_system=merge
            )
        )
        differ = {k: (got.get(k), v) for k, v in want.items() if got.get(k) != v}
        if differ or got.keys() != want.keys():
            return f"differs, the router's first: {differ}"
    return ""


converter = Converter()
for line in sys.stdin:
    job = json.loads(line)
    if "chunks" in job:
        print(json.dumps(asyncio.run(converter.events(job["chunks"]))), flush=True)
    else:
        print(json.dumps(compare(job["message"], job["chat"])), flush=True)
