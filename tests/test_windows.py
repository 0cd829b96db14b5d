"""What runs on Windows: everything but the embedded server and handlers in processes.

There is no Windows here. A new interpreter in which all is hidden that Python has only on Unix
imports the package, enqueues, and runs a worker.
"""

import subprocess
import sys

WITHOUT_UNIX = """
import asyncio, os, signal, socket, sys, threading

MODULES = (
    "fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "readline", "curses", "uvloop"
)
NAMES = {
    os: ("fork", "forkpty", "register_at_fork", "geteuid", "getuid", "getgid", "getegid", "setuid",
         "setgid", "setsid", "setpgid", "killpg", "getpgid", "chown", "fchmod", "uname",
         "getloadavg", "sched_getaffinity", "mkfifo", "nice", "wait3", "WNOHANG"),
    signal: ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGQUIT",
             "SIGALRM", "SIGPIPE", "SIGWINCH", "pthread_sigmask", "sigwait", "setitimer"),
    socket: ("AF_UNIX", "SO_REUSEPORT"),
}

import concurrent.futures, multiprocessing.connection, multiprocessing.resource_tracker
import psycopg, subprocess, tempfile  # they find out themselves where they run


# Windows has it, of other sockets.
pair, family = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda: pair(family)


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
for name in MODULES:
    sys.modules.pop(name, None)
for module, names in NAMES.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

import importlib, pkgutil
import holdfast, holdfast.cli, holdfast.client, holdfast.upkeep, holdfast.watch, holdfast.worker
from holdfast import App
from holdfast.errors import EmbeddedUnavailable, Misuse
from holdfast.worker import Worker, fleet

for name in holdfast.__all__:
    getattr(holdfast, name)
for package in (holdfast.cli, holdfast.client, holdfast.upkeep, holdfast.watch, holdfast.worker):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
print("imported")

app = App(sys.argv[1])


@app.task
def threaded(n: int) -> None:
    print("threaded", n)


@app.task
async def awaited(n: int) -> None:
    print("awaited", n)


threaded.enqueue(1)
awaited.enqueue(2)
Worker(app, until_idle=True, concurrency=1).run()


@app.task(process=True)
def apart() -> None: ...


for refused in (lambda: Worker(app), lambda: fleet.plan(App(sys.argv[1]), processes=2),
                lambda: fleet.run(App(sys.argv[1]), recycle_jobs=9, recycle_rss=2**30),
                lambda: fleet.run(App(sys.argv[1]), recycle_rss=2**30),
                lambda: holdfast.embedded.start(temporary=True)):
    try:
        refused()
    except (Misuse, EmbeddedUnavailable) as error:
        print(error.what)
holdfast.cli.main(["--url", sys.argv[1], "top"], standalone_mode=False)
"""


def test_without_what_only_unix_has_it_is_imported_enqueues_and_works(database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX, database],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    imported, *lines = ran.stdout.splitlines()
    worked, (apart, processes, both, rss, embedded, top, *_) = lines[:2], lines[2:]
    assert imported == "imported"
    assert sorted(worked) == ["awaited 2", "threaded 1"]
    assert apart == "task 'apart' has process=True: this needs Unix, and does not run on Windows"
    assert processes.startswith("processes=2: this needs Unix")
    assert both.startswith("recycle_jobs=9, recycle_rss=1073741824: this needs Unix")
    assert rss.startswith("recycle_rss=1073741824: this needs Unix")
    assert "does not run on this system" in embedded
    assert "0 waiting   0 leased" in top
