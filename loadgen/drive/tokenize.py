"""Asks an engine's own `/tokenize` what prompts for its model are made of. vLLM and SGLang have it, gateways do not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Exchange
from loadgen.workload.texts import Vocabulary
from loadgen.workload.vocabulary import find, read_book
from protocol.openai import answer_of

_ERROR_CHARS = 200


class _Tokens(msgspec.Struct):
    tokens: list[int]


async def engine_vocabulary(chat: ChatRequests, ask: Callable[[bytes], Awaitable[Exchange]]) -> Vocabulary:
    """Some 450 questions, one after another, each of some hundred tokens.

    Raises ValueError when one is not answered as it should be, or the tokenizer has too few words of one token.
    """
    finding = find(read_book())
    text = next(finding)
    try:
        while True:
            text = finding.send(_tokens(await ask(chat.tokenize(text))))
    except StopIteration as end:
        found: Vocabulary = end.value
        return found


def _tokens(exchange: Exchange) -> list[int]:
    if exchange.outcome != "ok":
        raise ValueError(exchange.error)
    if exchange.status != 200:
        message = (answer_of(exchange.body()).error or {}).get("message", exchange.body().decode(errors="replace"))
        raise ValueError(f"http {exchange.status} {str(message)[:_ERROR_CHARS]}".rstrip())
    try:
        return msgspec.json.decode(exchange.body(), type=_Tokens).tokens
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
