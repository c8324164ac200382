"""Options of one stand-in engine, and their command line.

Names follow the real engines' flags where those exist. Nothing is read or opened here.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simulator.profile import built_in_profiles

Kind = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What `simulator.server.serve` runs. None means: as the kind itself would choose."""

    kind: Kind
    profile: str
    """Name of a built-in profile, or a file."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one; the line printed when ready says which."""
    model: str | None = None
    """Served model name; None is the profile's."""
    seed: int = 0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_queued: int | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None
    """KV capacity; None is what the profile leaves."""
    page_size: int | None = None
    report_cached_tokens: bool = False
    request_id_headers: bool = False
    server_load_tracking: bool = False
    shutdown_timeout_s: float = 30.0
    """After SIGTERM, how long requests may finish; then they are cut. 0 cuts them at once."""
    record_streams: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `weir engine`."""
    parser.add_argument("--kind", choices=["vllm", "sglang"], required=True, help="engine to stand in for")
    parser.add_argument(
        "--profile",
        default="h100_llama-3-8b",
        metavar="NAME_OR_FILE",
        help=f"hardware and model: {', '.join(built_in_profiles())}, or a YAML file (default: %(default)s)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: the profile's)")
    parser.add_argument("--seed", type=int, default=0, help="of answers and step times (default: %(default)s)")
    _add_limits(parser)
    parser.add_argument(
        "--enable-prompt-tokens-details",
        "--enable-cache-report",
        dest="report_cached_tokens",
        action="store_true",
        help="report cached prompt tokens in usage",
    )
    parser.add_argument("--enable-request-id-headers", dest="request_id_headers", action="store_true")
    parser.add_argument("--enable-server-load-tracking", dest="server_load_tracking", action="store_true")
    parser.add_argument(
        "--shutdown-timeout",
        dest="shutdown_timeout_s",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for open requests after SIGTERM (default: %(default)s)",
    )
    parser.add_argument(
        "--record-streams",
        type=Path,
        metavar="FILE",
        help="append one JSON line per answer: its size and SHA-256 as written",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for flags, name, text in (
        (("--max-num-seqs", "--max-running-requests"), "max_num_seqs", "requests that run at once"),
        (
            ("--max-num-batched-tokens", "--chunked-prefill-size"),
            "max_num_batched_tokens",
            "tokens of one step (SGLang: of one prefill step)",
        ),
        (
            ("--max-queued", "--max-num-queued-reqs", "--max-queued-requests"),
            "max_queued",
            "requests that may queue (default: no limit)",
        ),
        (("--max-model-len", "--context-length"), "max_model_len", "prompt and output tokens of a request"),
        (("--kv-tokens", "--max-total-tokens"), "kv_tokens", "KV capacity in tokens"),
        (("--page-size", "--block-size"), "page_size", "tokens of a KV block (default: vLLM 16, SGLang 1)"),
    ):
        parser.add_argument(*flags, dest=name, type=_count, metavar="N", help=text)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def from_arguments(arguments: argparse.Namespace) -> ServerOptions:
    """Options from what a parser with `add_arguments` read; other attributes are ignored."""
    names = ServerOptions.__dataclass_fields__
    return ServerOptions(**{name: value for name, value in vars(arguments).items() if name in names})
