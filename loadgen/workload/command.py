"""The command-line verb `fit`: its arguments, and what it prints.

Bad input is one line on standard error and exit status 2; nothing else is decided here.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from loadgen.workload.traces import FORMATS, Trace, read_trace

_REFUSED = 2

_KNOWN_SOURCES = {
    "azure": {
        "dataset": "Azure LLM inference trace (Azure Public Dataset)",
        "citation": (
            "P. Patel, E. Choukse, C. Zhang, A. Shah, I. Goiri, S. Maleki, R. Bianchini: Splitwise: Efficient"
            " generative LLM inference using phase splitting. ISCA 2024"
        ),
        "licence": "CC-BY 4.0",
    },
    "mooncake": {
        "dataset": "Mooncake trace",
        "citation": (
            "R. Qin, Z. Li, W. He, J. Cui, F. Ren, M. Zhang, Y. Wu, W. Zheng, X. Xu: Mooncake: Trading more storage for"
            " less computation. FAST 2025"
        ),
        "licence": "Apache-2.0",
    },
    "burstgpt": {
        "dataset": "BurstGPT",
        "citation": "Y. Wang et al.: BurstGPT: A real-world workload dataset to optimize LLM serving systems. KDD 2025",
        "licence": "CC-BY 4.0",
    },
    "servegen": {
        "dataset": "ServeGen client data, drawn",
        "citation": (
            "Y. Xiang et al.: ServeGen: Workload characterization and generation of large language model serving in"
            " production. arXiv:2505.09999"
        ),
        "licence": "Apache-2.0",
    },
}
"""Attribution that a data set's licence asks for, by trace format."""


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """`weir fit LOG… -o FILE`."""
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="request log, or the parts of one")
    parser.add_argument("--format", choices=FORMATS, help="of the log (found by its first lines)")
    parser.add_argument("-o", "--out", type=Path, required=True, help="workload file to write")
    parser.add_argument("--report", type=Path, metavar="HTML", help="page to write: the log beside what is drawn")
    parser.add_argument("--name", help="of the workload (as the file)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, for prompts that are text")
    parser.add_argument("--bad-rows", type=float, default=0.0, metavar="SHARE", help="of rows that may be bad (0)")
    parser.add_argument("--dataset", help="what the log is")
    parser.add_argument("--citation", help="whom to cite for it")
    parser.add_argument("--licence", help="its licence")


def fit(ns: argparse.Namespace) -> int:
    """Fits a workload description to a log and says how well it fits."""
    try:
        return _fit(ns)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"weir fit: {error}\n")
        return _REFUSED


def _fit(ns: argparse.Namespace) -> int:
    from loadgen.workload.description import Source, dump_workload
    from loadgen.workload.fit import fit_workload
    from loadgen.workload.tokenizer import counter

    trace = read_trace(
        *ns.logs,
        format=ns.format,
        count=None if ns.tokenizer is None else counter(ns.tokenizer),
        bad_rows=ns.bad_rows,
    )
    if not trace.timed:
        raise ValueError(
            f"{trace.name} has no times, so there is no rate to fit: plan with --trace and --arrivals instead"
        )
    sys.stderr.write("".join(f"{remark}\n" for remark in remarks(trace)))
    known = _KNOWN_SOURCES.get(trace.format, {})
    source = Source(
        dataset=ns.dataset or known.get("dataset", "not stated"),
        citation=ns.citation or known.get("citation", "not stated"),
        licence=ns.licence or known.get("licence", "not stated"),
        file_sha256=trace.sha256,
        rows=len(trace.requests),
        command=shlex.join(["weir", *sys.argv[1:]]),
    )
    workload = fit_workload(trace.requests, name=ns.name or ns.out.stem, source=source)
    ns.out.write_text(dump_workload(workload), encoding="utf-8")
    if ns.report is not None:
        from loadgen.workload.fit_report import fit_page

        ns.report.write_text(fit_page(trace.requests, workload), encoding="utf-8")
    sys.stdout.write(f"{ns.out}: {len(trace.requests)} requests in {workload.arrivals.duration_s:,.0f} s\n")
    for what, verdict in workload.verdicts().items():
        sys.stdout.write(f"  {what:<15} {verdict}\n")
    return 0


def remarks(trace: Trace) -> list[str]:
    """What of a log has no place in a schedule or a fit, a line each."""
    found = [
        f"{trace.name}: {number} rows are left out: {reason}" for reason, number in trace.left_out.items() if number
    ]
    if trace.zero_rows:
        found.append(f"{trace.name}: {trace.zero_rows} requests with 0 tokens in or out count as 1")
    return found
