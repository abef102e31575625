"""Client of the kvpilot inference router.

AsyncClient (asyncio) and Client choose a replica, report a request's lifecycle, stream answers through the router or
directly from the chosen replica, and tokenize. Errors are Error and its kinds. kvpilot.v1 has the generated contract;
kvpilot.openai makes clients of openai's SDK that send to the chosen replica, kvpilot.transport does it for any httpx client.
"""

from kvpilot._aio import AsyncClient
from kvpilot._async_choice import AsyncChoice, AsyncFollowed
from kvpilot._async_tracker import AsyncTracker
from kvpilot._core import (
    AuthenticationError,
    ConflictError,
    DeadlineError,
    Error,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ReplicaError,
    TrackerClosedError,
    UnavailableError,
)
from kvpilot._sync import Client
from kvpilot._sync_choice import Choice, Followed
from kvpilot._sync_tracker import Tracker

__all__ = [
    "AsyncChoice", "AsyncClient", "AsyncFollowed", "AsyncTracker", "AuthenticationError", "Choice", "Client", "ConflictError",
    "DeadlineError", "Error", "Followed", "InvalidRequestError", "NotFoundError", "OverloadedError", "ReplicaError", "Tracker",
    "TrackerClosedError", "UnavailableError",
]
