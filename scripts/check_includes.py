#!/usr/bin/env python3
"""The rules of the source tree that no compiler checks; the ctest tidy.includes.

Each room includes only itself and the rooms that its line in cmake/room_list.cmake USES (include
what you use: the list is not followed further), and uses only rooms that stand above it in that file. Also: lengths
of files and lines, names of files, `#pragma once`, and a README.md in every room. Prints one line
a finding; exits 1 if there is any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cc", ".inl"}
CHECKED_FOLDERS = ("src", "tests", "fuzz", "bench")
COLUMNS_MAX = 100
LINES_MAX = 500
TEST_LINES_MAX = 800
BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "data", "info", "process", "handle"}

Rooms = dict[str, list[str]]


def read_rooms() -> Rooms:
    """room -> the rooms it may include, in the order of the file."""
    text = re.sub(r"#.*", "", (ROOT / "cmake" / "room_list.cmake").read_text())
    rooms: Rooms = {}
    for call in re.findall(r"^\s*room\(([^)]*)\)", text, re.MULTILINE):
        name, *words = call.split()
        uses: list[str] = []
        section = ""
        for word in words:
            if word in ("USES", "LINKS", "TEST_LINKS"):
                section = word
            elif section == "USES":
                uses.append(word)
        rooms[name] = uses
    return rooms


def sources(folder: str) -> list[pathlib.Path]:
    """Every C++ file below a folder of the repository."""
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_SUFFIXES)


def room_list_findings(rooms: Rooms) -> list[str]:
    findings = []
    above: set[str] = set()
    for name, uses in rooms.items():
        findings += [
            f"cmake/room_list.cmake: {name} uses {used}, which is not above it" for used in uses if used not in above
        ]
        above.add(name)
        if not (ROOT / "src" / name / "README.md").is_file():
            findings.append(f"src/{name}: has no README.md")
    findings += [
        f"src/{folder.name}: is not in cmake/room_list.cmake"
        for folder in sorted((ROOT / "src").iterdir())
        if folder.is_dir() and folder.name not in rooms
    ]
    return findings


def include_findings(path: pathlib.Path, text: str, rooms: Rooms) -> list[str]:
    """REQUIRES: path is below src/."""
    room = path.relative_to(ROOT / "src").parts[0]
    allowed = {room, *rooms.get(room, [])}
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match is None:
            continue
        included = match[1]
        where = f"{path.relative_to(ROOT)}:{number}"
        if not (ROOT / "src" / included).is_file():
            findings.append(f'{where}: "{included}" is no file below src/')
        elif included.split("/")[0] not in allowed:
            findings.append(f'{where}: room {room} does not use {included.split("/")[0]} ("{included}")')
    return findings


def shape_findings(path: pathlib.Path, text: str) -> list[str]:
    name = path.relative_to(ROOT)
    lines = text.splitlines()
    in_tests = path.stem.endswith("_test") or name.parts[0] == "tests"
    lines_max = TEST_LINES_MAX if in_tests else LINES_MAX
    findings = []
    table = False  # one laid out by hand may be as wide as it is
    for number, line in enumerate(lines, 1):
        if re.match(r"\s*// clang-format (off|on)$", line):
            table = line.endswith("off")
        elif len(line) > COLUMNS_MAX and not table:
            findings.append(f"{name}:{number}: {len(line)} columns, more than {COLUMNS_MAX}")
    if len(lines) > lines_max:
        findings.append(f"{name}: {len(lines)} lines, more than {lines_max}")
    if path.suffix == ".h" and "#pragma once" not in lines:
        findings.append(f"{name}: has no #pragma once")
    if banned := BANNED_WORDS.intersection(path.stem.split("_")):
        findings.append(f"{name}: the name says {', '.join(sorted(banned))}, which says nothing")
    return findings


def main() -> int:
    rooms = read_rooms()
    findings = room_list_findings(rooms)
    checked = 0
    for folder in CHECKED_FOLDERS:
        for path in sources(folder):
            text = path.read_text(encoding="utf-8")
            findings += shape_findings(path, text)
            if folder == "src":
                findings += include_findings(path, text, rooms)
            checked += 1
    print("\n".join(findings))
    print(f"{len(findings)} findings in {checked} files of {len(rooms)} rooms")
    return 1 if findings or not checked or not rooms else 0


if __name__ == "__main__":
    sys.exit(main())
