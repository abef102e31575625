"""Client of the kvpilot inference router.

AsyncClient (asyncio) and Client choose a replica, report a request's lifecycle, stream answers through the router or
directly from the chosen replica, and tokenize. Errors are Error and its kinds. kvpilot.v1 has the generated contract.
"""

from kvpilot._aio import AsyncChoice, AsyncClient
from kvpilot._core import (
    AuthenticationError,
    ConflictError,
    DeadlineError,
    Error,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from kvpilot._sync import Choice, Client

__all__ = [
    "AsyncChoice", "AsyncClient", "AuthenticationError", "Choice", "Client", "ConflictError", "DeadlineError", "Error",
    "InvalidRequestError", "NotFoundError", "OverloadedError", "UnavailableError",
]
