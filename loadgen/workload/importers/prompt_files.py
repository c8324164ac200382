"""Inputs of other load generators: prompts as text, mostly without times. AIPerf, GuideLLM, `vllm bench serve`.

Text has no length in tokens before a tokenizer has counted it; a count that the file states is taken as it is.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from loadgen.workload.importers.json_logs import OWN_TEXT, Object, blocks, lines, parsed
from loadgen.workload.importers.rows import (
    BadRow,
    LeftOut,
    Row,
    Rows,
    Segment,
    each,
    milliseconds_ns,
    open_log,
    shown,
    tokens,
)

Count = Callable[[str], int]
"""Tokens of a text."""

_GUIDELLM_PROMPT = ("prompt", "text", "input", "question", "instruction")
_GUIDELLM_PROMPT_TOKENS = ("prompt_tokens_count", "input_tokens_count", "prompt_tokens")
_GUIDELLM_OUTPUT_TOKENS = ("output_tokens_count", "completion_tokens_count", "output_tokens")
_OUTPUT_TOKENS = ("output_length", "output_tokens", "max_tokens")
_NO_OUTPUT = LeftOut("no output length")


@dataclass(slots=True)
class _Conversation:
    name: str | None
    said: list[Segment] = field(default_factory=list)
    """By both sides, in order: what the next prompt begins with."""
    at_ns: int | None = None
    broken: bool = False
    """A turn is not there, so nobody knows what the next prompt begins with."""


class Aiperf:
    """`single_turn`, `multi_turn` and `mooncake_trace` JSON lines. Conversations go on from one file to the next.

    The prompt of a turn is all turns before it, their answers, and its own text: `text`, `texts` or `text_input`, or
    `input_length` tokens, which `hash_ids` may tell the blocks of. Turns are those in `turns`, or lines of the same
    `session_id`. Times are in ms where given; a `delay` counts from the turn before, since nobody knows how long its
    answer takes.
    """

    def __init__(self, counted: Count | None) -> None:
        self._counted = counted
        self._identities = count(OWN_TEXT)
        self._known: dict[str, _Conversation] = {}

    def read(self, path: Path) -> Rows:
        """The rows of one file."""
        return each(lines(path), self._line)

    def _line(self, line: str, place: str) -> Rows:
        row = parsed(line, place)
        turns = row.get("turns", [row])
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise BadRow(f"{place}: turns {shown(turns)}: expected a list of objects")
        session = row.get("session_id")
        if session is None:
            conversation = _Conversation(place if "turns" in row else None)
        else:
            conversation = self._known.setdefault(str(session), _Conversation(str(session)))
        for turn in turns:
            yield from self._turn(turn, conversation, place)

    def _turn(self, turn: Object, conversation: _Conversation, place: str) -> Rows:
        if conversation.broken:
            yield LeftOut("after a turn that is left out")
            return
        conversation.broken = True
        output = _stated(turn, _OUTPUT_TOKENS, place)
        if output is None:
            yield _NO_OUTPUT
            return
        conversation.at_ns = _turn_time_ns(turn, conversation.at_ns, place)
        conversation.said += self._own_text(turn, place)
        segments = tuple(conversation.said)
        conversation.said.append((next(self._identities), output))
        conversation.broken = False
        yield Row(conversation.at_ns, sum(length for _, length in segments), output, conversation.name, segments)

    def _own_text(self, turn: Object, place: str) -> tuple[Segment, ...]:
        stated = _stated(turn, ("input_length",), place)
        length = _length(_turn_text(turn, place), self._counted, place) if stated is None else stated
        return blocks(turn.get("hash_ids"), length, place) or ((next(self._identities), length),)


def _turn_text(turn: Object, place: str) -> str:
    texts = next((turn[name] for name in ("texts", "text", "text_input") if turn.get(name) is not None), None)
    if isinstance(texts, str):
        return texts
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    raise BadRow(f"{place}: text {shown(texts)}: expected a text, a list of them, or input_length")


def _turn_time_ns(turn: Object, before_ns: int | None, place: str) -> int | None:
    if turn.get("timestamp") is not None:
        return milliseconds_ns(turn["timestamp"], "timestamp", place)
    if before_ns is None:
        return None
    return before_ns + milliseconds_ns(turn.get("delay") or 0, "delay", place)


def read_guidellm(path: Path, counted: Count | None) -> Rows:
    """CSV or JSON lines with a `prompt` and, as far as given, `prompt_tokens_count` and `output_tokens_count`."""

    def read(row: Object, place: str) -> Rows:
        output = _stated(row, _GUIDELLM_OUTPUT_TOKENS, place)
        if output is None:
            yield _NO_OUTPUT
            return
        stated = _stated(row, _GUIDELLM_PROMPT_TOKENS, place)
        text = next((row[name] for name in _GUIDELLM_PROMPT if isinstance(row.get(name), str)), None)
        if stated is None and text is None:
            raise BadRow(f"{place}: no prompt: expected a column {', '.join(_GUIDELLM_PROMPT)}")
        yield Row(None, _length(str(text), counted, place) if stated is None else stated, output)

    if ".csv" in path.suffixes:
        return each(_csv(path), read)
    return each(lines(path), lambda line, place: read(parsed(line, place), place))


def _csv(path: Path) -> Iterator[tuple[str, Object]]:
    with open_log(path) as file:
        table = csv.DictReader(file)
        for row in table:
            yield f"{path}:{table.line_num}", dict(row)


def read_vllm(path: Path, counted: Count | None) -> Rows:
    """`--dataset-name custom` (JSON lines with `prompt` and `output_tokens`) or `sharegpt` (one JSON list).

    Of a ShareGPT conversation the first two messages count, as in `vllm bench serve`: prompt, and length of the answer.
    """

    def custom(line: str, place: str) -> Rows:
        row = parsed(line, place)
        output = _stated(row, _OUTPUT_TOKENS, place)
        prompt = row.get("prompt")
        if not isinstance(prompt, str):
            raise BadRow(f"{place}: prompt {shown(prompt)}: expected a text")
        yield _NO_OUTPUT if output is None else Row(None, _length(prompt, counted, place), output)

    def sharegpt(raw: msgspec.Raw, place: str) -> Rows:
        conversation = parsed(raw, place)
        messages = conversation.get("conversations", conversation.get("conversation"))
        listed = messages if isinstance(messages, list) else []
        texts = [str(message["value"]) for message in listed if isinstance(message, dict) and "value" in message]
        if len(texts) < 2:
            yield LeftOut("fewer than two messages")
            return
        prompt, answer = (_length(text, counted, place) for text in texts[:2])
        yield Row(None, prompt, answer)

    if ".json" in path.suffixes:
        return each(_listed(path), sharegpt)
    return each(lines(path), custom)


def _listed(path: Path) -> Iterator[tuple[str, msgspec.Raw]]:
    with open_log(path) as file:
        try:
            conversations = msgspec.json.decode(file.read(), type=list[msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise BadRow(f"{path}: not a JSON list of conversations: {error}") from None
    for number, conversation in enumerate(conversations):
        yield f"{path}: conversation {number}", conversation


def _stated(row: Object, names: tuple[str, ...], place: str) -> int | None:
    for name in names:
        if row.get(name) not in (None, ""):
            return tokens(row[name], name, place)
    return None


def _length(text: str, counted: Count | None, place: str) -> int:
    if counted is None:
        raise BadRow(
            f"{place}: the prompt is text: give --tokenizer FILE, the model's tokenizer.json, to count its tokens"
        )
    return counted(text)
