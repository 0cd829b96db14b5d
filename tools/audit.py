"""Look for known holes in the pinned dependencies: `make audit`.

Asks the advisory service of PyPI by pip-audit, in an environment of its own. Where it cannot be
installed or reached, that is said, and the check counts as skipped.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
PIP_AUDIT = "pip-audit==2.9.0"
PATIENCE = 300


def main() -> int:
    """Return 0 if nothing is known, or nothing can be; 1 if something is."""
    with tempfile.TemporaryDirectory() as place:
        python = Path(place) / "bin" / "python"
        venv.create(place, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            made = _run([*install, PIP_AUDIT])
            if made.returncode:
                return _skipped(f"{PIP_AUDIT} cannot be installed: {_last(made.stderr)}")
            options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off"]
            found = _run([python, "-m", "pip_audit", "-r", LOCK, "--format", "json", *options])
        except subprocess.TimeoutExpired:
            return _skipped(f"no answer within {PATIENCE} s")
    try:
        pinned = json.loads(found.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _skipped(f"no advisory service can be reached: {_last(found.stderr)}")
    audited = [one for one in pinned if "vulns" in one]
    if not audited:
        return _skipped(f"the advisory service knows none of {len(pinned)} packages")
    for one in audited:
        for hole in one["vulns"]:
            mended = ", ".join(hole["fix_versions"]) or "no version yet"
            print(f"{one['name']} {one['version']}: {hole['id']}, mended in {mended}")
    wrong = sum(bool(one["vulns"]) for one in audited)
    print(f"audit: {wrong} of {len(audited)} packages have known holes, of {len(pinned)} pinned")
    return int(wrong > 0)


def _run(command: list[str | Path]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def _skipped(why: str) -> int:
    print(f"audit: skipped: {why}")
    return 0


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it did not say why"


if __name__ == "__main__":
    sys.exit(main())
