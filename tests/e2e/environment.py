"""Where the environment of scripts/bootstrap_e2e.sh is, and how a script gets to run inside it."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "tests" / "conformance"
DIFFERENTIAL = ROOT / "tests" / "differential"


def continue_inside() -> None:
    """Run the calling script again with the environment's interpreter, unless it already is.

    The modules of the other test folders become importable.
    """
    folder = Path(os.environ.get("LARDER_E2E_VENV", ROOT / "build" / "e2e-venv"))
    python = folder / "bin" / "python"
    if not python.exists():
        sys.exit(f"{python} is missing: run scripts/bootstrap_e2e.sh first")
    if Path(sys.prefix).resolve() != folder.resolve():
        os.execv(python, [str(python), *sys.argv])
    sys.path += [str(CONFORMANCE), str(DIFFERENTIAL)]
