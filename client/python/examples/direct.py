"""Choose a replica and stream from it directly: python direct.py localhost:9090 MODEL"""

import asyncio
import sys

import httpx

from kvpilot import AsyncClient


async def main(target: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    async with AsyncClient(target) as client, httpx.AsyncClient(timeout=None) as http:
        async for event in client.stream_direct(body, http=http, session_id="example"):
            for choice in event["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    print()


asyncio.run(main(sys.argv[1], sys.argv[2]))
