"""Reads command lines of an engine and of the machine around it and says what is wrong. Pure: text in, findings out.

Knows the mistakes that circulate in articles, and every flag of the pinned versions (`known_flags/`, from the engines'
own parsers), so that a misspelt one gets the flag that was meant.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from loadgen.preflight.host_commands import Finding, examine_host_command

VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mistake:
    """`kinds` are the engines it is one for; a `switch` is one only where it has a value."""

    flag: str
    kinds: tuple[str, ...]
    wrong: str
    instead: str
    switch: bool = False


_BOTH = ("vllm", "sglang")
_MISTAKES = (
    _Mistake(
        flag="--disable-log-stats",
        kinds=("vllm",),
        wrong="takes every vllm: series out of /metrics, and ends the engine beside --otlp-traces-endpoint",
        instead="leave it out",
    ),
    _Mistake(
        flag="--disable-log-requests",
        kinds=("vllm",),
        wrong="was removed: requests are not logged unless --enable-log-requests asks for it",
        instead="leave it out",
    ),
    _Mistake(
        flag="--disable-fastapi",
        kinds=_BOTH,
        wrong="has never existed: the server of both engines is FastAPI",
        instead="leave it out (vLLM's --disable-fastapi-docs takes away /docs)",
    ),
    _Mistake(
        flag="--enable-chunked-prefill",
        kinds=("vllm",),
        switch=True,
        wrong="is a switch and takes no value; it is on by default",
        instead="leave it out, or --no-enable-chunked-prefill",
    ),
    _Mistake(
        flag="--enable-prefix-caching",
        kinds=("vllm",),
        switch=True,
        wrong="is a switch and takes no value; it is on by default",
        instead="--enable-prefix-caching, or --no-enable-prefix-caching",
    ),
    _Mistake(
        flag="--tp",
        kinds=("sglang",),
        wrong="is an abbreviation that the next new flag can make ambiguous",
        instead="--tp-size",
    ),
    _Mistake(
        flag="--enable-dp-attention",
        kinds=("sglang",),
        wrong="is a deprecated spelling",
        instead="--attn-dp-size",
    ),
)

_MODULES = {
    "vllm.entrypoints.api_server": "is a demonstration without /v1 and without most of the flags, and no longer there",
    "vllm.entrypoints.openai.api_server": "is a deprecated way in",
}


def kind_of(words: list[str]) -> str | None:
    """Which engine a command line starts."""
    if any(word.startswith("sglang") for word in words):
        return "sglang"
    if any(word == "vllm" or word.endswith("/vllm") or word.startswith("vllm.") for word in words):
        return "vllm"
    return None


def examine(text: str) -> tuple[str | None, list[Finding]]:
    """The kind of engine that is started, if one is, and what is wrong with the commands.

    Takes a shell's commands, or a command of a unit or compose file. Raises ValueError for a text that starts neither
    engine and has no mistake that is known.
    """
    findings: list[Finding] = []
    others = []
    for line in text.replace("\\\n", " ").splitlines():
        found = list(examine_host_command(line))
        findings += found
        if not found:
            others.append(line)
    words = _words("\n".join(others))
    kind = kind_of(words)
    if kind is not None:
        return kind, findings + _examine_engine(kind, words)
    if not findings:
        raise ValueError(
            "this starts neither vLLM nor SGLang (`vllm serve …`, `python -m sglang.launch_server …`), and of other"
            " commands only known mistakes are told: there is none"
        )
    return None, findings


def _examine_engine(kind: str, words: list[str]) -> list[Finding]:
    found = [
        Finding(words=f"-m {word}", wrong=_MODULES[word], instead="vllm serve MODEL")
        for word in words
        if word in _MODULES
    ]
    if any(word.endswith("Llama-3-8b-chat-hf") for word in words):
        found.append(
            Finding(
                words="Llama-3-8b-chat-hf",
                wrong="is no model of that name",
                instead="meta-llama/Meta-Llama-3-8B-Instruct with --revision COMMIT",
            )
        )
    for position, word in enumerate(words):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            following = words[position + 1] if position + 1 < len(words) else ""
            found += _judge(kind, flag, value or ("" if following.startswith("-") else following))
    return found


def _words(text: str) -> list[str]:
    """Without the brackets and commas of lists, and what a unit puts before its command."""
    words = shlex.split(text.replace("ExecStart=", " "), comments=True)
    return [word.strip("[],") for word in words if word.strip("[],")]


def _judge(kind: str, flag: str, value: str) -> list[Finding]:
    # Another word behind a switch belongs to the command, not to the switch.
    switched = value.lower() in ("true", "false")
    for mistake in _MISTAKES:
        if mistake.flag == flag and kind in mistake.kinds and (switched or not mistake.switch):
            words = f"{flag} {value}" if switched else flag
            return [Finding(words=words, wrong=mistake.wrong, instead=mistake.instead)]
    # vLLM reads --a.b as a member of the JSON that --a takes.
    spelled = flag.partition(".")[0].replace("_", "-")
    known = known_flags(kind)
    if spelled not in known:
        near = get_close_matches(spelled, known, n=1)
        other = next((one for one in VERSIONS if one != kind and spelled in known_flags(one)), None)
        wrong = f"is no flag of {kind} {VERSIONS[kind]}" + (f" but of {other}" if other else "")
        return [Finding(words=flag, wrong=wrong, instead=f"{near[0]}?" if near else "leave it out")]
    if switched and kind == "vllm" and f"--no-{spelled[2:]}" in known:
        wrong = "is a switch and takes no value"
        return [
            Finding(
                words=f"{flag} {value}",
                wrong=wrong,
                instead=spelled if value.lower() == "true" else f"--no-{spelled[2:]}",
            )
        ]
    return []


@cache
def known_flags(kind: str) -> frozenset[str]:
    """Every long flag of the pinned version, from its own parser."""
    return frozenset((files(__package__) / "known_flags" / f"{kind}.txt").read_text(encoding="ascii").split())
