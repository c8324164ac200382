"""A launch configuration and a running engine side by side: which settings hold, which differ, which cannot be seen.

Pure: YAML text and what the engine says of itself in, verdicts out. The comments of the file are its reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import yaml

Value = str | int | float | bool | None

_NAMES = {"scheduling_policy": "scheduler_config.policy"}
"""How vLLM calls a setting where it reports it, where that is not the flag's own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of a launch configuration. `reason` is the comment above it."""

    name: str
    value: Value
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one setting. `found` is what the engine runs with, as far as it tells."""

    setting: Setting
    result: Literal["ok", "differs", "not visible", "unknown"]
    """`unknown`: this kind of engine has no such setting."""
    found: Value = None

    @property
    def fix(self) -> str:
        """What to do about it."""
        if self.result == "unknown":
            return "compare with the file of this kind of engine, or take the setting out"
        return f"start the engine {_asked(self.setting)}, or change the file"


def read_settings(text: str) -> list[Setting]:
    """The settings of a file for `--config` of either engine, in order.

    Raises ValueError for what is not a flat mapping.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError("expected settings, one `name: value` a line")
    reasons = _reasons(text)
    for name, value in content.items():
        if not isinstance(value, str | int | float | bool | None):
            raise ValueError(f"{name} is {value!r}: expected one value")
    return [Setting(name=str(name), value=value, reason=reasons.get(str(name), "")) for name, value in content.items()]


def _reasons(text: str) -> dict[str, str]:
    """The comment directly above each setting."""
    reasons: dict[str, str] = {}
    comment: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        else:
            reasons[line.partition(":")[0].strip()] = " ".join(comment)
            comment = []
    return reasons


def compare(settings: list[Setting], effective: Mapping[str, Value], flags: Collection[str]) -> list[Verdict]:
    """A verdict for each setting.

    `effective` is what the engine reports, by names with underscores; `flags` are all that its kind knows.
    """
    return [_verdict(setting, effective, flags) for setting in settings]


def _verdict(setting: Setting, effective: Mapping[str, Value], flags: Collection[str]) -> Verdict:
    name = setting.name.replace("-", "_")
    name = _NAMES.get(name, name)
    if name not in effective:
        known = f"--{setting.name.replace('_', '-')}" in flags
        return Verdict(setting=setting, result="not visible" if known else "unknown")
    found = effective[name]
    return Verdict(setting=setting, result="ok" if _same(setting.value, found) else "differs", found=found)


def _same(wanted: Value, found: Value) -> bool:
    """Equal however it is spelled: `true` and True, 0.90 and 0.9, "8" and 8."""
    return _comparable(wanted) == _comparable(found)


def _comparable(value: Value) -> object:
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _asked(setting: Setting) -> str:
    if isinstance(setting.value, bool):
        return f"{'with' if setting.value else 'without'} --{setting.name}"
    return f"with --{setting.name} {setting.value}"
