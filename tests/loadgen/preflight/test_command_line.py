import pytest

from loadgen.preflight.command_line import VERSIONS, examine, known_flags
from tools.engines import places


@pytest.mark.parametrize(
    ("command", "words", "instead"),
    [
        ("python -m vllm.entrypoints.api_server --model m", "-m vllm.entrypoints.api_server", "vllm serve MODEL"),
        ("vllm serve m --disable-log-stats True", "--disable-log-stats True", "leave it out"),
        (
            "vllm serve m --enable-chunked-prefill True",
            "--enable-chunked-prefill True",
            "leave it out, or --no-enable-chunked-prefill",
        ),
        ("vllm serve m --disable-log-requests", "--disable-log-requests", "leave it out"),
        ("vllm serve m --enforce-eager False", "--enforce-eager False", "--no-enforce-eager"),
        ("vllm serve m --max-num-seqz=5", "--max-num-seqz", "--max-num-seqs?"),
        (
            "ExecStart=python -m sglang.launch_server \\\n --disable-fastapi True",
            "--disable-fastapi True",
            "leave it out (vLLM's --disable-fastapi-docs takes away /docs)",
        ),
        ("python -m sglang.launch_server --tp 2", "--tp", "--tp-size"),
    ],
)
def test_a_mistake_gets_its_correction(command: str, words: str, instead: str) -> None:
    _, findings = examine(command)
    assert [(finding.words, finding.instead) for finding in findings] == [(words, instead)]


def test_a_flag_of_the_other_engine_is_told_apart() -> None:
    _, (finding,) = examine("vllm serve m --mem-fraction-static 0.8")
    assert finding.wrong == "is no flag of vllm 0.32.0 but of sglang"


@pytest.mark.parametrize(
    "command",
    [
        '["vllm", "serve", "m", "--max_num_seqs=5"]',
        "vllm serve m --seed 0 # as ever",
        "vllm serve --enable-prefix-caching m",
        "vllm serve m --compilation-config.level 3",
    ],
)
def test_a_good_command_line_has_no_finding(command: str) -> None:
    assert examine(command) == ("vllm", [])


def test_no_engine_no_verdict() -> None:
    with pytest.raises(ValueError, match="neither vLLM nor SGLang"):
        examine("nginx -g 'daemon off;'")


@pytest.mark.parametrize("kind", VERSIONS)
def test_the_flags_are_the_engines_own(kind: str) -> None:
    """That they are all of them is shown where the engines are (tests/real)."""
    assert VERSIONS == places.VERSIONS
    assert {"--host", "--port", "--served-model-name"} < known_flags(kind)
