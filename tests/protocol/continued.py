"""Engines that say a known text, as vLLM and SGLang write it, and go on from whatever a request has them go on from."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from protocol.sse import SseParser

PROMPT_TOKENS = 11
DONE = b"data: [DONE]\n\n"


def tokens_of(text: str) -> list[str]:
    """White space comes in one token, everything else in one for each character."""
    return re.findall(r"\s+|\S", text)


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Says `text` to its end, one event for `stride` tokens. SGLang's finish reason comes in an event of its own."""

    text: str
    family: str = "chat"
    kind: str = "vllm"
    name: str = "first"
    stride: int = 1
    continuous: bool = True

    def events(self, body: bytes) -> list[bytes]:
        request = msgspec.json.decode(body, type=dict[str, object])
        said = self.said(request)
        assert self.text.startswith(said)
        rest = tokens_of(self.text[len(said) :])
        bound = request.get("max_tokens")
        assert bound is None or isinstance(bound, int)
        reason = "stop" if bound is None or bound >= len(rest) else "length"
        return self._written(rest[:bound], PROMPT_TOKENS + len(tokens_of(said)), reason)

    def said(self, request: dict[str, object]) -> str:
        if self.family == "completions":
            return str(request["prompt"]).removeprefix("Once")
        if not request.get("continue_final_message"):
            return ""
        assert request["add_generation_prompt"] is False
        last = msgspec.convert(request["messages"], list[dict[str, str]])[-1]
        assert last["role"] == "assistant"
        return last["content"]

    def _written(self, tokens: list[str], prompt_tokens: int, reason: str) -> list[bytes]:
        events = [self._chunk({"role": "assistant", "content": ""}, prompt_tokens, 0)] if self.family == "chat" else []
        apart = self.kind == "sglang" and self.family == "chat"
        starts = range(0, len(tokens), self.stride)
        for start in starts:
            piece = tokens[start : start + self.stride]
            finish = reason if start == starts[-1] and not apart else None
            events.append(self._chunk({"content": "".join(piece)}, prompt_tokens, start + len(piece), finish))
        if apart or not tokens:
            events.append(self._chunk({} if apart else {"content": ""}, prompt_tokens, len(tokens), reason))
        usage = {"choices": [], "usage": self._usage(prompt_tokens, len(tokens))}
        return [*events, event(self._head() | usage), DONE]

    def _head(self) -> dict[str, object]:
        return {"id": f"id-{self.name}", "created": len(self.name), "model": f"model-{self.name}"}

    def _chunk(self, delta: dict[str, str | None], prompt: int, completion: int, finish: str | None = None) -> bytes:
        if self.kind == "sglang":
            delta = {"reasoning_content": None, **delta}
        choice: dict[str, object] = {"index": 0, "delta": delta}
        if self.family == "completions":
            choice = {"index": 0, "text": delta.get("content", "")}
        chunk = self._head() | {"choices": [choice | {"logprobs": None, "finish_reason": finish}]}
        return event(chunk | ({"usage": self._usage(prompt, completion)} if self.continuous else {}))

    def _usage(self, prompt: int, completion: int) -> dict[str, object]:
        details = {"cached_tokens": 5 if self.name == "first" else 9}
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
        }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an application makes of a stream: everything that must not depend on who said which part."""

    heads: set[tuple[object, ...]]
    roles: list[str]
    text: str
    finish: list[str]
    usage: list[dict[str, int]]
    done: bool


def seen_by_client(stream: bytes) -> Seen:
    chunks = [each.data for each in SseParser().feed(stream)]
    done = chunks[-1:] == [b"[DONE]"]
    values = [msgspec.json.decode(data) for data in chunks if data != b"[DONE]"]
    choices = [choice for value in values for choice in value["choices"]]
    deltas = [choice.get("delta") or {"content": choice.get("text")} for choice in choices]
    return Seen(
        heads={(value["id"], value["created"], value["model"]) for value in values},
        roles=[delta["role"] for delta in deltas if delta.get("role")],
        text="".join(delta.get("content") or "" for delta in deltas),
        finish=[choice["finish_reason"] for choice in choices if choice.get("finish_reason")],
        usage=[value["usage"] for value in values if not value["choices"] and value.get("usage")],
        done=done,
    )
