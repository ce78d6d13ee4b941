"""Where the environment of scripts/bootstrap_e2e.sh is, and how a script gets to run inside it."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "tests" / "conformance"
DIFFERENTIAL = ROOT / "tests" / "differential"
# What scripts/bootstrap_e2e.sh installs; scripts/bootstrap_clients.sh puts others into folders.
INSTALLED_CLIENT = "0.5.2"


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


def use_client(release: str) -> None:
    """Make every process started from here on run LMCache of that release."""
    if release == INSTALLED_CLIENT:
        return
    clients = Path(os.environ.get("LARDER_CLIENTS", ROOT / "build" / "clients"))
    folder = clients / release
    if not (folder / "lmcache").is_dir():
        sys.exit(
            f"{folder} is missing: run scripts/bootstrap_clients.sh {sys.executable} {release}"
        )
    os.environ["PYTHONPATH"] = str(folder)
