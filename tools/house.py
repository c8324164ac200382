"""The house rules that no other checker knows: sizes, names, docstrings, and a test file for every module.

`python -m tools.house` reads the tree it runs in and never changes it. It prints one line per broken rule, as
`file:line: what is wrong`, and exits with 1 when there is one. The rules themselves are docs/design.md, section 5.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("weir", "gateway", "loadgen", "simulator", "protocol", "timing")
"""What users install: every module of these has a docstring and a mirrored test."""

FOLDERS = (*PACKAGES, "benchmarks", "tests", "tools")
"""Where sizes and names are checked."""

SIZED = {".py", ".sh", ".html", ".css", ".js"}
VENDORED = "vendor"
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

VAGUE_NAMES = {"utils", "common", "helpers", "base", "manager", "handler", "misc"}
"""Names that do not say what a module hides."""

UNTESTED = {
    "weir/__main__.py": "calls weir.cli.main and nothing else",
    "gateway/engines/openai.py": "one constant, checked beside the others in test_kinds.py",
    "gateway/engines/sglang.py": "one constant, checked beside the others in test_kinds.py",
    "gateway/engines/vllm.py": "one constant, checked beside the others in test_kinds.py",
    "simulator/steps.py": "value types without a method; the model's tests make and read every one",
}
"""Module → why it has no test file of its own."""


def problems(root: Path, untested: Mapping[str, str]) -> Iterator[str]:
    """One line per broken rule of the tree at `root`, in order of files; `untested` as `UNTESTED`."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            file = path.relative_to(root)
            if file.suffix in SIZED and VENDORED not in file.parts:
                yield from _file_problems(root, file, untested)
    for module in untested:
        if not (root / module).is_file():
            yield f"{module}: is excused in tools/house.py from having a test, but does not exist"


def _file_problems(root: Path, file: Path, untested: Mapping[str, str]) -> Iterator[str]:
    text = (root / file).read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{file}:{lines}: {lines} lines, more than {MAX_FILE_LINES}: split it by what it hides"
    for part in (*file.parts[:-1], file.stem):
        if part in VAGUE_NAMES:
            yield f"{file}:1: {part!r} does not say what it hides: name it for that"
    if file.suffix == ".py":
        tree = ast.parse(text, str(file))
        yield from _long_functions(tree, file)
        if file.parts[0] in PACKAGES:
            yield from _module_problems(tree, file)
            if file.name != "__init__.py" and str(file) not in untested:
                yield from _missing_test(root, file)


def _long_functions(tree: ast.Module, file: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{file}:{node.lineno}: {node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}: split it"


def _module_problems(tree: ast.Module, file: Path) -> Iterator[str]:
    if ast.get_docstring(tree) is None:
        yield f"{file}:1: no docstring: say what the module hides and what it never does"
    if file.name == "__init__.py" and len(tree.body) > 1:
        yield f"{file}:{tree.body[1].lineno}: code in a package's __init__: it holds a docstring only"


def _missing_test(root: Path, file: Path) -> Iterator[str]:
    test = Path("tests", *file.parts[:-1], f"test_{file.name}")
    if not (root / test).is_file():
        yield f"{file}:1: no test file: {test} is missing"


def main() -> int:
    """Checks the tree in the working directory; the exit status."""
    found = list(problems(Path.cwd(), UNTESTED))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
