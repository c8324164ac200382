"""Which idle connection to use again. Pure: connections are opaque, time is an argument.

Engines close a connection that was idle for 5 s (uvicorn's default, in vLLM and SGLang alike), so one that
was idle for nearly as long is not worth the race and is handed back to be closed.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Connection = TypeVar("Connection")

MAX_IDLE_S = 4.0
MAX_IDLE_CONNECTIONS = 512
"""Per endpoint; nginx's documentation suggests keepalive counts of this order. Above it the oldest goes."""


class IdlePool(Generic[Connection]):
    """Idle connections to one endpoint, the most recently used first: the others may then age out."""

    def __init__(self, max_idle_s: float = MAX_IDLE_S, max_connections: int = MAX_IDLE_CONNECTIONS) -> None:
        self._idle: deque[tuple[float, Connection]] = deque()
        self._max_idle_s = max_idle_s
        self._max_connections = max_connections

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, now_s: float) -> Connection | None:
        """The freshest connection, or None when there is none fresh enough."""
        if self._idle and now_s - self._idle[-1][0] < self._max_idle_s:
            return self._idle.pop()[1]
        return None

    def put(self, connection: Connection, now_s: float) -> None:
        """Keeps a connection that has just become idle. `now_s` must not go back."""
        self._idle.append((now_s, connection))

    def discard(self, connection: Connection) -> None:
        """Forgets a connection that closed while idle."""
        self._idle = deque(entry for entry in self._idle if entry[1] is not connection)

    def expired(self, now_s: float) -> list[Connection]:
        """Takes out every connection that is too old or one too many; the caller closes them."""
        out: list[Connection] = []
        while self._idle and (len(self._idle) > self._max_connections or now_s - self._idle[0][0] >= self._max_idle_s):
            out.append(self._idle.popleft()[1])
        return out
