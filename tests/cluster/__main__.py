"""`python -m tests.cluster failover [--sync] [--break host|freeze|postgres|switchover|agent] …`.

It needs etcd (Debian: etcd-server) and PyPI, from which it takes Patroni, once. A run takes about a
minute; one line of JSON for each, and what they come to at the end.
"""

import argparse
import json
import sys
from statistics import median

from tests.cluster import failover
from tests.cluster.servers import MissingError


def main() -> int:
    """Break the leader of a Patroni cluster while jobs run, and count what becomes of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    over = commands.add_parser("failover", help="break the leader while jobs run")
    over.add_argument("--sync", action="store_true", help="with a synchronous standby")
    over.add_argument("--break", dest="breaks", choices=failover.BREAKS, default="host")
    over.add_argument("--lag", type=float, default=0.0, help="seconds the standby is behind")
    over.add_argument("--runs", type=int, default=1)
    over.add_argument("--ttl", type=int, default=30, help="Patroni's; 30 is its own default")
    over.add_argument("--loop-wait", type=int, default=10)
    over.add_argument("--retry-timeout", type=int, default=10)
    asked = vars(parser.parse_args())
    asked.pop("command")
    times = asked.pop("runs")
    try:
        runs = [_run(failover.Plan(**asked)) for _ in range(times)]
    except MissingError as error:
        print(f"tests.cluster: {error}", file=sys.stderr)
        return 2
    _tell(runs)
    return int(any(getattr(run, name) for run in runs for name in _wrong(sync=asked["sync"])))


def _wrong(*, sync: bool) -> tuple[str, ...]:
    """Return what no run may count.

    A cluster whose standby is asynchronous may lose what it has confirmed, and with it what a
    handler did: that is no failure.
    """
    always = ("effects_twice", "dead", "producer_errors")
    return (*always, "lost", "effects_missing", "run_again") if sync else always


def _run(plan: failover.Plan) -> failover.Counted:
    counted = failover.run(plan)
    print(json.dumps(counted.as_dict()), flush=True)
    return counted


def _tell(runs: list[failover.Counted]) -> None:
    print(f"\n{runs[0].plan}, {len(runs)} runs")
    for name in ("confirmed", "in_flight", "lost", "effects_missing", "effects_twice"):
        print(f"  {name:18}{sum(getattr(run, name) for run in runs):8}")
    for name in ("run_again", "rolled_back", "producer_errors", "dead"):
        print(f"  {name:18}{sum(getattr(run, name) for run in runs):8}")
    for name in ("promoted_s", "works_again_s", "slowest_enqueue_s"):
        values = sorted(getattr(run, name) for run in runs)
        print(f"  {name:18}{median(values):8} (up to {values[-1]})")


if __name__ == "__main__":
    sys.exit(main())
