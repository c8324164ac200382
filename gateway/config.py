"""The configuration: one frozen tree, read from YAML, every unknown key an error.

Reading keeps the origin of every value (file and line, or default), so that `weir check` can say where each
one came from and every complaint points at a line. Nothing here opens sockets or looks at the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter
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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VISIBLE = re.compile(r"[!-~]+")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name is 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first")
    return name


def _host(host: str) -> str:
    try:
        host.encode("idna")
    except UnicodeError:
        host = ""
    if not host:
        raise ValueError("not a host name or an IP address")
    return host


def _engine_url(url: str) -> str:
    # urlsplit lets blanks and control characters pass, which would end up in the request line.
    parts = urlsplit(url if _VISIBLE.fullmatch(url) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an engine URL; write it like http://10.0.0.5:8000")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("an engine URL has no query, fragment or credentials; remove them")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("the gateway adds /v1 itself; remove it from the URL")
    _host(parts.hostname)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the port must be between 1 and 65535")
    return url


Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, AfterValidator(_name)]


class ListenConfig(_Section):
    """Where clients connect."""

    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
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

    def endpoint_names(self, pool: str) -> list[str]:
        """The endpoints' names in order: their own, or `<pool>-<position>`."""
        return [endpoint.name or f"{pool}-{position}" for position, endpoint in enumerate(self.endpoints)]


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

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01


class DrainConfig(_Section):
    """SIGTERM: not ready for `settle_s` while still serving, then no new requests, then up to `timeout_s`."""

    settle_s: Annotated[float, Field(ge=0, le=600)] = 0.0
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
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if step.isprintable() else repr(step))
    return text or "configuration"


def load(path: Path) -> Loaded:
    """Reads and checks a configuration file. Raises ConfigError with one line per problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: cannot be read: not UTF-8 text"]) from error
    return parse(text, str(path))


def parse(text: str, file: str) -> Loaded:
    """As `load`, from the file's text; `file` names it in messages."""
    tree, lines = _read_yaml(text, file)
    if not isinstance(tree, dict):
        raise ConfigError([f"{file}: must be a mapping with at least `pools` and `routes`"])
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        problems = error.errors()
        inner = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
        # An entry that is itself wrong also makes its collection "too short": only the entry is worth a line.
        found = [
            _explain(problem) for problem in problems if problem["type"] != "too_short" or problem["loc"] not in inner
        ]
        raise ConfigError(_located(found, file, lines)) from error
    contradictions = [*_twins(config), *_misroutes(config)]
    if contradictions:
        raise ConfigError(_located(contradictions, file, lines))
    return Loaded(config=config, file=file, lines=lines)


Finding = tuple[Path_, str]
"""A place in the tree and what is wrong there."""


def _located(findings: list[Finding], file: str, lines: dict[Path_, int]) -> list[str]:
    """One line per finding, in the file's order. What is not in the file is looked for where it should be."""
    placed: list[tuple[int, str]] = []
    for path, message in findings:
        line = next(lines[path[:depth]] for depth in range(len(path), -1, -1) if path[:depth] in lines)
        placed.append((line, f"{file}:{line}: {dotted(path)}: {message}"))
    return [text for _, text in sorted(placed, key=itemgetter(0))]


def _twins(config: Config) -> list[Finding]:
    """Endpoints of one pool that nothing would tell apart."""
    found: list[Finding] = []
    for pool_name, pool in config.pools.items():
        names, urls = pool.endpoint_names(pool_name), [endpoint.url.rstrip("/") for endpoint in pool.endpoints]
        for position, (name, url) in enumerate(zip(names, urls, strict=True)):
            path = ("pools", pool_name, "endpoints", position)
            if url in urls[:position]:
                found.append(((*path, "url"), f"{url!r}: this pool has the endpoint already; remove one"))
            if name in names[:position]:
                found.append(((*path, "name"), f"{name!r}: another endpoint is called so; give each its own name"))
    return found


def _misroutes(config: Config) -> list[Finding]:
    """Routes that contradict each other or the pools."""
    found: list[Finding] = []
    models: set[str] = set()
    for position, route in enumerate(config.routes):
        if route.model in models:
            found.append((("routes", position, "model"), f"{route.model!r}: has a route already; merge their splits"))
        models.add(route.model)
        found += [
            (("routes", position, "split", pool), f"no such pool; the pools are: {', '.join(config.pools)}")
            for pool in route.split
            if pool not in config.pools
        ]
    return found


def _read_yaml(text: str, file: str) -> tuple[object, dict[Path_, int]]:
    """The file's tree, and the line of every value in it, merged ones (`<<`) included."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None, {}
        lines = _Lines(loader)
        lines.note(root, ())
        if lines.problems:
            raise ConfigError([f"{file}:{line}: {message}" for line, message in lines.problems])
        return loader.construct_document(root), lines.of
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        reason = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError([f"{file}{line}: not valid YAML: {reason}"]) from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: what looks like a date or a number to YAML and is none, such as 2026-13-01.
        raise ConfigError([f"{file}: not valid YAML: {str(error).splitlines()[0]}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{file}: nested too deeply, or an alias (*) stands inside its own anchor (&)"]) from error


class _Lines:
    """Where each value of a YAML document stands, and keys that YAML lets pass but nobody means."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self.of: dict[Path_, int] = {}
        self.problems: list[tuple[int, str]] = []

    def note(self, node: yaml.Node, path: Path_) -> None:
        self.of.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node, path)
            self._loader.flatten_mapping(node)
            # A node is met again at each of its aliases: what it overrides of a merge is not repeated there.
            node.value = list({key.value: (key, value) for key, value in node.value if _is_text(key)}.values())
            for key, value in node.value:
                self.of[(*path, key.value)] = key.start_mark.line + 1
                self.note(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for position, value in enumerate(node.value):
                self.note(value, (*path, position))

    def _check_keys(self, node: yaml.MappingNode, path: Path_) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if not _is_text(key):
                place, message = path, "has a key that is not text to YAML; put it in quotes"
            elif key.value in seen:
                place = (*path, key.value)
                message = "given twice; the earlier one would be ignored, remove or rename one"
            else:
                seen.add(key.value)
                continue
            self.problems.append((key.start_mark.line + 1, f"{dotted(place)}: {message}"))


def _is_text(key: yaml.Node) -> bool:
    return key.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


_PLAIN = {
    "dict_type": "must be a mapping (`key: value`)",
    "extra_forbidden": "unknown key",
    "float_type": "must be a plain number like 2.5, without unit or quotes",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_type": "must be a whole number, without unit or quotes",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_type": "must be a mapping (`key: value`)",
    "string_too_short": "must not be empty",
    "string_type": "must be text: put it in quotes",
    "too_short": "is empty; give at least one entry",
    "tuple_type": "must be a list (`- entry`)",
    "value_error": "{error}",
}
"""What pydantic finds wrong, in an operator's words."""


def _explain(problem: Any) -> Finding:
    path: Path_ = tuple(step for step in problem["loc"] if step != "[key]")
    kind, value = problem["type"], problem["input"]
    message = _PLAIN.get(kind, "cannot be read").format(**problem.get("ctx", {}))
    if kind == "extra_forbidden":
        return path, f"{message}; known here: {', '.join(_known_keys(path[:-1]))}"
    if value is None:
        return path, f"has no value; it {message}"
    if isinstance(value, bool):
        return path, f"{str(value).lower()}: {message}"
    return path, f"{value!r}: {message}" if isinstance(value, str | int | float) else message


def _known_keys(path: Path_) -> list[str]:
    """The keys allowed at `path`, found by walking the model's own fields."""
    section: Any = Config
    for step in path:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[str(step)].annotation
        else:
            section = section.__args__[-1 if section.__origin__ is dict else 0]
    return list(section.model_fields)
