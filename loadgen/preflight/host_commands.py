"""Commands for the machine around an engine that circulate in articles and do not do what they are meant to. Pure.

Sources: nvidia-smi(1), the kernel's documentation of its parameters, of IRQ affinity and of intel_pstate, proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake in a command: the words at fault, what is wrong with them, and what to write instead."""

    words: str
    wrong: str
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mistake:
    """`pattern` is looked for within one command; what it matches are the words at fault."""

    pattern: re.Pattern[str]
    wrong: str
    instead: str


def _mistake(pattern: str, *, wrong: str, instead: str) -> _Mistake:
    return _Mistake(pattern=re.compile(pattern), wrong=wrong, instead=instead)


_MISTAKES = (
    _mistake(
        r"nvidia-smi\b[^|;&]*\s(-r|--gpu-reset)\b[^|;&]*",
        wrong="needs a GPU that no process uses, so it ends the engine; it takes every lock of clocks away, and without"
        " -i it resets all GPUs. It is no way to free memory",
        instead="stop the engine, see that `nvidia-smi --query-compute-apps=pid --format=csv` is empty, and reset only"
        " after an Xid or ECC error",
    ),
    _mistake(
        r"nvidia-smi\b[^|;&]*\s(-lgc|--lock-gpu-clocks)[= ]\d+(?![\d,])",
        wrong="asks for the closest clock, which is no floor under a power or thermal cap, and is gone with the last"
        " client unless persistence mode is on",
        instead="nvidia-smi -pm 1, then -lgc MHZ,MHZ; read clocks.sm back during the run, undo with -rgc",
    ),
    _mistake(
        r"nvidia-smi\b[^|;&]*\s(-lmc|--lock-memory-clocks)[= ][\d,]+",
        wrong="snaps to a supported memory clock, and does nothing on Hopper",
        instead="choose from `nvidia-smi -q -d SUPPORTED_CLOCKS`; on Hopper --lock-memory-clocks-deferred and reload"
        " the driver; undo with -rmc or -rmcd",
    ),
    _mistake(
        r"nvidia-smi\b[^|;&]*\s(-d|--display)[= ]\S*THROTTLE\S*",
        wrong="THROTTLE is no display type: the command ends with status 2",
        instead="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE",
    ),
    _mistake(
        r"nvidia-smi\b[^|;&]*\s(-d|--display)[= ]MEMORY\s*\|\s*grep\s.*NUMA.*",
        wrong="MEMORY prints the frame buffer and BAR1, nothing of NUMA",
        instead="nvidia-smi topo -m, or /sys/bus/pci/devices/BUS_ID/numa_node",
    ),
    _mistake(
        r"pcie_aspm=off",
        wrong="tells the kernel to leave ASPM as the firmware set it; as a line of its own in /etc/default/grub it is a"
        " shell variable that nothing reads",
        instead="pcie_aspm.policy=performance inside GRUB_CMDLINE_LINUX_DEFAULT; verify /proc/cmdline, and LnkCtl of"
        " `lspci -vv`",
    ),
    _mistake(
        r"echo\s+['\"]?(0x)?[0-9a-fA-F]+['\"]?\s*(>|\|\s*(sudo\s+)?tee)\s*\S*smp_affinity_list",
        wrong="smp_affinity_list wants CPU numbers: a mask with letters is refused, and one of digits alone is another"
        " CPU (00000010 is CPU 10, not CPU 4)",
        instead="echo 0-3 > …/smp_affinity_list, or echo f > …/smp_affinity; read effective_affinity_list back",
    ),
    _mistake(
        r"(cpupower\b.*\bfrequency-set\b.*-g\s*performance|echo\s+['\"]?performance['\"]?\s*(>|\|).*scaling_governor)",
        wrong="does not hold the clock: with intel_pstate or HWP the turbo still floats",
        instead="add intel_pstate/no_turbo=1, min_perf_pct=100 and a cap on idle states; read them back",
    ),
    _mistake(
        r"apt(-get)?\s+install\b.*nvidia-driver-\d+\S*=\S+",
        wrong="installs that version and does not keep it: the next upgrade replaces it",
        instead="apt-mark hold the package as well, and record /proc/driver/nvidia/version with every run",
    ),
    _mistake(
        r"pkill\s+.*-f.*(vllm|sglang)\S*",
        wrong="ends what matches by name: not `vllm serve`, nor the engine's own processes, perhaps something else",
        instead="stop it by its process id, its unit or its container",
    ),
    _mistake(
        r"chronyc\b.*\bmakestep\b",
        wrong="steps the wall clock: vLLM's TTFT and end-to-end histograms, and every schedule by that clock, jump",
        instead="before a run only; store offset and dispersion of `chronyc tracking` with the run",
    ),
    _mistake(
        r"ldd\s+.*which\s+(vllm|sglang)\b\S*",
        wrong="is a Python script, and so no dynamic executable",
        instead="grep nccl /proc/PID/maps of the engine, or torch.cuda.nccl.version()",
    ),
    _mistake(
        r"(net\.ipv4\.)?tcp_tw_reuse\s*=\s*1",
        wrong="concerns outgoing connections only",
        instead="keep connections alive, so that there are none to reuse",
    ),
    _mistake(
        r"pip3?\s+install\b.*nvidia-ml-py3\S*",
        wrong="is an abandoned package",
        instead="nvidia-ml-py",
    ),
    _mistake(
        r"cat\s+/proc/[^/\s]+/stack\b",
        wrong="needs root, and shows the kernel stack of the main thread alone",
        instead="py-spy dump --pid PID, or /proc/PID/task/*/stack",
    ),
)


def examine_host_command(line: str) -> Iterator[Finding]:
    """What is wrong with one line of a shell, a unit or a runbook, other than an engine's own flags."""
    for mistake in _MISTAKES:
        found = mistake.pattern.search(line)
        if found:
            yield Finding(words=found[0].strip(), wrong=mistake.wrong, instead=mistake.instead)
