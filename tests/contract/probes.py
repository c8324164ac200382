"""What is asked of every engine, real or standing in, and what counts of its answer: the shape. Pure.

A shape is what a client's code depends on: status, media type, the keys and types of JSON, literal values where code
compares with them, the order of the kinds of events in a stream. Text, ids, times and counts are left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

MODEL = "tiny"
CONTEXT_TOKENS = 16384

LITERAL_KEYS = {"object", "finish_reason", "role", "type", "param", "code", "owned_by"}
"""Members whose values clients compare with."""

HEADERS = ("content-type", "allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request. `kinds` are the engines that it makes sense for."""

    name: str
    method: str = "POST"
    path: str = "/v1/chat/completions"
    body: Any = None
    """JSON, or bytes to be sent as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("vllm", "sglang")


def _chat(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me of rivers."}]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


def _text(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Rivers", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
TEXT = "/v1/completions"

PROBES = (
    Probe(name="chat", body=_chat()),
    Probe(name="chat, two choices", body=_chat(n=2, temperature=1)),
    Probe(name="chat, max_completion_tokens", body={**_chat(), "max_completion_tokens": 3}),
    Probe(name="chat, log probabilities", body=_chat(logprobs=True, top_logprobs=2)),
    Probe(name="chat, with a request id", body=_chat(), headers={"x-request-id": "contract-1"}),
    Probe(name="chat stream", body=_chat(stream=True)),
    Probe(name="chat stream, usage", body=_chat(stream=True, stream_options=USAGE)),
    Probe(name="chat stream, continuous usage", body=_chat(stream=True, stream_options=CONTINUOUS)),
    Probe(name="chat stream, two choices", body=_chat(stream=True, n=2, temperature=1)),
    Probe(name="chat stream, log probabilities", body=_chat(stream=True, logprobs=True, top_logprobs=2)),
    Probe(name="completions", path=TEXT, body=_text()),
    Probe(name="completions, two prompts", path=TEXT, body=_text(prompt=["Rivers", "Lakes"])),
    Probe(name="completions, echo", path=TEXT, body=_text(echo=True)),
    Probe(name="completions stream", path=TEXT, body=_text(stream=True)),
    Probe(name="completions stream, usage", path=TEXT, body=_text(stream=True, stream_options=USAGE)),
    Probe(name="unknown model", body=_chat(model="gpt-9")),
    Probe(name="unknown model, stream", body=_chat(model="gpt-9", stream=True)),
    Probe(name="no model", body={k: v for k, v in _chat().items() if k != "model"}),
    Probe(name="not JSON", body=b'{"model": ', headers={"content-type": "application/json"}),
    Probe(name="JSON of another type", body=[]),
    Probe(name="no messages", body=_chat(messages=[])),
    Probe(name="wrong type", body=_chat(temperature="hot")),
    Probe(name="out of range", body=_chat(top_p=-1)),
    Probe(name="max_tokens 0", body=_chat(max_tokens=0)),
    Probe(name="max_tokens -1", body=_chat(max_tokens=-1)),
    Probe(name="more than the context", body=_chat(messages=[{"role": "user", "content": "river " * CONTEXT_TOKENS}])),
    Probe(name="more than the context, stream", body=_chat(stream=True, max_tokens=2 * CONTEXT_TOKENS)),
    Probe(name="a field of nobody's", body=_chat(x_unknown=1)),
    Probe(name="models", method="GET", path="/v1/models"),
    Probe(name="no such route", method="GET", path="/v1/nothing"),
    Probe(name="wrong method", method="GET"),
    Probe(name="health", method="GET", path="/health"),
    Probe(name="ready", method="GET", path="/ready", kinds=("sglang",)),
    Probe(name="ping", method="GET", path="/ping"),
    Probe(name="version", method="GET", path="/version", kinds=("vllm",)),
    Probe(name="load", method="GET", path="/load", kinds=("vllm",)),
    Probe(name="loads", method="GET", path="/v1/loads?include=core", kinds=("sglang",)),
    Probe(name="model information", method="GET", path="/model_info", kinds=("sglang",)),
    Probe(name="tokenize", path="/tokenize", body={"model": MODEL, "prompt": "Rivers run."}),
    Probe(name="cache reset", path="/reset_prefix_cache", kinds=("vllm",)),
    Probe(name="cache flush", path="/flush_cache", kinds=("sglang",)),
    Probe(name="abort of an unknown request", path="/abort_request", body={"rid": "nobody"}, kinds=("sglang",)),
)


def shape(status: int, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The shape of an answer, as JSON can hold it."""
    kept = {name: headers[name] for name in HEADERS if name in headers}
    out: dict[str, Any] = {"status": status, "headers": kept}
    if kept.get("content-type", "").startswith("text/event-stream"):
        out["events"] = _stream(body)
    elif kept.get("content-type", "").startswith("application/json"):
        out["json"] = _value(json.loads(body), "") if body else None
    else:
        out["body"] = bool(body)
    return out


def _stream(body: bytes) -> list[Any]:
    """Shapes of the events in the order in which each comes first: choices of one answer take turns as they like."""
    shapes: list[Any] = []
    for line in body.decode().split("\n"):
        if not line:
            continue
        field_name, _, data = line.partition(": ")
        one = data if data == "[DONE]" else _value(json.loads(data), "")
        if {field_name: one} not in shapes:
            shapes.append({field_name: one})
    return shapes


def _value(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _value(member, name) for name, member in sorted(value.items())}
    if isinstance(value, list):
        members = [_value(member, key) for member in value]
        return [member for number, member in enumerate(members) if member not in members[:number]]
    if value is None or isinstance(value, bool) or key in LITERAL_KEYS:
        return value
    return type(value).__name__
