"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = re.compile(r"`([^`]+)`")
PYTHON_FILE = re.compile(r"(test_\w+\.py)(?:: (test_\w+))?")
PYTHON_TEST = re.compile(r"test_\w+|assert_\w+")
CPP_TEST = re.compile(r"([A-Z]\w+)\.([A-Z]\w+|\*)")


def named() -> list[str]:
    """All pieces of code on the page."""
    return CODE.findall((ROOT / "docs" / "reliability.md").read_text())


def python_sources() -> dict[str, str]:
    """The text of every Python file of the tests."""
    return {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}


def test_the_python_tests_exist() -> None:
    sources = python_sources()
    found = 0
    for word in named():
        if match := PYTHON_FILE.fullmatch(word):
            name, function = match.groups()
            assert name in sources, word
            assert function is None or f"def {function}(" in sources[name], word
            found += 1
        elif PYTHON_TEST.fullmatch(word):
            assert any(f"def {word}(" in text for text in sources.values()), word
            found += 1
    assert found > 30, "the page is read as it is written"


def test_the_cpp_tests_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*_test.cc")]
    found = 0
    for word in named():
        if match := CPP_TEST.fullmatch(word):
            suite, test = match.groups()
            what = rf"TEST(_F|_P)?\(\s*{suite},\s*" + ("" if test == "*" else rf"{test}\)")
            assert any(re.search(what, text) for text in texts), word
            found += 1
    assert found > 10, "the page is read as it is written"
