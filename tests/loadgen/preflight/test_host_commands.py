"""The seed articles' commands for GPU, kernel and host, as they stand there, and right ones beside them."""

import pytest

from loadgen.preflight.command_line import examine
from loadgen.preflight.host_commands import examine_host_command

WRONG = [
    ("sudo nvidia-smi -r", "nvidia-smi -r", "stop the engine"),
    ("nvidia-smi --gpu-reset -i 0", "nvidia-smi --gpu-reset -i 0", "stop the engine"),
    ("nvidia-smi -i 0 -lgc 1200", "nvidia-smi -i 0 -lgc 1200", "-lgc MHZ,MHZ"),
    ("nvidia-smi -lmc 1200", "nvidia-smi -lmc 1200", "--lock-memory-clocks-deferred"),
    ("nvidia-smi -q -d CLOCK,THROTTLE", "nvidia-smi -q -d CLOCK,THROTTLE", "PERFORMANCE,CLOCK,TEMPERATURE"),
    ("nvidia-smi -q -d MEMORY | grep -i NUMA", "nvidia-smi -q -d MEMORY | grep -i NUMA", "topo -m"),
    ("echo 'pcie_aspm=off' >> /etc/default/grub", "pcie_aspm=off", "pcie_aspm.policy=performance"),
    (
        "echo 0000000f > /proc/irq/24/smp_affinity_list",
        "echo 0000000f > /proc/irq/24/smp_affinity_list",
        "effective_affinity_list",
    ),
    ("cpupower frequency-set -g performance", "cpupower frequency-set -g performance", "no_turbo=1"),
    (
        "apt install nvidia-driver-535=535.129.03-0ubuntu1 && update-initramfs -u",
        "apt install nvidia-driver-535=535.129.03-0ubuntu1",
        "apt-mark hold",
    ),
    ('pkill -f "vllm.entrypoints"', 'pkill -f "vllm.entrypoints"', "process id"),
    ("chronyc -a makestep", "chronyc -a makestep", "before a run only"),
    ("ldd $(which sglang) | grep nccl", "ldd $(which sglang)", "/proc/PID/maps"),
    ("sysctl -w net.ipv4.tcp_tw_reuse=1", "net.ipv4.tcp_tw_reuse=1", "keep connections alive"),
    ("pip install nvidia-ml-py3 psutil", "pip install nvidia-ml-py3", "nvidia-ml-py"),
    ("cat /proc/4711/stack", "cat /proc/4711/stack", "py-spy"),
]


@pytest.mark.parametrize(("line", "words", "instead"), WRONG, ids=[words for _, words, _ in WRONG])
def test_an_articles_command_gets_its_correction(line: str, words: str, instead: str) -> None:
    (finding,) = examine_host_command(line)
    assert finding.words == words
    assert instead in finding.instead


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-smi -pm 1",
        "nvidia-smi -lgc 1200,1200",
        "nvidia-smi -rgc",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE",
        "nvidia-smi --query-compute-apps=pid --format=csv",
        "echo 0-3 > /proc/irq/24/smp_affinity_list",
        "echo f > /proc/irq/24/smp_affinity",
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet pcie_aspm.policy=performance"',
        "pip install nvidia-ml-py",
        "chronyc tracking",
        "apt-mark hold nvidia-driver-535",
    ],
)
def test_a_right_command_has_no_finding(line: str) -> None:
    assert list(examine_host_command(line)) == []


def test_a_runbook_is_read_as_a_whole() -> None:
    """Flags of other programs are not taken for the engine's."""
    kind, findings = examine(
        "nvidia-smi --gpu-reset -i 0\nnvidia-smi -lgc 1200\npython -m vllm.entrypoints.api_server \\\n"
        "  --model meta-llama/Llama-3-8b-chat-hf --max-num-seqz 5\n"
    )
    assert kind == "vllm"
    assert [finding.words for finding in findings] == [
        "nvidia-smi --gpu-reset -i 0",
        "nvidia-smi -lgc 1200",
        "-m vllm.entrypoints.api_server",
        "Llama-3-8b-chat-hf",
        "--max-num-seqz",
    ]


def test_commands_without_an_engine_are_judged_too() -> None:
    kind, findings = examine("nvidia-smi -r")
    assert kind is None
    assert len(findings) == 1
