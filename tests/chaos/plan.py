"""A plan of faults as data: drawn from a seed or read from JSON, and played by one runner."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tests.chaos.fleet import Worker
from tests.chaos.proxy import Proxy
from tests.chaos.stage import Stage

# What may happen, and how long it may last.
FAULTS = {
    "kill": (0.0, 0.0),
    "terminate": (0.0, 0.0),
    "freeze": (0.5, 6.0),
    "restart fast": (0.0, 4.0),
    "restart immediate": (0.0, 4.0),
    "restart kill": (0.0, 2.0),
    "end backends": (1.0, 4.0),
    "read-only": (1.0, 4.0),
    "full": (1.0, 4.0),
    "cut": (0.0, 0.0),
    "dark": (1.0, 6.0),
}


@dataclass(frozen=True)
class Step:
    """One fault: when it begins, how long it lasts, and which worker it meets."""

    at: float
    do: str
    seconds: float
    who: int


def draw(rng: random.Random, seconds: float, every: float) -> list[Step]:
    """Return a random plan of so many seconds, with a fault every so often."""
    plan = []
    at = rng.uniform(0, every)
    while at < seconds:
        do = rng.choice(sorted(FAULTS))
        lasts = rng.uniform(*FAULTS[do])
        plan.append(Step(round(at, 2), do, round(lasts, 2), rng.randrange(100)))
        at += lasts + rng.uniform(0, 2 * every)
    return plan


def written(plan: Sequence[Step]) -> str:
    """Return a plan as JSON, to be played again."""
    return json.dumps([asdict(step) for step in plan])


def read(text: str) -> list[Step]:
    """Return the plan that was written."""
    return [Step(**step) for step in json.loads(text)]


class Player:
    """Plays a plan on workers behind a proxy; who falls is replaced, as a supervisor does."""

    def __init__(self, stage: Stage, proxy: Proxy, url: str, workers: int) -> None:
        self._stage = stage
        self._proxy = proxy
        self._start: Callable[[], Worker] = lambda: stage.start(8, "--grace", "1s", url=url)
        self._workers = [self._start() for _ in range(workers)]

    def play(self, plan: Sequence[Step]) -> None:
        """Do what the plan says, one fault after the other."""
        started = time.time()
        for step in plan:
            time.sleep(max(0.0, started + step.at - time.time()))
            self._do(step)
            self._replace()

    def _do(self, step: Step) -> None:
        server, who = self._stage.server, step.who % len(self._workers)
        match step.do.split():
            case ["kill"]:
                self._workers[who].kill()
            case ["terminate"]:
                self._workers[who].terminate()
            case ["freeze"]:
                self._workers[who].stop()
                time.sleep(step.seconds)
                self._workers[who].cont()
            case ["restart", how]:
                server.stop(how)
                time.sleep(step.seconds)
                server.start()
            case ["end", "backends"]:
                rng = self._stage.rng
                with server.ending_backends(self._stage.url, rate=10, rng=rng):
                    time.sleep(step.seconds)
            case ["read-only"]:
                with server.read_only():
                    time.sleep(step.seconds)
            case ["full"]:
                with server.full():
                    self._proxy.cut_all()
                    time.sleep(step.seconds)
            case ["cut"]:
                self._proxy.cut_all()
            case ["dark"]:
                self._proxy.go_dark()
                time.sleep(step.seconds)
                self._proxy.go_dark(False)
            case unknown:
                raise ValueError(unknown)

    def _replace(self) -> None:
        for n, worker in enumerate(self._workers):
            if worker.code is not None:
                self._workers[n] = self._start()
