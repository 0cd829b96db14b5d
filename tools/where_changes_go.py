"""Make common changes in a copy of the tree, see that they work, and count the files of each.

    python tools/where_changes_go.py

A change is a list of edits; what the generators write is not counted. Each has a proof: a program
that runs on the changed copy and fails unless the change has reached every door.
`tests/test_one_place.py` holds the changes to the bars below and runs the first two proofs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tools", "docs/reference", "dashboard/src", "tests/protocol.py", "pyproject.toml")
JOB = "src/holdfast/records/job.py"
SHAPES = "src/holdfast/sql/functions/01_shapes.sql"
CLAIM = "src/holdfast/sql/functions/claim.sql"
VIEWS = "src/holdfast/sql/views.sql"


@dataclass(frozen=True)
class Edit:
    """One edit by hand: `new` in front of `before`, in place of `instead`, or as a new file."""

    file: str
    new: str
    before: str = ""
    instead: str = ""


@dataclass(frozen=True)
class Change:
    """A change of a common sort, how many files it may need, and a program that proves it."""

    what: str
    at_most: int
    edits: Sequence[Edit]
    proof: str

    @property
    def files(self) -> list[str]:
        """The files that somebody has to edit."""
        return sorted({edit.file for edit in self.edits})


def main() -> int:
    """Make each change in a copy of its own; print a table, and fail if one misses its bar."""
    missed = 0
    for change in CHANGES:
        proven = prove(change)
        fine = not proven and len(change.files) <= change.at_most
        missed += not fine
        print(f"{change.what:<22} {len(change.files)} (at most {change.at_most})", end="  ")
        print("met" if fine else f"MISSED {proven}")
        print("".join(f"    {file}\n" for file in change.files), end="")
    return missed


def prove(change: Change) -> str:
    """Make a change in a copy and run its proof; return what went wrong, or nothing."""
    with _copy() as root:
        for edit in change.edits:
            _apply(root, edit)
        for step in (
            ["tools/generate_fields.py"],
            ["tools/generate_contract.py"],
            ["-c", PROLOGUE + change.proof],
        ):
            done = subprocess.run(
                [sys.executable, *step],
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root / "src")},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                return done.stderr
    return ""


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name in COPIED:
            if (ROOT / name).is_dir():
                skipped = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, root / name, ignore=skipped)
            else:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        yield root


def _apply(root: Path, edit: Edit) -> None:
    file = root / edit.file
    old = edit.before or edit.instead
    if not old:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(edit.new)
        return
    text = file.read_text()
    if old not in text:
        raise LookupError(f"{edit.file} has no {old!r}")
    file.write_text(text.replace(old, edit.new + edit.before))


# What every proof begins with: a database with the changed schema.
PROLOGUE = """
from pathlib import Path
from holdfast import Client, HoldfastError, embedded, schema
server = embedded.start(temporary=True)
schema.migrate(server.url)
client = Client(server.url)
"""

FIELD = Change(
    "a field of a job",
    6,
    [
        Edit(
            JOB,
            '    flavour: Annotated[Label | None, says("what it tastes of")] = None\n',
            before="    headers: Annotated[",
        ),
        Edit(
            JOB, "    flavour: str | None\n", before="    headers_json: str | None\n\n    @property"
        ),
        Edit(
            "src/holdfast/sql/migrations/9000_flavour.sql",
            "alter table holdfast.job add flavour text check (length(flavour) between 1 and 500);\n"
            "alter table holdfast.ended add flavour text;\n",
        ),
        Edit(SHAPES, "flavour,", before="headers,subject}'"),
        Edit(
            SHAPES,
            "and holdfast.is_label(item -> 'flavour')\n    ",
            before="and holdfast.is_label(item -> 'subject')",
        ),
        Edit(SHAPES, "flavour,", before="key,subject}'::text[] loop\n    if not coalesce(length("),
        Edit(SHAPES, ", item ->> 'flavour' as flavour", before="\n$$;\n\n-- due_at:"),
        Edit(SHAPES, "flavour = g.flavour, ", before="subject = g.subject, run_at"),
        Edit(SHAPES, ", j.flavour", before="\n$$;\n\n-- job_of_ended:"),
        Edit(SHAPES, ", e.flavour", before="\n$$;\n\n-- check_items:"),
        Edit(VIEWS, ", j.flavour", before="\nfrom holdfast.job j\nunion all"),
        Edit(VIEWS, ", e.flavour", before="\nfrom holdfast.ended e;"),
        Edit(VIEWS, ", null::text", before="\n  from holdfast.adopted_jobs(adopted_rows.part"),
        Edit(CLAIM, ", flavour text", before=")\nlanguage plpgsql security definer"),
        Edit(CLAIM, ", j.flavour", before="\n          ), noted as ("),
        Edit(CLAIM, ", t.flavour", before="\n          from taken t\n          order by"),
        Edit(CLAIM, ", t.flavour", before="\n      from holdfast.claim_adopted("),
        Edit(CLAIM, ", flavour text", before=")\nlanguage sql stable security definer"),
        Edit(CLAIM, ", j.flavour", before="\n  from holdfast.lease l\n  cross join lateral ("),
        Edit("tests/sql/test_flavour.py", "# enqueue, claim, fail, retry: it is still there\n"),
    ],
    """
import json, msgspec
from holdfast.cli.job import job as commands
from holdfast.server.http import answers, inputs
client.enqueue("cake", {}, flavour="sour", max_attempts=1)
[lease] = client.claim("default", worker="w")
assert lease.flavour == "sour", lease
assert client.held([lease.token])[0].flavour == "sour"
client.nack([lease], message="burnt")
assert client.jobs.get(lease.id).flavour == "sour"
client.jobs.retry([lease.id])
client.enqueue("cake", {}, flavour="sour", key="one")
client.enqueue("cake", {}, flavour="sweet", key="one", on_conflict="replace")
assert sorted(one.flavour for one in client.jobs.list("kind:cake")) == ["sour", "sweet"]
try:
    client.enqueue("cake", {}, flavour="")
except HoldfastError as refused:
    assert refused.code == "HF202", refused
else:
    raise AssertionError("an empty flavour was stored")
from holdfast import NewJob
client.copy([NewJob(kind="copied", flavour="bitter")])
assert client.jobs.list("kind:copied")[0].flavour == "bitter"
assert msgspec.json.decode(b'{"kind": "a", "flavour": "sour"}', type=inputs.NewJob).flavour
contract = json.loads(Path("src/holdfast/server/openapi.json").read_text())["components"]["schemas"]
assert all("flavour" in contract[name]["properties"] for name in ("NewJob", "Job", "Lease"))
assert "flavour" in Path("dashboard/src/wire.ts").read_text()
assert "--flavour" in Path("docs/reference/cli.md").read_text()
""",
)

CHANGES = [
    FIELD,
    Change(
        "a default",
        1,
        [Edit(SHAPES, "q.lease := '40 seconds'", instead="q.lease := '30 seconds'")],
        """
from datetime import timedelta
from holdfast.records import QueueSettings
assert QueueSettings().lease == timedelta(seconds=40)
client.enqueue("cake", {})
assert client.claim("default", worker="w")[0].length == timedelta(seconds=40)
client.queues.set("slow", limit=1)
assert client.queues.get("slow").lease == timedelta(seconds=40)
assert "40 s" in Path("docs/reference/settings.md").read_text()
""",
    ),
    Change(
        "an error code",
        2,
        [
            Edit(
                "src/holdfast/sql/functions/queues.sql",
                "  if queue = 'cake' then\n"
                "    perform holdfast.refuse('HF299', 'there is no cake', null, 'Bake one.');\n"
                "  end if;\n",
                before="  insert into holdfast.queue select d.* from holdfast.unset_queue(",
            ),
            Edit(
                "docs/reference/errors.md", "## HF299\n\nThere is no cake.\n\n", before="## HF226\n"
            ),
        ],
        """
try:
    client.queues.resume("cake")
except HoldfastError as refused:
    assert (refused.code, refused.fix) == ("HF299", "Bake one."), refused
else:
    raise AssertionError("not refused")
""",
    ),
    Change(
        "a command",
        2,
        [
            Edit(
                "src/holdfast/cli/queue.py",
                '@queue.command(examples=["holdfast queue bake mail"])\n'
                '@click.argument("name", metavar="QUEUE")\n'
                "@pass_session\n"
                "def bake(session: Session, name: str) -> None:\n"
                '    """Bake a queue."""\n'
                '    session.answer({"queue": name}, lambda: f"{name} baked")\n\n\n',
                before='@queue.command(examples=["holdfast queue resume mail"',
            ),
            Edit(
                "docs/reference/cli.md",
                "## holdfast queue bake\n\n```console\n$ holdfast queue bake mail\n```\n\n",
                before="## holdfast queue resume\n",
            ),
        ],
        """
import subprocess, sys
bake = [sys.executable, "-m", "holdfast", "queue", "bake", "mail"]
said = subprocess.run(bake, capture_output=True)
assert said.stdout.strip() == b"mail baked", said
""",
    ),
    Change(
        "a route",
        3,
        [
            Edit(
                "src/holdfast/server/api/look.py",
                "async def oldest(request: Request) -> Answer:\n"
                '    """Tell how old the oldest ready job of a queue is, in seconds."""\n'
                '    found = await request.reads.queues.get(request.part("queue"))\n'
                "    if found is None:\n"
                '        raise UnknownQueue(request.part("queue"))\n'
                "    age = found.oldest and found.oldest.total_seconds()\n"
                '    return Answer({"seconds": age})\n\n\n',
                before="async def job(request: Request)",
            ),
            Edit(
                "src/holdfast/server/http/answers.py",
                "class Oldest(Struct, kw_only=True):\n"
                '    """How old the oldest ready job is."""\n\n'
                "    seconds: float | None\n\n\n",
                before="class StoredJob(Struct",
            ),
            Edit(
                "src/holdfast/server/routes/queues.py",
                "    get(\n"
                '        "/v1/queues/{queue:path}/oldest",\n'
                '        "read",\n'
                "        look.oldest,\n"
                '        id="oldestJob",\n'
                "        tag=QUEUES,\n"
                "        answers=ok(answers.Oldest),\n"
                "    ),\n",
                before='    get(\n        "/v1/queues/{queue:path}/explain"',
            ),
        ],
        """
import json
contract = json.loads(Path("src/holdfast/server/openapi.json").read_text())
assert contract["paths"]["/v1/queues/{queue}/oldest"]["get"]["operationId"] == "oldestJob"
assert "interface Oldest" in Path("dashboard/src/wire.ts").read_text()
""",
    ),
]

if __name__ == "__main__":
    sys.exit(main())
