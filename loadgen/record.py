"""The run directory: where the evidence of one run lives, and how it is sealed.

The schedule is Parquet; the other files hold one JSON record per line (`protocol/records.py`). Lines are written
while the run goes on, so a killed run leaves readable evidence; `manifest.json` appears last, by rename, so a
directory that has one is finished. `SHA256SUMS` covers every other file and is checked by `sha256sum -c`. Nothing
here overwrites or drops a record.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from protocol.records import (
    ChunkRecord,
    FileDigest,
    GatewayRecord,
    Manifest,
    RequestRecord,
    encode_line,
    read_lines,
)

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
SCHEDULE = "schedule.parquet"
REQUESTS = "requests.jsonl"
CHUNKS = "chunks.jsonl"
WARM_UP = "warm-up.jsonl"
GATEWAY = "gateway.jsonl"
_PART = "worker-"

_BUFFER_BYTES = 64 * 1024


def claim(run: Path) -> None:
    """Makes the directory of a run. Raises FileExistsError when there is one that already holds anything."""
    run.mkdir(parents=True, exist_ok=True)
    if any(run.iterdir()):
        raise FileExistsError(f"{run} is not empty: a run never overwrites another, name a new directory")


class RunWriter:
    """Writes the records of a run that is going on.

    At most 64 KiB per file wait in memory, which is what a killed run loses; a full buffer is written out by
    the call that filled it.
    Raises FileExistsError for a directory that has such records already.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.outcomes: Counter[str] = Counter()
        self._requests = _create(path / REQUESTS)
        self._chunks = _create(path / CHUNKS)

    def add(self, request: RequestRecord, chunks: ChunkRecord | None) -> None:
        """Appends one finished request, and its reads when any body byte arrived."""
        self.outcomes[request.outcome] += 1
        self._requests.write(encode_line(request))
        if chunks is not None:
            self._chunks.write(encode_line(chunks))

    def close(self) -> None:
        """Closes the record files without sealing: what a failed run leaves."""
        self._requests.close()
        self._chunks.close()


def part(run: Path, worker: str) -> Path:
    """Where one of several workers keeps its records until they are gathered."""
    return run / f"{_PART}{worker}"


def parts(run: Path) -> list[Path]:
    """Directories with the records of a run: its own, or its workers' where it was killed before it gathered them."""
    left = [] if (run / REQUESTS).exists() else sorted(run.glob(f"{_PART}*"))
    return left or [run]


def gather(run: Path, workers: Sequence[Path]) -> None:
    """Puts the records of several workers together in `run`, and removes the parts.

    The last line of a worker that was killed may be cut; what is no whole line is no record, and is left out.
    """
    for name in (REQUESTS, CHUNKS):
        with (run / name).open("xb") as whole:
            for worker in workers:
                if (worker / name).exists():
                    with (worker / name).open("rb") as lines:
                        whole.writelines(line for line in lines if line.endswith(b"\n"))
    for worker in workers:
        shutil.rmtree(worker, ignore_errors=True)


def _create(path: Path) -> BinaryIO:
    return path.open("xb", buffering=_BUFFER_BYTES)


def seal(run: Path, manifest: Manifest) -> None:
    """Writes digests of every file, then `SHA256SUMS`, then `manifest.json` by rename."""
    files = {name: digest(run / name) for name in _evidence(run)}
    sealed = msgspec.structs.replace(manifest, files=files)
    content = msgspec.json.format(msgspec.json.encode(sealed), indent=2) + b"\n"
    sums = {name: file.sha256 for name, file in files.items()}
    sums[MANIFEST] = hashlib.sha256(content).hexdigest()
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
    _replace(run / SUMS, lines.encode())
    _replace(run / MANIFEST, content)


def adopt(run: Path, source: Path, name: str) -> None:
    """Copies `source` into a sealed run as `name` (`gateway.jsonl`, say) and seals it again.

    Raises FileExistsError when the run has such a file already.
    """
    target = run / name
    if target.exists():
        raise FileExistsError(f"{target} exists: evidence is never replaced")
    manifest = read_manifest(run)
    shutil.copyfile(source, target)
    seal(run, manifest)


def _evidence(run: Path) -> list[str]:
    """Names, relative to the run, of all files but the two that seal it."""
    names = (path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    return sorted(name for name in names if name not in (MANIFEST, SUMS))


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.rename(path)


def digest(path: Path) -> FileDigest:
    """SHA-256 (hex) and size of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(sha256=sha256, bytes=file.tell())


def read_manifest(run: Path) -> Manifest:
    """The manifest of a finished run. Raises ValueError for a directory that is not one."""
    path = run / MANIFEST
    if not path.exists():
        raise ValueError(f"{run} has no {MANIFEST}: not a run, or one that was killed before it ended")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: not a manifest: {error}") from error


def read_requests(run: Path) -> Iterator[RequestRecord]:
    """Request records in the order in which the requests ended."""
    return read_lines(run / REQUESTS, RequestRecord)


def read_warm_up(run: Path) -> Iterator[RequestRecord]:
    """Records of the requests before the run, which are no part of it; nothing when there was no warm-up."""
    path = run / WARM_UP
    return read_lines(path, RequestRecord) if path.exists() else iter(())


def read_chunks(run: Path) -> Iterator[ChunkRecord]:
    """Reads of every response that had a body."""
    return read_lines(run / CHUNKS, ChunkRecord)


def read_gateway(run: Path) -> Iterator[GatewayRecord]:
    """The gateway's records; nothing when the run has none."""
    path = run / GATEWAY
    return read_lines(path, GatewayRecord) if path.exists() else iter(())


def verify(run: Path) -> list[str]:
    """What is wrong with a run directory, one sentence each; an empty list means it is as it was sealed."""
    try:
        manifest = read_manifest(run)
        listed = _read_sums(run / SUMS)
    except (ValueError, OSError) as error:
        return [str(error)]
    present = {*_evidence(run), MANIFEST}
    problems = [f"{name}: listed in {SUMS} but missing" for name in sorted(listed.keys() - present)]
    problems += [f"{name}: not covered by {SUMS}" for name in sorted(present - listed.keys())]
    for name in sorted(listed.keys() & present):
        found = digest(run / name)
        if found.sha256 != listed[name]:
            problems.append(f"{name}: content differs from {SUMS}")
        elif name != MANIFEST and manifest.files.get(name) != found:
            problems.append(f"{name}: {SUMS} and {MANIFEST} disagree")
    return problems


def _read_sums(path: Path) -> dict[str, str]:
    sums = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        sha256, separator, name = line.partition("  ")
        if not separator or len(sha256) != 64:
            raise ValueError(f"{path}:{number}: not a line of sha256sum")
        sums[name] = sha256
    return sums
