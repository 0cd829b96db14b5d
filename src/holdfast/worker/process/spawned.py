"""Child processes, which die with this one and report how they died."""

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from types import FrameType, TracebackType
from typing import Any, Self

from holdfast.errors import Misuse

SPAWN = multiprocessing.get_context("spawn")
STOPS = (signal.SIGINT, signal.SIGTERM)
# A worker that has not exited so long after its grace is killed.
KILL_AFTER = 20.0


def refuse_off_unix(what: str) -> None:
    """Refuse what needs processes that this one can end with all that they started."""
    if not hasattr(os, "killpg"):
        raise Misuse(
            f"{what}: this needs Unix, and does not run on Windows",
            fix="Use async or thread tasks there, and start more workers for more processes.",
        )


class Spawned:
    """A new interpreter that runs one function, in its own process group.

    It has to be started by a thread that lives as long as it does: the kernel kills it when that
    thread ends. `target` calls `belong` before anything else.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        # It would undo what is blocked here, so it should run already.
        resource_tracker.ensure_running()
        # The terminal's Ctrl-C could reach the process before it ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            # Not a daemon: handlers may start processes themselves.
            self._process = SPAWN.Process(target=target, args=(os.getpid(), *args))
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid: int = self._process.pid or 0
        self.parent = os.getpid()
        self.died = _death(self._process)
        self._lock = threading.Lock()
        self._closed = False
        _ALIVE.add(self)

    def kill(self, number: signal.Signals | None = None) -> None:
        """Send a signal, from any thread; SIGKILL, the default, to all that it started as well."""
        number = number or signal.SIGKILL
        with self._lock, suppress(ProcessLookupError):
            # Once reaped, its pid may belong to another process.
            if self._closed:
                return
            if number == signal.SIGKILL:
                with suppress(ProcessLookupError):  # it makes its group when it begins
                    os.killpg(self.pid, number)
            os.kill(self.pid, number)

    def is_dead(self, timeout: float | None = 0.0) -> bool:
        """Wait for its end; returns whether it has ended."""
        return bool(wait([self.died], timeout))

    def close(self) -> int:
        """Wait for its end, clean up, and return its exit code."""
        wait([self.died])
        self.kill()
        with self._lock:
            self._closed = True
            # If two threads wait at once, the kernel reports the end to only one.
            while (code := self._process.exitcode) is None:
                self._process.join(0.01)
            if self.died != self._process.sentinel:
                os.close(self.died)
            self._process.close()
        _ALIVE.discard(self)
        return code


class Signals:
    """SIGTERM and SIGINT to wait for, and a wake-up for other threads."""

    def __init__(self) -> None:
        self.caught: list[int] = []

    def fileno(self) -> int:
        """Return a file that becomes readable on a signal or a wake-up."""
        return self._ears

    def ring(self) -> None:
        """Wake the waiting thread; from any thread."""
        with suppress(BlockingIOError):
            os.write(self._mouth, b"!")

    def hush(self) -> None:
        """Be readable only for what comes next."""
        with suppress(BlockingIOError):
            while os.read(self._ears, 4096):
                pass

    def __enter__(self) -> Self:
        self._ears, self._mouth = os.pipe()
        os.set_blocking(self._ears, False)
        os.set_blocking(self._mouth, False)
        # Only the main thread receives signals.
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._waker = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._catch) for number in STOPS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._listens:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._waker)
        os.close(self._ears)
        os.close(self._mouth)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught.append(number)


def how_it_ended(code: int) -> str:
    """Describe an exit code in words."""
    return f"killed: signal {-code}" if code < 0 else f"exited with status {code}"


def belong(parent: int) -> None:
    """Die with the parent process, and ignore signals of the terminal."""
    with suppress(PermissionError):
        os.setpgrp()
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        # The parent may have died before this call.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_die_with_parent, name="holdfast-lifeline", daemon=True).start()


def ignore_stops() -> None:
    """Ignore stop signals, because the parent decides; child processes are not affected."""
    # Not SIG_IGN, which a program that a handler starts would inherit.
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_heed_stops)
    unblock_stops()


def unblock_stops() -> None:
    """Unblock signals, once their handlers are set."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _heed_stops() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _death(process: Any) -> int:
    # Not the sentinel where there is something better: a fork of the process would hold it open.
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(process.pid)
    sentinel: int = process.sentinel
    return sentinel


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_all() -> None:
    # multiprocessing would wait for them at the end of a program that failed.
    for one in list(_ALIVE):
        if one.parent == os.getpid():
            one.kill()


_ALIVE: "weakref.WeakSet[Spawned]" = weakref.WeakSet()
atexit.register(_kill_all)
