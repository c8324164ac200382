"""The configuration: one frozen tree, read from YAML, every unknown key an error.

Reading keeps the origin of every value (file and line, or default), so that `weir check` can say where each
one came from and every complaint points at a line. Nothing here opens sockets or looks at the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator


class ConfigError(Exception):
    """Everything wrong with a configuration, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _engine_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an engine URL; write it like http://10.0.0.5:8000")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("an engine URL has no query, fragment or credentials; remove them")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("the gateway adds /v1 itself; remove it from the URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port must be between 1 and 65535") from None
    return url


Seconds = Annotated[float, Field(gt=0, le=86_400, strict=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class ListenConfig(_Section):
    """Where clients connect."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    keep_alive_s: Seconds = 75.0
    """How long an idle client connection is kept; longer than nginx keeps its own (60 s)."""


class LimitsConfig(_Section):
    """What one gateway process takes on."""

    body_bytes: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    receive_s: Seconds = 60.0
    in_flight: Annotated[int, Field(ge=1)] = 10_000


class EndpointConfig(_Section):
    url: Annotated[str, AfterValidator(_engine_url)]
    name: Name | None = None


class TimeoutsConfig(_Section):
    """How long a request may take: to connect, to the first byte, between two chunks, and in all."""

    connect_s: Seconds = 2.0
    first_byte_s: Seconds = 300.0
    chunk_gap_s: Seconds = 120.0
    total_s: Seconds = 3600.0

    @model_validator(mode="after")
    def _parts_fit_the_whole(self) -> TimeoutsConfig:
        for part in ("connect_s", "first_byte_s", "chunk_gap_s"):
            if getattr(self, part) > self.total_s:
                raise ValueError(
                    f"{part} is {getattr(self, part):g} but total_s is only {self.total_s:g}, so it can never "
                    f"expire; lower {part} or raise total_s"
                )
        return self


class HealthConfig(_Section):
    """Active checks of one pool's endpoints. Each state change needs that many equal results in a row."""

    interval_s: Seconds = 2.0
    timeout_s: Seconds = 1.5
    unhealthy_after: Annotated[int, Field(ge=1)] = 2
    healthy_after: Annotated[int, Field(ge=1)] = 1


class PoolConfig(_Section):
    """Engines of one kind that serve one model."""

    engine: Literal["vllm", "sglang", "openai"]
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1, strict=False)]
    policy: Literal["round_robin", "least_in_flight"] = "least_in_flight"
    timeouts: TimeoutsConfig = TimeoutsConfig()
    health: HealthConfig = HealthConfig()

    @model_validator(mode="after")
    def _endpoints_differ(self) -> PoolConfig:
        urls = [endpoint.url.rstrip("/") for endpoint in self.endpoints]
        for url in urls:
            if urls.count(url) > 1:
                raise ValueError(f"endpoint {url} is listed twice; remove one")
        names = [endpoint.name for endpoint in self.endpoints if endpoint.name]
        if len(names) != len(set(names)):
            raise ValueError("two endpoints have the same name; give each its own")
        return self


class RouteConfig(_Section):
    """Requests for `model` go to these pools, in proportion to their weights."""

    model: Annotated[str, Field(min_length=1)]
    split: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _some_weight(self) -> RouteConfig:
        if not any(self.split.values()):
            raise ValueError("every weight of the split is 0; give at least one pool a weight")
        return self


class RecordsConfig(_Section):
    """One JSON line per finished request (`docs/formats.md`). Without a path none is written."""

    path: str | None = None


class TraceConfig(_Section):
    """`sample_ratio` of the requests that arrive without a trace context are marked as sampled."""

    sample_ratio: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.01


class DrainConfig(_Section):
    """SIGTERM: not ready for `settle_s` while still serving, then no new requests, then up to `timeout_s`."""

    settle_s: Annotated[float, Field(ge=0, le=600, strict=False)] = 0.0
    timeout_s: Seconds = 30.0


class Config(_Section):
    listen: ListenConfig = ListenConfig()
    limits: LimitsConfig = LimitsConfig()
    pools: Annotated[dict[Name, PoolConfig], Field(min_length=1)]
    routes: Annotated[tuple[RouteConfig, ...], Field(min_length=1, strict=False)]
    records: RecordsConfig = RecordsConfig()
    trace: TraceConfig = TraceConfig()
    drain: DrainConfig = DrainConfig()


Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid configuration and the line of the file that each given value came from."""

    config: Config
    file: str
    lines: dict[Path_, int]

    def effective(self) -> list[tuple[str, Any, str]]:
        """Every setting as (dotted key, value, origin), in the tree's order."""
        rows: list[tuple[str, Any, str]] = []
        self._flatten(self.config.model_dump(), (), rows)
        return rows

    def _flatten(self, value: Any, path: Path_, rows: list[tuple[str, Any, str]]) -> None:
        if isinstance(value, dict) and value:
            for key, child in value.items():
                self._flatten(child, (*path, key), rows)
        elif isinstance(value, list | tuple) and value:
            for position, child in enumerate(value):
                self._flatten(child, (*path, position), rows)
        else:
            line = self.lines.get(path)
            rows.append((dotted(path), value, f"{self.file}:{line}" if line else "default"))


def dotted(path: Path_) -> str:
    """`('routes', 0, 'model')` → `routes[0].model`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def load(path: Path) -> Loaded:
    """Reads and checks a configuration file. Raises ConfigError with one line per problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    return parse(text, str(path))


def parse(text: str, file: str) -> Loaded:
    """As `load`, from the file's text; `file` names it in messages."""
    lines: dict[Path_, int] = {}
    problems: list[str] = []
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _note_lines(root, (), file, lines, problems)
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        raise ConfigError([f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}"]) from error
    if problems:
        raise ConfigError(problems)
    if not isinstance(tree, dict):
        raise ConfigError([f"{file}: must be a mapping with at least `pools` and `routes`"])
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        found = error.errors()
        inner = {problem["loc"][:depth] for problem in found for depth in range(len(problem["loc"]))}
        # An entry that is itself wrong also makes its collection "too short": only the entry is worth a line.
        found = [problem for problem in found if not (problem["type"] == "too_short" and problem["loc"] in inner)]
        raise ConfigError([_explain(problem, file, lines) for problem in found]) from error
    problems = [f"{file}:{lines[path]}: {dotted(path)}: {message}" for path, message in _contradictions(config)]
    if problems:
        raise ConfigError(problems)
    return Loaded(config=config, file=file, lines=lines)


def _contradictions(config: Config) -> list[tuple[Path_, str]]:
    """What is wrong between sections that are each right."""
    found: list[tuple[Path_, str]] = []
    models: set[str] = set()
    for position, route in enumerate(config.routes):
        if route.model in models:
            found.append((("routes", position, "model"), f"{route.model!r} has a route already; merge their splits"))
        models.add(route.model)
        found += [
            (("routes", position, "split", pool), f"no such pool; the pools are: {', '.join(config.pools)}")
            for pool in route.split
            if pool not in config.pools
        ]
    return found


def _note_lines(node: yaml.Node, path: Path_, file: str, lines: dict[Path_, int], problems: list[str]) -> None:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                problems.append(
                    f"{file}:{line}: {dotted((*path, key.value))}: given twice; the earlier one would be ignored, "
                    "remove or rename one"
                )
            seen.add(key.value)
            _note_lines(value, (*path, key.value), file, lines, problems)
            lines[(*path, key.value)] = line
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            _note_lines(value, (*path, position), file, lines, problems)


def _explain(problem: Any, file: str, lines: dict[Path_, int]) -> str:
    path: Path_ = tuple(step for step in problem["loc"] if step != "[key]")
    known = next((path[:depth] for depth in range(len(path), -1, -1) if path[:depth] in lines), ())
    where = f"{file}:{lines[known]}" if known in lines else file
    kind, message = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        message = f"unknown key; known here: {', '.join(_known_keys(path[:-1]))}"
    elif kind == "missing":
        message = "is required"
    elif kind == "too_short":
        message = "is empty; give at least one entry"
    else:
        value = problem["input"]
        if isinstance(value, str | int | float | bool) or value is None:
            message = f"{value!r}: {message[:1].lower()}{message[1:]}"
    return f"{where}: {dotted(path) or 'configuration'}: {message}"


def _known_keys(path: Path_) -> list[str]:
    """The keys allowed at `path`, found by walking the model's own fields."""
    section: Any = Config
    for step in path:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[str(step)].annotation
        else:
            section = section.__args__[-1 if section.__origin__ is dict else 0]
        while hasattr(section, "__metadata__"):
            section = section.__origin__
    return list(section.model_fields)
