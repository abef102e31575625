"""Clients of openai's SDK that send each request to the replica that kvpilot chooses: `pip install 'kvpilot[openai]'`.

What they return is openai.OpenAI and openai.AsyncOpenAI themselves, with the SDK's own HTTP client before a transport of
kvpilot's: only documented arguments are used, whichever HTTP package the SDK is made with. kvpilot.transport says what goes
where, and what happens when something cannot be reached.
"""

from __future__ import annotations

from typing import Any

import openai

from kvpilot._aio import AsyncClient
from kvpilot._async_tracker import AsyncTracker
from kvpilot._direct import LEASE
from kvpilot._sync import Client
from kvpilot._sync_tracker import Tracker
from kvpilot.transport import AsyncTransport, Transport

__all__ = ["async_openai", "sync_openai"]


def async_openai(chooser: AsyncClient | AsyncTracker, *, base_url: str, api_key: str | None = None,
                 engine_key: str | None = None, lease: float | None = LEASE, **options: Any) -> openai.AsyncOpenAI:
    """An AsyncOpenAI whose chats and completions go to the replica that is chosen for each, with their lifecycle reported.

    base_url: the router's REST address with /v1; what cannot go to a replica directly goes there. api_key: the router's; by
    default that of chooser. engine_key: a key that the replicas ask for. options: further arguments of AsyncOpenAI. Its
    retries are choices of their own. Close it (`async with`) before the kvpilot client.
    """
    http = openai.DefaultAsyncHttpxClient(transport=AsyncTransport(chooser, engine_key=engine_key, lease=lease))
    client = chooser.client if isinstance(chooser, AsyncTracker) else chooser
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key or client.api_key or "none", http_client=http, **options)


def sync_openai(chooser: Client | Tracker, *, base_url: str, api_key: str | None = None, engine_key: str | None = None,
                lease: float | None = LEASE, **options: Any) -> openai.OpenAI:
    """async_openai without asyncio: an OpenAI. Safe for threads."""
    http = openai.DefaultHttpxClient(transport=Transport(chooser, engine_key=engine_key, lease=lease))
    client = chooser.client if isinstance(chooser, Tracker) else chooser
    return openai.OpenAI(base_url=base_url, api_key=api_key or client.api_key or "none", http_client=http, **options)
