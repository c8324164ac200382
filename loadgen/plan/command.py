"""The command-line verb `plan`: its arguments, which `run` shares as far as they name traffic, and what it prints.

Bad input is one line on standard error and exit status 2; nothing else is decided here. What draws and fits is
imported where it is needed, since a run of a given schedule has no use for it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from loadgen.plan.arrivals import Arrivals, parse_arrivals
from loadgen.plan.experiment import PLAN, Arm, Experiment, Level, Plan, TrafficChoice, parse_experiment
from loadgen.plan.schedule import Schedule
from loadgen.plan.sources import Capped, Drawn, Hastened, Lengths, Part, Replayed, Source
from loadgen.record import digest
from loadgen.workload.command import remarks
from loadgen.workload.traces import FORMATS, read_trace
from protocol.records import ScheduleHeader

_REFUSED = 2

_DURATION_S = 60.0
_REPEATS = 5
_MANY = 100
"""Requests from which on a pattern in their times is none by chance."""


def add_traffic_arguments(parser: argparse.ArgumentParser, *, sources: bool = True) -> None:
    """What is sent and when, for the verbs that take a single schedule."""
    traffic = parser.add_mutually_exclusive_group(required=sources)
    traffic.add_argument("--workload", metavar="NAME_OR_FILE", help="a workload that comes with weir, or a file")
    traffic.add_argument("--trace", type=Path, metavar="FILE", help="request log to replay, or a pattern of its parts")
    traffic.add_argument("--lengths", metavar="PROMPT:OUTPUT", help="tokens, as 512:128 or 100-900:1-64")
    traffic.add_argument("--schedule", type=Path, metavar="FILE", help="schedule made by `weir plan`")
    parser.add_argument("--format", choices=FORMATS, help="of --trace (found by its first lines)")
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json of the model: to count texts of a --trace, and for a run's prompts of real text",
    )
    parser.add_argument("--bad-rows", type=float, metavar="SHARE", help="of rows of --trace that may be bad (0)")
    parser.add_argument("--max-prompt", type=int, metavar="N", help="tokens; longer prompts lose their end")
    parser.add_argument("--max-output", type=int, metavar="N", help="tokens; longer outputs are cut")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--arrivals", metavar="FAMILY:NAME=VALUE,…", help="as gamma:rate=5,cv=2 (the traffic's own)")
    when.add_argument("--concurrency", metavar="N", type=int, help="closed loop: requests under way at any time")
    parser.add_argument("--requests", type=int, metavar="N", help="of a closed loop, in all")
    parser.add_argument("--duration", type=float, metavar="S", help="seconds of run time (60)")
    parser.add_argument("--start", type=float, metavar="S", help="second of the traffic to start at (0)")
    parser.add_argument("--rate-scale", type=float, metavar="X", help="times the traffic's own rate (1)")
    parser.add_argument(
        "--time-scale", type=float, metavar="X", help="changes of a workload come X times as fast, at its rate (1)"
    )
    parser.add_argument("--seed", type=int, help="seed of traffic, arrivals, text and order (0)")
    parser.add_argument("--text-seed", type=int, help="schedules share text only where it is equal (as --seed)")


def given_schedule(path: Path, tokenizer: str | None) -> argparse.Namespace:
    """The arguments that name this schedule, and the tokenizer of who gets it."""
    parser = argparse.ArgumentParser()
    add_traffic_arguments(parser)
    return parser.parse_args(["--schedule", str(path), *(["--tokenizer", tokenizer] if tokenizer else [])])


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """`weir plan TRAFFIC -o FILE`, `weir plan TRAFFIC --arm … -o DIR`, `weir plan EXPERIMENT.yaml -o DIR`."""
    parser.add_argument("experiment", nargs="?", type=Path, metavar="EXPERIMENT", help="YAML, in place of all below")
    add_traffic_arguments(parser, sources=False)
    parser.add_argument("--arm", action="append", metavar="NAME=URL", help="plan an experiment; give one for each arm")
    parser.add_argument("--model", help="of all arms")
    parser.add_argument("--levels", metavar="X,…", help="loads: times the rate, or requests at once (--requests)")
    parser.add_argument("--repeats", type=int, help=f"of every arm at every level ({_REPEATS})")
    parser.add_argument("--order", choices=("random", "abba"), help="in which cells are run (random)")
    parser.add_argument("--name", help="of the experiment")
    parser.add_argument("-o", "--out", type=Path, required=True, help="schedule file, or directory, to write")


def _refusing(verb: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    @wraps(verb)
    def guarded(ns: argparse.Namespace) -> int:
        try:
            return verb(ns)
        except (ValueError, OSError) as error:
            say(f"weir plan: {error}")
            return _REFUSED

    return guarded


def say(text: str) -> None:
    """A remark beside the result."""
    sys.stderr.write(text + "\n")


@_refusing
def plan(ns: argparse.Namespace) -> int:
    """Writes a schedule and prints its identity, or a whole experiment and prints what it has."""
    if ns.tokenizer is not None and ns.trace is None and ns.experiment is None:
        raise ValueError("--tokenizer is of use here to count the texts of a --trace: give it to `weir run` instead")
    if ns.experiment is not None or ns.arm:
        experiment = _experiment(ns)
        from loadgen.plan.writing import write_plan

        _tell_shared_engines(experiment)
        source, arrivals = _traffic(experiment.traffic)
        command = shlex.join(["weir", *sys.argv[1:]])
        sys.stdout.write(_described(write_plan(experiment, source, arrivals, ns.out, command=command)))
        return 0
    alone = [name for name in ("levels", "repeats", "order", "name", "model") if getattr(ns, name) is not None]
    if alone:
        raise ValueError(f"--{alone[0]} belongs to an experiment: give --arm NAME=URL, or drop it")
    content, schedule = schedule_of(ns)
    ns.out.write_bytes(content)
    sys.stdout.write(f"{ns.out}: {summary(schedule)}\nsha256 {digest(ns.out).sha256}\n")
    return 0


def summary(schedule: Schedule) -> str:
    """One line about a schedule."""
    header, tokens = schedule.header, (schedule.prompt_tokens.sum(), schedule.output_tokens.sum())
    seconds = header.duration_ns / 1e9
    when = (
        f"in {seconds:g} s ({len(schedule) / seconds:.3g}/s)"
        if seconds
        else f"closed loop, {header.concurrency} at once"
    )
    if header.arrivals not in ("own", "closed"):
        when += f" by {header.arrivals}"
    return (
        f"{header.source}, seed {header.seed}: {len(schedule)} requests {when},"
        f" {tokens[0]} prompt and {tokens[1]} output tokens"
    )


def _described(plan: Plan) -> str:
    experiment, requests = plan.file.experiment, [planned.requests for planned in plan.file.schedules]
    return (
        f"{plan.directory}: {experiment.name}, {len(experiment.arms)} arms x {len(experiment.levels)} levels x"
        f" {experiment.repeats} repeats = {len(plan.file.cells)} cells in {experiment.order} order,"
        f" {min(requests)} to {max(requests)} requests each\n"
        f"sha256 {digest(plan.directory / PLAN).sha256}\n"
    )


def schedule_of(ns: argparse.Namespace) -> tuple[bytes, Schedule]:
    """The schedule that the arguments of `add_traffic_arguments` name: its file's bytes, and what they say.

    Raises ValueError and OSError, whose text tells the user what is wrong.
    """
    if ns.schedule is not None:
        return _given(ns)
    from loadgen.plan.making import make, make_closed
    from loadgen.plan.schedule_file import encode_schedule

    part = Part(
        seed=ns.seed or 0,
        duration_s=_DURATION_S if ns.duration is None else ns.duration,
        start_s=ns.start or 0.0,
        rate_scale=1.0 if ns.rate_scale is None else ns.rate_scale,
        text_seed=ns.text_seed,
    )
    source, arrivals = _traffic(_choice(ns))
    if ns.concurrency is None:
        if ns.requests is not None:
            raise ValueError("--requests belongs to --concurrency: an open loop has as many as come")
        schedule = make(source, part, arrivals).schedule
    elif ns.requests is None or ns.duration is not None or ns.rate_scale is not None:
        raise ValueError("--concurrency needs --requests, and takes no --duration and no --rate-scale")
    else:
        schedule = make_closed(source, part, concurrency=ns.concurrency, requests=ns.requests)
    _tell_peculiarities(source.name, schedule.header)
    if isinstance(source, Capped) and source.shortened:
        say(f"{source.name}: {source.shortened} of {len(schedule)} requests were longer and are cut")
    return encode_schedule(schedule), schedule


def _tell_peculiarities(name: str, header: ScheduleHeader) -> None:
    if header.raised:
        say(f"{name}: {header.raised} requests with 0 tokens in or out count as 1")
    phases = [check for check in header.self_test if check.name.startswith("phase_")]
    special = [f"{c.name} is {c.value:.3g}, at most {c.high:.3g} by chance" for c in phases if c.value > c.high]
    if special and header.requests >= _MANY:
        say(f"{name}: its times lie on a grid and are replayed so ({'; '.join(special)})")


BESIDE_SCHEDULE = (
    "format",
    "bad_rows",
    "arrivals",
    "concurrency",
    "requests",
    "duration",
    "start",
    "rate_scale",
    "time_scale",
    "seed",
    "text_seed",
)
"""What makes a schedule, and so has no place beside one that is given."""


def _given(ns: argparse.Namespace) -> tuple[bytes, Schedule]:
    given = [name for name in BESIDE_SCHEDULE if getattr(ns, name) is not None]
    if given:
        raise ValueError(f"--schedule is complete: drop --{given[0].replace('_', '-')}")
    from loadgen.plan.schedule_file import decode_schedule

    content = ns.schedule.read_bytes()
    try:
        return content, decode_schedule(content)
    except ValueError as error:
        raise ValueError(f"{ns.schedule}: {error}") from error


def _choice(ns: argparse.Namespace) -> TrafficChoice:
    if ns.workload is None and ns.trace is None and ns.lengths is None:
        raise ValueError("say what to send: --workload, --trace, --lengths or --schedule")
    return TrafficChoice(
        workload=ns.workload,
        trace=None if ns.trace is None else str(ns.trace),
        format=ns.format,
        # A run has a use for it beside counting the texts of a log.
        tokenizer=None if ns.trace is None else ns.tokenizer,
        most_prompt_tokens=ns.max_prompt,
        most_output_tokens=ns.max_output,
        bad_rows=ns.bad_rows,
        lengths=ns.lengths,
        time_scale=ns.time_scale,
        arrivals=ns.arrivals,
        start_s=ns.start or 0.0,
        duration_s=_DURATION_S if ns.duration is None else ns.duration,
        requests=ns.requests,
    )


def _traffic(choice: TrafficChoice) -> tuple[Source, Arrivals | None]:
    arrivals = None if choice.arrivals is None else parse_arrivals(choice.arrivals)
    source = _source(choice)
    if choice.most_prompt_tokens is not None or choice.most_output_tokens is not None:
        return (
            Capped(source=source, prompt_tokens=choice.most_prompt_tokens, output_tokens=choice.most_output_tokens),
            arrivals,
        )
    return source, arrivals


def _source(choice: TrafficChoice) -> Source:
    if choice.lengths is not None:
        return Lengths.parse(choice.lengths)
    if choice.workload is not None:
        from loadgen.workload.description import load_workload, shipped

        drawn = Drawn(load_workload(shipped(choice.workload) or Path(choice.workload)))
        if choice.time_scale is None:
            return drawn
        say(f"{drawn.name}: its changes come {choice.time_scale:g} times as fast; its rate and lengths stay")
        return Hastened(source=drawn, times=choice.time_scale)
    assert choice.trace is not None, "a choice has exactly one source"
    count = None
    if choice.tokenizer is not None:
        from loadgen.workload.tokenizer import counter

        count = counter(Path(choice.tokenizer))
    trace = read_trace(Path(choice.trace), format=choice.format, count=count, bad_rows=choice.bad_rows or 0.0)
    for remark in remarks(trace):
        say(remark)
    return Replayed(name=trace.name, sha256=trace.sha256, requests=trace.requests, has_times=trace.timed)


def _experiment(ns: argparse.Namespace) -> Experiment:
    if ns.experiment is not None:
        return _read_experiment(ns)
    if ns.model is None:
        raise ValueError("--arm needs --model")
    if ns.schedule is not None or ns.concurrency is not None or ns.rate_scale is not None or ns.text_seed is not None:
        raise ValueError(
            "an experiment makes its schedules: say loads as --levels, and drop --schedule and --text-seed"
        )
    return Experiment(
        schema="weir.experiment/1",
        name=ns.name or ns.out.name,
        seed=ns.seed or 0,
        order=ns.order or "random",
        repeats=_REPEATS if ns.repeats is None else ns.repeats,
        traffic=_choice(ns),
        levels=[_level(text, closed=ns.requests is not None) for text in (ns.levels or "1").split(",")],
        arms=[_arm(text, ns.model) for text in ns.arm],
    )


def _read_experiment(ns: argparse.Namespace) -> Experiment:
    beside = [name for name, value in vars(ns).items() if value is not None and name not in ("experiment", "out")]
    if beside:
        raise ValueError(f"{ns.experiment} says everything: drop --{beside[0].replace('_', '-')}")
    try:
        return parse_experiment(ns.experiment.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{ns.experiment}: {error}") from error


def _tell_shared_engines(experiment: Experiment) -> None:
    """All arms get the same text, so one that comes second at the same engine finds it in the prefix cache."""
    by_url: dict[str, list[str]] = {}
    for arm in experiment.arms:
        by_url.setdefault(arm.url, []).append(arm.name)
    for url, arms in by_url.items():
        if len(arms) > 1:
            say(f"{url} serves {' and '.join(arms)}: flush its prefix cache between cells, they send the same text")


def _level(text: str, *, closed: bool) -> Level:
    try:
        if closed:
            return Level(name=f"c{int(text)}", concurrency=int(text))
        return Level(name=f"x{float(text):g}", rate_scale=float(text))
    except ValueError as error:
        raise ValueError(f"--levels: {error}") from error


def _arm(text: str, model: str) -> Arm:
    name, sign, url = text.partition("=")
    if not sign:
        raise ValueError(f"--arm {text}: expected NAME=URL")
    return Arm(name=name, url=url, model=model)
