"""How a failover scenario is played and judged: misbehaving engines, a client that reads one answer, the verdict.

The scenarios and their measures are those of the public Failover Bench catalogue, retold. Its seconds are shortened:
one second of the catalogue lasts `SECOND` here, for engines, client and the gateway's configuration alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from protocol.records import GatewayRecord
from tests.gateway.conftest import STREAMED, RunningGateway, StartGateway
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    USAGE,
    Conversation,
    Received,
    Script,
    ScriptedEngine,
    chunk,
    json_response,
    running,
    token,
)

SECOND = 0.04
TOKENS = 60
FIRST_BYTE_S = 10.0
"""What the gateway waits for a first token, in the catalogue's seconds."""

POOL: dict[str, Any] = {
    "timeouts": {
        "connect_s": 1.0,
        "first_byte_s": FIRST_BYTE_S * SECOND,
        "chunk_gap_s": 15 * SECOND,
        "total_s": 95 * SECOND,
    },
    "retry": {
        "base_delay_s": 0.05 * SECOND,
        "max_delay_s": 2 * SECOND,
        "max_retry_after_s": 5 * SECOND,
        "budget_min_per_s": 1 / SECOND,
    },
    "breaker": {"window_s": 30 * SECOND, "open_s": 5 * SECOND, "max_open_s": 20 * SECOND},
    "slow_start_s": 10 * SECOND,
}
"""The gateway's defaults, shortened, but for the two timeouts that the catalogue asks for (10 s and 15 s here)."""

REQUEST = {**STREAMED, "temperature": 0}
"""The same answer from every engine, so that it can be continued by one that takes no prefill."""

Verdict = Literal["pass", "partial", "safe", "fail"]


@dataclass(kw_only=True)
class Answer:
    """What the client made of one response. A client that skips an event which it cannot read, as SSE clients may."""

    status: int | None = None
    tokens: list[int] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    finished: bool = False
    usage: dict[str, int] | None = None
    error: dict[str, object] | None = None
    elapsed_s: float = 0.0
    """In the catalogue's seconds."""
    hung: bool = False

    @property
    def complete(self) -> bool:
        """Every token once and in order, an end, and no error."""
        return self.finished and self.error is None and not self.hung and self.tokens == list(range(TOKENS))

    def read(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            if line.startswith(b"data: ") and line[6:] != b"[DONE]":
                try:
                    self._take(msgspec.json.decode(line[6:]))
                except msgspec.DecodeError:
                    continue

    def _take(self, event: dict[str, Any]) -> None:
        self.error = event.get("error", self.error)
        self.usage = event.get("usage", self.usage)
        if "model" in event:
            self.models.add(event["model"])
        for choice in event.get("choices", ()):
            self.tokens += [int(text) for text in choice["delta"]["content"].split()]
            self.finished = self.finished or choice["finish_reason"] is not None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request that an engine got; seconds of the catalogue since the start."""

    at_s: float
    engine: Literal["primary", "fallback"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What client, engines and gateway saw of one scenario. Its first answer is judged; later ones must be whole."""

    answers: Sequence[Answer]
    attempts: Sequence[Attempt]
    records: Sequence[GatewayRecord]
    openings: int
    """How often the primary's circuit opened."""

    @property
    def first(self) -> Answer:
        return self.answers[0]

    def at(self, engine: str) -> list[float]:
        return [attempt.at_s for attempt in self.attempts if attempt.engine == engine]

    def within(self, seconds: float) -> int:
        """Attempts in the first `seconds`."""
        return sum(attempt.at_s <= seconds for attempt in self.attempts)


def _always(_: Trial) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the catalogue."""

    number: int
    title: str
    primary: Callable[[], Script]
    fallback: Callable[[], Script]
    expected: Verdict
    engine: Literal["vllm", "openai"] = "vllm"
    """What the operator says of the pool: vLLM honours a final assistant message, an unknown server may not."""
    conduct: Callable[[Trial], bool] = _always
    """What must hold, whatever the client got."""
    advisory: Callable[[Trial], bool] = _always
    """What a mature gateway does beside it."""
    right_end: Callable[[Answer], bool] = lambda answer: answer.complete
    limit_s: float = 100.0
    """Longer than this is a hang."""
    requests: int = 1
    every_s: float = 0.0
    """Between the starts of two requests; 0: one after the other."""


def judge(scenario: Scenario, trial: Trial) -> Verdict:
    """*pass*: the right end and conduct; *partial*: an advisory point failed; *safe*: a clean error instead of the
    right end; *fail*: a hang, bad conduct, a part of an answer shown as the whole, or harm to later requests."""
    first = trial.first
    if first.hung or not scenario.conduct(trial) or not all(answer.complete for answer in trial.answers[1:]):
        return "fail"
    if scenario.right_end(first):
        return "pass" if scenario.advisory(trial) else "partial"
    return "safe" if first.error is not None else "fail"


async def play(
    scenario: Scenario, start_gateway: StartGateway, *, continuation: bool = True, alone: bool = False
) -> Trial:
    """Plays one scenario over real sockets, against a gateway whose pool is the fallback and the primary, or the
    primary `alone`."""
    loop = asyncio.get_running_loop()
    attempts: list[Attempt] = []
    started_s = 0.0

    def noting(name: Literal["primary", "fallback"], script: Script) -> Script:
        async def noted(request: Received, conversation: Conversation) -> None:
            attempts.append(Attempt(at_s=(loop.time() - started_s) / SECOND, engine=name))
            await script(request, conversation)

        return noted

    async with AsyncExitStack() as stack:

        async def engine(name: Literal["primary", "fallback"], script: Script) -> ScriptedEngine:
            return await stack.enter_async_context(running(noting(name, script)))

        primary = await engine("primary", scenario.primary())
        fallback = await engine("fallback", scenario.fallback())
        # The first turn of a round robin is the second endpoint's.
        urls = [primary.url] if alone else [fallback.url, primary.url]
        routes = [{"model": "m", "split": {"p": 1}, "continuation": continuation}]
        gateway = await stack.enter_async_context(
            start_gateway(urls, pool={**POOL, "engine": scenario.engine}, routes=routes)
        )
        started_s = loop.time()
        answers = await _ask_all(scenario, gateway)
        return Trial(
            answers=answers,
            attempts=attempts,
            records=await gateway.records(),
            openings=gateway.gateway.fleet.pools["p"].endpoints[-1].breaker.openings,
        )


async def _ask_all(scenario: Scenario, gateway: RunningGateway) -> list[Answer]:
    if not scenario.every_s:
        return [await _ask(gateway, scenario.limit_s) for _ in range(scenario.requests)]

    async def later(number: int) -> Answer:
        await asyncio.sleep(number * scenario.every_s * SECOND)
        return await _ask(gateway, scenario.limit_s)

    return list(await asyncio.gather(*(later(number) for number in range(scenario.requests))))


async def _ask(gateway: RunningGateway, limit_s: float) -> Answer:
    loop, answer = asyncio.get_running_loop(), Answer()
    started_s = loop.time()
    try:
        async with (
            asyncio.timeout(limit_s * SECOND),
            gateway.client.stream("POST", "/v1/chat/completions", json=REQUEST, timeout=None) as response,
        ):
            answer.status = response.status_code
            data = await response.aread()
        if answer.status == 200:
            answer.read(data)
        else:
            answer.error = msgspec.json.decode(data)["error"]
    except TimeoutError:
        answer.hung = True
    answer.elapsed_s = (loop.time() - started_s) / SECOND
    return answer


Fault = Callable[[Conversation], Awaitable[None]]


def numbered(first: int, last: int, *, model: str = "m") -> list[bytes]:
    """Events whose tokens are the numbers from `first` up to, not including, `last`; the sixtieth one finishes."""
    return [
        token(f" {number}", "stop" if number == TOKENS - 1 else None).replace(
            b'"model":"m"', b'"model":"%b"' % model.encode()
        )
        for number in range(first, last)
    ]


async def send_events(conversation: Conversation, events: Sequence[bytes], *, end: bytes = LAST_CHUNK) -> None:
    """A stream of these events, one HTTP chunk each."""
    await conversation.send(SSE_HEAD)
    for event in events:
        await conversation.send(chunk(event))
    await conversation.send(end)


def usage(model: str, completion_tokens: int = TOKENS) -> bytes:
    said = USAGE.replace(b'"completion_tokens":3', b'"completion_tokens":%d' % completion_tokens)
    return said.replace(b'"model":"m"', b'"model":"%b"' % model.encode())


def healthy(model: str = "m") -> Script:
    """An engine that answers well, and goes on from a final assistant message where it is told to."""

    async def script(request: Received, conversation: Conversation) -> None:
        asked = msgspec.json.decode(request.body)
        said = asked["messages"][-1]["content"].split() if asked.get("continue_final_message") else []
        await send_events(
            conversation, [*numbered(len(said), TOKENS, model=model), usage(model, TOKENS - len(said)), DONE]
        )

    return script


def always(fault: Fault) -> Script:
    async def script(_: Received, conversation: Conversation) -> None:
        await fault(conversation)

    return script


def once(fault: Fault) -> Script:
    """The first request meets `fault`, all others a healthy engine."""
    well, met = healthy(), False

    async def script(request: Received, conversation: Conversation) -> None:
        nonlocal met
        if met:
            await well(request, conversation)
        else:
            met = True
            await fault(conversation)

    return script


def for_the_first(seconds: float, fault: Fault) -> Script:
    """Requests meet `fault` until the outage, which the first of them starts, is over."""
    well, until_s = healthy(), 0.0

    async def script(request: Received, conversation: Conversation) -> None:
        nonlocal until_s
        now_s = asyncio.get_running_loop().time()
        until_s = until_s or now_s + seconds * SECOND
        await (fault(conversation) if now_s < until_s else well(request, conversation))

    return script


def refusal(status: int, kind: str, extra: bytes = b"") -> Fault:
    """An error response; `kind` is its `code`, as providers write it."""
    body = b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"%b"}}' % kind.encode()

    async def refuse(conversation: Conversation) -> None:
        await conversation.send(json_response(body, status=status, extra=extra))

    return refuse
