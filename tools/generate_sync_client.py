"""Generate the synchronous client, src/holdfast/client/sync, from the asynchronous one, aio.

python tools/generate_sync_client.py            write it
python tools/generate_sync_client.py --check    fail if what is written is not what would be
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "holdfast" / "client"
WRITTEN, GENERATED = CLIENT / "aio", CLIENT / "sync"

# Applied in order; each is a whole word, or code that stands by itself.
WORDS = {
    r"async (?=def|with|for)": "",
    r"await ": "",
    r"Async(?=[A-Z])": "",
    r"client\.aio\b": "client.sync",
    r"wait_async\b": "wait",
    r"async_(?=driver_of)": "",
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
    check = "--check" in sys.argv[1:]
    wanted = {source.name: generate(source) for source in sorted(WRITTEN.glob("*.py"))}
    stale = [path.name for path in GENERATED.glob("*.py") if path.name not in wanted]
    for name, text in wanted.items():
        path = GENERATED / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(
            f"stale: {', '.join(stale)}. Run:  python tools/{Path(__file__).name}", file=sys.stderr
        )
    return len(stale) if check else 0


def generate(source: Path) -> str:
    """Return the synchronous text of an asynchronous module."""
    text = source.read_text(encoding="utf-8")
    for word, replacement in WORDS.items():
        text = re.sub(rf"\b{word}", replacement, text)
    docstring = f'"""Generated from aio/{source.name} by tools/{Path(__file__).name}: edit that."""'
    text = docstring + text[text.index('"""', 3) + 3 :]
    for step in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        text = _ruff(step, text)
    return text


def _ruff(step: list[str], text: str) -> str:
    named = ["--stdin-filename", str(GENERATED / "client.py"), "-"]
    command = [sys.executable, "-m", "ruff", *step, *named]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
