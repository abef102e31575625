"""An agent with many streams at once, by openai's SDK: python sdk.py localhost:9090 MODEL localhost:8080"""

import asyncio
import sys

from kvpilot import AsyncClient
from kvpilot.openai import async_openai


async def main(target: str, model: str, rest: str) -> None:
    async with AsyncClient(target) as client, async_openai(client, base_url=f"http://{rest}/v1") as openai:

        async def ask(n: int) -> str:
            stream = await openai.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"Question {n}"}], max_tokens=16, stream=True,
                extra_headers={"x-session-id": f"agent-{n}"})
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        for answer in await asyncio.gather(*(ask(n) for n in range(8))):
            print(answer)


asyncio.run(main(*sys.argv[1:]))
