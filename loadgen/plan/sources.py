"""What a schedule may be made of: a workload that is drawn, a log that is replayed, or lengths that are simply given.

Hides how each gives the requests of a stretch of time, and how it gives a number of requests whose times come from
elsewhere. Every source keeps its order, so neighbours stay neighbours and conversations keep their turns.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from loadgen.workload.traffic import Ints, Requests

_NO_LIMIT = 1 << 40
_TRIES = 12
"""Each time a source that is drawn had too few requests, twice as many are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which part of a source, how fast, and by which seeds.

    Raises ValueError for numbers that make no part.
    """

    seed: int
    duration_s: float
    """Of run time."""
    start_s: float = 0.0
    """Of the source's own time."""
    rate_scale: float = 1.0
    """Times the rate. A log is played faster, so it is used up faster; a workload is drawn more densely."""
    text_seed: int | None = None
    """Decides shared text; as `seed` when None, so that two seeds have no text in common."""

    def __post_init__(self) -> None:
        for name, value in (("duration_s", self.duration_s), ("rate_scale", self.rate_scale)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: give a number above 0")
        if not 0 <= self.start_s < math.inf:
            raise ValueError(f"start_s is {self.start_s}: give a number of at least 0")
        for name, seed in (("seed", self.seed), ("text_seed", self.texts)):
            if seed < 0:
                raise ValueError(f"{name} is {seed}: give an integer of at least 0")

    @property
    def texts(self) -> int:
        return self.seed if self.text_seed is None else self.text_seed


class Source(Protocol):
    """Requests to plan with. `sha256` (hex) is that of what they come from."""

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def is_drawn(self) -> bool:
        """Whether its own times are random, and so have to look like it."""
        ...

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        """The requests of `part` at the source's own times, which count from the start of the part."""
        ...

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        """The first `count` requests from `part.start_s` on; their times mean nothing."""
        ...


class Traffic(Protocol):
    """A description that can be sampled; `loadgen.workload.description.Workload` is one."""

    @property
    def name(self) -> str: ...
    @property
    def independent(self) -> bool:
        """Whether requests come independently of one another, so that nothing but chance is in their times."""
        ...

    def digest(self) -> str:
        """SHA-256 (hex) of what is described."""
        ...

    def draw(self, rng: np.random.Generator, *, start_s: float, duration_s: float, rate_scale: float) -> Requests:
        """Requests of [start_s, start_s + duration_s) at `rate_scale` times the described rate.

        Times count from `start_s`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests drawn from a workload. Their number is random: nothing conditions it on its mean."""

    workload: Traffic

    @property
    def name(self) -> str:
        return self.workload.name

    @property
    def sha256(self) -> str:
        return self.workload.digest()

    @property
    def is_drawn(self) -> bool:
        return self.workload.independent

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        return self.workload.draw(rng, start_s=part.start_s, duration_s=part.duration_s, rate_scale=part.rate_scale)

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        """Drawn as densely as it takes to have enough of them within the part."""
        scale = part.rate_scale
        for attempt in rng.spawn(_TRIES):
            drawn = self.workload.draw(attempt, start_s=part.start_s, duration_s=part.duration_s, rate_scale=scale)
            if len(drawn) >= count:
                return rows(drawn, 0, count)
            scale *= max(2.0, 1.1 * count / max(1, len(drawn)))
        raise ValueError(f"{self.name} has next to no requests in {part.duration_s:g} s from {part.start_s:g} s on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Requests of a log, in its order and with its lengths; the generator is never used."""

    name: str
    sha256: str
    requests: Requests
    has_times: bool = True

    @property
    def is_drawn(self) -> bool:
        return False

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        if not self.has_times:
            raise ValueError(f"{self.name} has no times: say when its requests come with --arrivals or --concurrency")
        end_s = part.start_s + part.duration_s * part.rate_scale
        begin, end = np.searchsorted(self.requests.at_s, (part.start_s, end_s)).tolist()
        kept = rows(self.requests, begin, end)
        return replace(kept, at_s=(kept.at_s - part.start_s) / part.rate_scale)

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        begin = int(np.searchsorted(self.requests.at_s, part.start_s))
        if len(self.requests) - begin < count:
            raise ValueError(
                f"{self.name} has {len(self.requests) - begin} requests from {part.start_s:g} s on, {count} are wanted:"
                " lower the rate or the duration, or start earlier"
            )
        return rows(self.requests, begin, begin + count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hastened:
    """A workload whose changes come so many times as fast, at the rate that it has: 24 makes an hour of a day.

    Lengths stay what they are; the times between the requests of a session pass as fast as the rest.
    """

    source: Drawn
    times: float

    def __post_init__(self) -> None:
        if not 0 < self.times < math.inf:
            raise ValueError(f"the time scale is {self.times}: give a number above 0")

    @property
    def name(self) -> str:
        return f"{self.source.name},time x{self.times:g}"

    @property
    def sha256(self) -> str:
        return self.source.sha256

    @property
    def is_drawn(self) -> bool:
        return self.source.is_drawn

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        drawn = self.source.timed(rng, self._of_source(part))
        return replace(drawn, at_s=drawn.at_s / self.times)

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        return self.source.first(rng, self._of_source(part), count)

    def _of_source(self, part: Part) -> Part:
        """Longer, and less dense by as much: the requests of the part in the source's own time."""
        return replace(part, duration_s=part.duration_s * self.times, rate_scale=part.rate_scale / self.times)


@dataclass(slots=True, kw_only=True)
class Capped:
    """Another source with no request longer than given. Prompts lose their end: what they share comes before."""

    source: Source
    prompt_tokens: int | None
    """None: as long as they are."""
    output_tokens: int | None
    shortened: int = 0
    """Requests of the last draw that were longer."""

    def __post_init__(self) -> None:
        for name, most in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            if most is not None and most < 1:
                raise ValueError(f"the longest {name} is {most} tokens: give at least 1")

    @property
    def name(self) -> str:
        limits = [f"{name}<={most}" for name, most in self._limits().items() if most is not None]
        return f"{self.source.name},{','.join(limits)}"

    @property
    def sha256(self) -> str:
        return self.source.sha256

    @property
    def is_drawn(self) -> bool:
        return self.source.is_drawn

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        return self._cap(self.source.timed(rng, part))

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        return self._cap(self.source.first(rng, part, count))

    def _limits(self) -> dict[str, int | None]:
        return {"prompt": self.prompt_tokens, "output": self.output_tokens}

    def _cap(self, requests: Requests) -> Requests:
        most_in, most_out = (_NO_LIMIT if most is None else most for most in self._limits().values())
        longer = (requests.prompt_tokens > most_in) | (requests.output_tokens > most_out)
        self.shortened = int(np.count_nonzero(longer))
        return replace(_prompts_cut(requests, most_in), output_tokens=np.minimum(requests.output_tokens, most_out))


def _prompts_cut(requests: Requests, most: int) -> Requests:
    """Prompts of at most so many tokens: the segments up to there, the last of them shorter."""
    sizes = np.diff(requests.segment_offsets)
    of_request = np.repeat(np.arange(len(requests)), sizes)
    ends = np.cumsum(requests.segment_tokens)
    # Where each request's prompt begins on the line of all segments.
    begins = np.concatenate(([0], ends))[requests.segment_offsets[:-1]]
    before = ends - requests.segment_tokens - begins[of_request]
    kept = np.clip(most - before, 0, requests.segment_tokens)
    # An empty prompt keeps its empty segment.
    stays = (kept > 0) | (requests.segment_tokens == 0)
    return replace(
        requests,
        prompt_tokens=np.minimum(requests.prompt_tokens, most),
        segment_offsets=np.concatenate(([0], np.cumsum(np.bincount(of_request[stays], minlength=len(requests))))),
        segment_ids=requests.segment_ids[stays],
        segment_tokens=kept[stays],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Requests of lengths from given ranges, every length in a range as likely, that share no text."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """From `PROMPT:OUTPUT`, each a number or LOW-HIGH: `512:128`, `100-900:1-64`."""
        prompt, colon, output = text.partition(":")
        if not colon:
            raise ValueError(f"lengths {text!r}: expected PROMPT:OUTPUT, as 512:128 or 100-900:1-64")
        return cls(prompt_tokens=_range(prompt), output_tokens=_range(output))

    @property
    def name(self) -> str:
        return f"lengths {_shown(self.prompt_tokens)}:{_shown(self.output_tokens)}"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def is_drawn(self) -> bool:
        return False

    def timed(self, rng: np.random.Generator, part: Part) -> Requests:
        raise ValueError("lengths have no times of their own: say when requests come with --arrivals or --concurrency")

    def first(self, rng: np.random.Generator, part: Part, count: int) -> Requests:
        prompt, output = rng.spawn(2)
        return Requests.unshared(
            np.zeros(count), _whole(prompt, self.prompt_tokens, count), _whole(output, self.output_tokens, count)
        )


def _range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not low.isdecimal() or (dash and not high.isdecimal()):
        raise ValueError(f"length {text!r}: expected a number of tokens, or LOW-HIGH")
    found = int(low), int(high or low)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(f"length {text!r}: need 1 <= LOW <= HIGH")
    return found


def _shown(limits: tuple[int, int]) -> str:
    return str(limits[0]) if limits[0] == limits[1] else f"{limits[0]}-{limits[1]}"


def _whole(rng: np.random.Generator, limits: tuple[int, int], count: int) -> Ints:
    return rng.integers(*limits, size=count, endpoint=True)


def rows(requests: Requests, begin: int, end: int) -> Requests:
    """Some consecutive requests."""
    offsets = requests.segment_offsets[begin : end + 1]
    return Requests(
        at_s=requests.at_s[begin:end],
        prompt_tokens=requests.prompt_tokens[begin:end],
        output_tokens=requests.output_tokens[begin:end],
        session=requests.session[begin:end],
        segment_offsets=offsets - offsets[0],
        segment_ids=requests.segment_ids[offsets[0] : offsets[-1]],
        segment_tokens=requests.segment_tokens[offsets[0] : offsets[-1]],
    )
