"""How long one engine step takes and how much KV memory there is, from a description of GPUs and model.

It hides the roofline arithmetic. It never measures anything and never keeps state: a profile is numbers
from a YAML file (`simulator/profiles/*.yaml` or a file of the user's in the same form) and formulas over
them. Units are SI: seconds, bytes (not GiB), FLOP.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple

import msgspec
import yaml

_BUILT_IN = Path(__file__).parent / "profiles"

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class ProfileError(ValueError):
    """A profile that cannot be used; the text names file, field, value and what to do."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data-sheet numbers of one GPU."""

    name: str
    memory_bytes: Positive
    bandwidth_bytes_per_s: Positive
    peak_flops: Positive
    """Dense tensor-core FLOP/s at the model's precision."""
    link_bytes_per_s: Positive
    """To the other GPUs of the group, one direction."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of the model's config.json."""

    name: str
    parameters: Positive
    layers: Count
    hidden_size: Count
    heads: Count
    kv_heads: Count
    head_size: Count
    context_tokens: Count
    bytes_per_value: Positive
    """Of weights and KV alike: 2 for bfloat16."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a real engine reaches of the data sheet, and what it spends beside the arithmetic."""

    compute: Share
    bandwidth: Share
    step_overhead_s: NotNegative
    all_reduce_latency_s: NotNegative
    memory_utilisation: Share
    reserved_bytes: NotNegative
    """Per GPU: context, graphs and activations, neither weights nor KV."""
    noise_sigma: NotNegative
    """Sigma of the log-normal factor on each step's time; its mean is 1."""


class StepLoad(NamedTuple):
    """What one step has to do, summed over its sequences."""

    new_tokens: int
    attended_pairs: int
    """(new token, token it attends to) pairs: n·c + n·(n+1)/2 for n new tokens after c earlier ones."""
    kv_tokens: int
    """Tokens whose keys and values are read: c + n."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's hardware and model; `gpus` of them in one tensor-parallel group."""

    gpus: Count
    gpu: Gpu
    model: Model
    efficiency: Efficiency

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of all layers, over the whole group."""
        model = self.model
        return 2 * model.layers * model.kv_heads * model.head_size * model.bytes_per_value

    @property
    def weight_bytes(self) -> float:
        return self.model.parameters * self.model.bytes_per_value

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside weights and reserve; negative when not even those fit."""
        per_gpu = self.gpu.memory_bytes * self.efficiency.memory_utilisation - self.efficiency.reserved_bytes
        return math.floor((per_gpu * self.gpus - self.weight_bytes) / self.kv_bytes_per_token)

    def step_time_s(self, load: StepLoad) -> float:
        """Seconds of one step: the slower of arithmetic and memory, plus overhead and all-reduce.

        Roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009). Arithmetic: 2 FLOP per parameter
        and token, and 4·layers·heads·head_size FLOP per attended pair (QKᵀ and AV). Memory: all weights
        once and the KV read, each GPU its share.
        """
        model, reach = self.model, self.efficiency
        flops = (
            2 * model.parameters * load.new_tokens
            + 4 * model.layers * model.heads * model.head_size * load.attended_pairs
        )
        compute_s = flops / (self.gpus * self.gpu.peak_flops * reach.compute)
        read_bytes = self.weight_bytes + self.kv_bytes_per_token * load.kv_tokens
        memory_s = read_bytes / (self.gpus * self.gpu.bandwidth_bytes_per_s * reach.bandwidth)
        return max(compute_s, memory_s) + reach.step_overhead_s + self._all_reduce_s(load.new_tokens)

    def noise(self, rng: Random) -> float:
        """A factor for one step's time: log-normal, mean 1."""
        sigma = self.efficiency.noise_sigma
        return math.exp(rng.gauss(-sigma * sigma / 2, sigma))

    def _all_reduce_s(self, new_tokens: int) -> float:
        """Two all-reduces per layer; a ring moves 2·(g-1)/g of the data over each link (NCCL docs)."""
        if self.gpus == 1:
            return 0.0
        data_bytes = new_tokens * self.model.hidden_size * self.model.bytes_per_value
        ring_s = 2 * (self.gpus - 1) / self.gpus * data_bytes / self.gpu.link_bytes_per_s
        return 2 * self.model.layers * (ring_s + self.efficiency.all_reduce_latency_s)


def built_in_profiles() -> list[str]:
    """Names that `load_profile` knows without a file."""
    return sorted(path.stem for path in _BUILT_IN.glob("*.yaml"))


def load_profile(name_or_file: str) -> Profile:
    """The built-in profile of that name, or the profile in that file.

    Raises ProfileError when there is neither, or when the file does not describe a usable engine.
    """
    path = _BUILT_IN / f"{name_or_file}.yaml"
    if not path.is_file():
        path = Path(name_or_file)
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        known = ", ".join(built_in_profiles())
        raise ProfileError(
            f"profile {name_or_file!r} is neither a built-in ({known}) nor a readable file: {error.strerror}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not YAML text: {error}; correct the syntax") from error
    return _checked(raw, path)


def _checked(raw: object, path: Path) -> Profile:
    try:
        profile = msgspec.convert(raw, Profile, strict=False)  # PyYAML reads 3.35e12 as text
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".")
        raise ProfileError(
            f"{path}: {field or 'profile'}: {text}, got {_value_at(raw, field)!r}; "
            f"compare with {_BUILT_IN / 'h100_llama-3-8b.yaml'}"
        ) from error
    if profile.kv_capacity_tokens < 1:
        raise ProfileError(
            f"{path}: gpus: {profile.model.name} has {profile.weight_bytes / 1e9:.1f} GB of weights, which "
            f"leave no room for KV on {profile.gpus} × {profile.gpu.name}; raise gpus or memory_utilisation"
        )
    return profile


def _value_at(raw: Any, field: str) -> Any:
    """The value at a dotted path that msgspec reported, so it exists."""
    for key in filter(None, field.split(".")):
        raw = raw[key]
    return raw
