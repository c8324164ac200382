"""Step times and capacities against arithmetic done by hand, and the errors of bad profiles."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean, stdev

import msgspec
import pytest
import yaml

from simulator.profile import ProfileError, StepLoad, built_in_profiles, load_profile

H100 = load_profile("h100_llama-3-8b")


def decode(batch: int, context: int) -> StepLoad:
    return StepLoad(batch, batch * context, batch * context)


def test_decode_steps_of_llama_3_8b_on_one_h100_lie_where_benchmarks_put_them() -> None:
    # Weights 8.03e9 · 2 B = 16.06 GB at 3.35 TB/s: 4.79 ms is the least possible. Real bfloat16 servers
    # need 6-8 ms at batch 1 (125-165 tokens/s a stream).
    assert 0.0060 < H100.step_time_s(decode(1, 512)) < 0.0080
    # Batch 64 at 1,024 tokens adds 64 · 1024 · 131,072 B = 8.6 GB of KV, 2.6 ms at peak bandwidth: still
    # bound by memory and about half as long again, so 64 streams get some 40 times the tokens of one.
    assert 0.0085 < H100.step_time_s(decode(64, 1024)) < 0.0125
    # A prefill of 8,192 tokens is bound by arithmetic: 2 · 8.03e9 · 8192 = 131.6 TFLOP plus attention
    # 4 · 32 · 32 · 128 · 8192²/2 = 17.6 TFLOP at 989.4 TFLOP/s: 151 ms at best, 250-300 ms in practice.
    assert 0.250 < H100.step_time_s(StepLoad(8192, 8192 * 8193 // 2, 8192)) < 0.300


def test_tensor_parallel_shares_the_weights_and_pays_for_all_reduce() -> None:
    # Two A100: at least 16.06 GB / 2 / 2.039 TB/s = 3.94 ms, plus 64 all-reduces of 10 µs and overhead.
    pair = load_profile("a100-80gb-x2_llama-3-8b")
    assert 0.00394 / 0.8 + 0.00064 < pair.step_time_s(decode(1, 1)) < 0.0075
    alone = msgspec.structs.replace(pair, gpus=1)
    assert pair.step_time_s(decode(1, 1)) > alone.step_time_s(decode(1, 1)) / 2


def test_kv_capacity_is_what_weights_and_reserve_leave() -> None:
    # 2 · 32 · 8 · 128 · 2 B and 2 · 80 · 8 · 128 · 2 B a token.
    assert H100.kv_bytes_per_token == 131_072
    large = load_profile("a100-80gb-x4_qwen2.5-72b")
    assert large.kv_bytes_per_token == 327_680
    assert large.kv_capacity_tokens == int((4 * (80 * 2**30 * 0.92 - 4e9) - 72.7e9 * 2) / 327_680)
    assert 420_000 < large.kv_capacity_tokens < 500_000


def test_noise_has_mean_one_and_the_stated_spread() -> None:
    rng = Random(7)
    factors = [H100.noise(rng) for _ in range(4000)]
    assert fmean(factors) == pytest.approx(1, abs=0.002)
    assert stdev(factors) == pytest.approx(H100.efficiency.noise_sigma, rel=0.1)


def test_built_in_profiles_all_load() -> None:
    assert built_in_profiles() == ["a100-80gb-x2_llama-3-8b", "a100-80gb-x4_qwen2.5-72b", "h100_llama-3-8b"]
    for name in built_in_profiles():
        assert load_profile(name).kv_capacity_tokens >= load_profile(name).model.context_tokens


@pytest.fixture
def raw() -> dict[str, dict[str, object]]:
    return dict(msgspec.to_builtins(H100))


def write(path: Path, content: object) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_file_of_the_same_form_works(tmp_path: Path, raw: dict[str, dict[str, object]]) -> None:
    raw["gpu"]["peak_flops"] = "9.894e14"
    assert load_profile(write(tmp_path / "mine.yaml", raw)) == H100


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gpu.peak_flops", -1, r"gpu\.peak_flops: Expected `float` > 0\.0, got -1; compare with .*h100"),
        ("efficiency.bandwidth", 80, r"efficiency\.bandwidth: Expected `float` <= 1\.0, got 80"),
        ("model.layers", "many", r"model\.layers: Expected `int`, got `str`, got 'many'"),
        ("gpu.colour", "red", r"gpu: Object contains unknown field `colour`"),
        ("model", 3, r"model: Expected `object`, got `int`, got 3"),
        ("model.parameters", 70e9, r"gpus: .* has 140\.0 GB of weights, .* 1 × H100 SXM 80GB; raise gpus"),
    ],
)
def test_a_bad_value_is_named_with_its_field_and_a_remedy(
    tmp_path: Path, raw: dict[str, dict[str, object]], field: str, value: object, message: str
) -> None:
    section, _, key = field.partition(".")
    if key:
        raw[section][key] = value
    else:
        raw[section] = value
    with pytest.raises(ProfileError, match=message):
        load_profile(write(tmp_path / "bad.yaml", raw))


def test_a_profile_that_is_no_mapping_or_no_yaml_or_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="profile: Expected `object`, got `array`, got \\[1\\]"):
        load_profile(write(tmp_path / "list.yaml", [1]))
    (tmp_path / "broken.yaml").write_text("gpu: [")
    with pytest.raises(ProfileError, match="not YAML text"):
        load_profile(str(tmp_path / "broken.yaml"))
    with pytest.raises(ProfileError, match=r"neither a built-in \(a100.*h100_llama-3-8b\) nor a readable"):
        load_profile("h200_llama-3-8b")


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="profile: Object missing required field `gpus`"):
        load_profile(write(tmp_path / "empty.yaml", {}))
