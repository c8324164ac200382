"""Each house rule against a tree that keeps all of them but one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house


def function_of(lines: int) -> str:
    return "@property\n@property\ndef long() -> None:\n" + "    pass\n" * (lines - 1)


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that keeps every rule, at the edge of each, in a folder whose own name is nobody's business."""
    tree = tmp_path / "vendor" / "utils"
    write(tree, "gateway/__init__.py", '"""The gateway."""\n')
    write(tree, "gateway/proxy.py", '"""The proxy."""\n' + function_of(60) + "\n" * 436)
    write(tree, "gateway/report/vendor/base.js", "\n" * 501)
    write(tree, "tests/gateway/test_proxy.py", "")
    write(tree, "benchmarks/load.py", "")
    return tree


def test_a_tree_in_order_has_no_problems(tree: Path) -> None:
    assert list(house.problems(tree, {})) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("gateway/proxy.py", '"""The proxy."""\n' + "\n" * 500, "gateway/proxy.py:501: 501 lines, more than 500"),
        ("gateway/page.html", "<br>\n" * 501, "gateway/page.html:501: 501 lines"),
        ("tests/gateway/test_proxy.py", "\n" * 501, "tests/gateway/test_proxy.py:501: 501 lines"),
        ("gateway/proxy.py", '"""The proxy."""\n' + function_of(61), "gateway/proxy.py:4: long has 61 lines"),
        ("benchmarks/load.py", "async " + "def f(): \n" + " pass\n" * 60, "benchmarks/load.py:1: f has 61 lines"),
        ("benchmarks/utils.py", "", "benchmarks/utils.py:1: 'utils' does not say what it hides"),
        ("benchmarks/common/wire.py", "", "benchmarks/common/wire.py:1: 'common' does not say"),
        ("gateway/proxy.py", "PORT = 1\n", "gateway/proxy.py:1: no docstring"),
        ("gateway/__init__.py", "", "gateway/__init__.py:1: no docstring"),
        ("gateway/__init__.py", '"""Doc."""\nimport os\n', "gateway/__init__.py:2: code in a package's __init__"),
        (
            "gateway/policy/retry.py",
            '"""When to try again."""\n',
            "gateway/policy/retry.py:1: no test file: tests/gateway/policy/test_retry.py is missing",
        ),
    ],
)
def test_one_broken_rule_is_one_line_that_says_where_and_what(tree: Path, file: str, text: str, problem: str) -> None:
    write(tree, file, text)
    found = list(house.problems(tree, {}))
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_module_may_be_excused_from_a_test_for_a_reason(tree: Path) -> None:
    write(tree, "weir/__main__.py", '"""`python -m weir`."""\n')
    assert list(house.problems(tree, {"weir/__main__.py": "two lines"})) == []


def test_an_excuse_for_a_module_that_is_gone_is_a_problem(tree: Path) -> None:
    assert list(house.problems(tree, {"weir/gone.py": "it was short"})) == [
        "weir/gone.py: is excused in tools/house.py from having a test, but does not exist"
    ]


def test_the_command_prints_problems_and_fails_only_then(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in house.UNTESTED:
        write(tree, module, '"""Excused."""\n')
    monkeypatch.chdir(tree)
    assert house.main() == 0
    assert capsys.readouterr().out == ""
    (tree / "tests/gateway/test_proxy.py").unlink()
    assert house.main() == 1
    assert capsys.readouterr().out == "gateway/proxy.py:1: no test file: tests/gateway/test_proxy.py is missing\n"
