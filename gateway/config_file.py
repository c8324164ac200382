"""Reads a configuration file: YAML in, the tree out, or one clear line for each thing that is wrong.

Reading keeps the origin of every value (file and line, or default), so that `weir check` can say where each
one came from and every complaint points at a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import UnionType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from gateway.config import Config
from gateway.errors import ConfigError

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
        if isinstance(section, UnionType):
            section = section.__args__[0]
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[str(step)].annotation
        else:
            section = section.__args__[-1 if section.__origin__ is dict else 0]
    if isinstance(section, UnionType):
        section = section.__args__[0]
    return list(section.model_fields)
