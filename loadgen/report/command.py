"""The verb `weir report`: from a run directory to its summary, page and tables.

Raw records are only ever read; the directory gains `summary.json`, `report.html` and, when asked,
`gateway.jsonl`. It is sealed again only if its seal held before: a report must not launder changed evidence.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadgen import record
from loadgen.analyze.summary import Summary, summarise
from loadgen.report.evidence import read_evidence, readable
from loadgen.report.html import page
from loadgen.report.terminal import tables

SUMMARY = "summary.json"
PAGE = "report.html"


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `weir report`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run")
    parser.add_argument(
        "--gateway-records",
        type=Path,
        metavar="FILE",
        help="the gateway's record file; its records of this run are copied into DIR and joined",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help=f"also write the page here (always in DIR/{PAGE})"
    )


def report(arguments: argparse.Namespace) -> int:
    """Runs the verb. Exit 0 with a report, whatever its verdict; 2 with one line on stderr without one."""
    try:
        if arguments.gateway_records is not None:
            take_gateway_records(arguments.directory, arguments.gateway_records)
        summary, path = write_report(arguments.directory)
        if arguments.output is not None:
            arguments.output.write_bytes(path.read_bytes())
            path = arguments.output
    except (ValueError, OSError) as error:
        sys.stderr.write(f"weir report: {error}\n")
        return 2
    sys.stdout.write(f"{tables(summary)}\n{path}\n")
    return 0


def write_report(directory: Path) -> tuple[Summary, Path]:
    """Analyses a run and writes its summary and page into it; returns the summary and the page's path.

    Raises ValueError when the directory holds no readable schedule.
    """
    problems = broken_seal(directory)
    evidence = read_evidence(directory, problems)
    summary = summarise(evidence)
    _write(directory / SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    _write(directory / PAGE, page(summary).encode())
    if evidence.manifest is not None and not problems:
        record.seal(directory, evidence.manifest)
    return summary, directory / PAGE


def take_gateway_records(directory: Path, source: Path) -> int:
    """Copies the lines of `source` that belong to this run into it, unchanged; returns how many.

    Raises ValueError for a line that is no record, FileExistsError when the run has gateway records already.
    """
    target = directory / record.GATEWAY
    if target.exists():
        raise FileExistsError(f"{target} exists, and evidence is never replaced: leave out --gateway-records")
    problems = broken_seal(directory)
    # Of a killed run the last line may be cut; the report says so, here the readable ones are wanted.
    wanted = {request.trace_id for request in readable(record.read_requests, record.parts(directory), [])}
    lines = [line for trace_id, line in _traced_lines(source) if trace_id in wanted]
    _write(target, b"".join(lines))
    if (directory / record.MANIFEST).exists() and not problems:
        record.seal(directory, record.read_manifest(directory))
    return len(lines)


def broken_seal(directory: Path) -> list[str]:
    """What is wrong with the evidence as sealed; nothing for a run that was killed before it was.

    Summary and page do not count: they are no evidence, and a report that was stopped midway leaves them unsealed.
    """
    if not (directory / record.MANIFEST).exists():
        return []
    return [problem for problem in record.verify(directory) if not problem.startswith((SUMMARY, PAGE))]


class _Traced(msgspec.Struct):
    trace_id: str


def _traced_lines(source: Path) -> Iterator[tuple[str, bytes]]:
    """Trace id and bytes of each line. A last line without its end is still being written, so it is skipped."""
    decoder = msgspec.json.Decoder(_Traced)
    with source.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line).trace_id, line
            except msgspec.MsgspecError as error:
                raise ValueError(f"{source}:{number}: not a gateway record: {error}") from error


def _write(path: Path, content: bytes) -> None:
    """Replaces the file in one step, so that a reader never sees half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.rename(path)
