#!/usr/bin/env python3
"""Print the requirements of an installed distribution, less those named on the command line.

Goal: install a wheel with --no-deps (it pins builds we do not want) and then everything else it
needs. Method: read its Requires-Dist lines, drop the optional extras and the excluded names.

Usage: list_requirements.py DISTRIBUTION [EXCLUDED ...]
"""

import re
import sys
from importlib.metadata import requires


def wanted_requirements(distribution: str, excluded: frozenset[str]) -> list[str]:
    """Requirements of `distribution` that belong to no extra and are not excluded by name."""
    wanted: list[str] = []
    for line in requires(distribution) or []:
        if re.search(r"\bextra\s*==", line):
            continue
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if name is None:
            raise ValueError(f"no name in the requirement {line!r}")
        if name.group(0).lower() not in excluded:
            wanted.append(line)
    return wanted


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    excluded = frozenset(name.lower() for name in sys.argv[2:])
    print("\n".join(wanted_requirements(sys.argv[1], excluded)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
