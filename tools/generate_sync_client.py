"""Generate the synchronous client from the asynchronous one.

python tools/generate_sync_client.py            write it
python tools/generate_sync_client.py --check    fail if what is written is not what would be
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "holdfast" / "client"
FILES = {"_async.py": "_sync.py", "_async_doors.py": "_sync_doors.py"}

# Applied in order; each is a whole word, or code that stands by itself.
WORDS = {
    r"async (?=def|with|for)": "",
    r"await ": "",
    r"Async(?=[A-Z])": "",
    r"_async(?=_doors\b)": "_sync",
    r"wait_async\b": "wait",
    r"asynccontextmanager": "contextmanager",
    r"__a(?=enter__|exit__)": "__",
    r"Awaitable\[(\w+)\]": r"\1",
    r"Awaitable, ": "",
    r"import asyncio": "import time",
    r"asyncio\.sleep": "time.sleep",
    r"between tasks": "between threads",
}


def main() -> int:
    """Write or check every generated file; returns the exit code."""
    stale = []
    for source, target in FILES.items():
        generated = generate(CLIENT / source)
        written = CLIENT / target
        if "--check" not in sys.argv[1:]:
            written.write_text(generated, encoding="utf-8")
        elif not written.exists() or written.read_text(encoding="utf-8") != generated:
            stale.append(target)
    if stale:
        print(f"stale: {', '.join(stale)}. Run:  python {Path(__file__).name}", file=sys.stderr)
    return len(stale)


def generate(source: Path) -> str:
    """Return the synchronous text of an asynchronous module."""
    text = source.read_text(encoding="utf-8")
    for word, replacement in WORDS.items():
        text = re.sub(rf"\b{word}", replacement, text)
    docstring = f'"""Generated from {source.name} by tools/{Path(__file__).name}: edit that."""'
    text = docstring + text[text.index('"""', 3) + 3 :]
    for step in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        text = _ruff(step, text)
    return text


def _ruff(step: list[str], text: str) -> str:
    named = ["--stdin-filename", str(CLIENT / "_sync.py"), "-"]
    command = [sys.executable, "-m", "ruff", *step, *named]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
