"""A scheduled request as the bytes of one request for a completion: a chat of text, or a prompt of token ids.

Everything a run sends is made here: a prompt of exactly the planned length, a fixed output length
(`ignore_eos`), and a sampled trace whose id joins what the gateway and the engine record of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from loadgen.drive.client import Target
from loadgen.workload.texts import USUAL, Texts, Vocabulary
from protocol import traceparent
from protocol.records import ScheduledRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request ready to be written."""

    request_id: str
    trace_id: str
    wire: bytes


class ChatRequests:
    """Builds the requests of one run; costs at most 60 ns per prompt token."""

    def __init__(
        self,
        target: Target,
        *,
        model: str,
        run_id: str,
        vocabulary: Vocabulary = USUAL,
        token_ids: bool = False,
        api_key: str | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._target = target
        self._model = model
        self._run_id = run_id
        self._texts = Texts(vocabulary)
        self._token_ids = token_ids
        self._random_bytes = random_bytes
        self._authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self.template_tokens = 0
        """Prompt tokens that the chat template adds to the text; left out of every prompt's text."""

    def streamed(self, request: ScheduledRequest) -> Outgoing:
        """The request as it is measured."""
        made = self._texts.prompt_ids if self._token_ids else self._texts.prompt
        prompt = made(request.segments, request.prompt_tokens - self.template_tokens)
        body = {**self._asked(prompt, request.output_tokens), "stream": True, "stream_options": {"include_usage": True}}
        trace = traceparent.new(self._random_bytes(24))
        request_id = f"{self._run_id}-{request.index}"
        extra = f"traceparent: {traceparent.header(trace).decode()}\r\nx-request-id: {request_id}\r\n"
        wire = self._wire("POST", self._path, msgspec.json.encode(body), extra)
        return Outgoing(request_id=request_id, trace_id=trace.trace_id, wire=wire)

    def calibration(self, tokens: int, seed: int) -> bytes:
        """A request whose answer tells how many tokens a prompt of `tokens` has, with what a template adds."""
        text = self._texts
        prompt = text.prompt_ids(((seed, tokens),), tokens) if self._token_ids else text.words(tokens, seed)
        return self._wire("POST", self._path, msgspec.json.encode(self._asked(prompt, 1)), "")

    def tokenize(self, text: str) -> bytes:
        """Asks for the tokens of a text as such, as vLLM and SGLang understand it."""
        body = msgspec.json.encode({"model": self._model, "prompt": text, "add_special_tokens": False})
        return self._wire("POST", "/tokenize", body, "")

    def models(self) -> bytes:
        """Asks for the list of models."""
        return self._wire("GET", "/v1/models", b"", "")

    @property
    def _path(self) -> str:
        return "/v1/completions" if self._token_ids else "/v1/chat/completions"

    def _asked(self, prompt: str | list[int], max_tokens: int) -> dict[str, object]:
        content = {"prompt": prompt} if self._token_ids else {"messages": [{"role": "user", "content": prompt}]}
        return {"model": self._model, **content, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}

    def _wire(self, method: str, path: str, body: bytes, extra: str) -> bytes:
        head = (
            f"{method} {self._target.path}{path} HTTP/1.1\r\nhost: {self._target.authority}\r\n"
            f"user-agent: weir\r\ncontent-type: application/json\r\n{self._authorization}{extra}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
