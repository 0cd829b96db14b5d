"""Generated from aio/nouns.py by tools/generate_sync_client.py: edit that."""

from functools import cached_property

from holdfast.client.sync.activity import Activity
from holdfast.client.sync.anomalies import Anomalies, Detectors
from holdfast.client.sync.dead import Dead
from holdfast.client.sync.drain import Drain
from holdfast.client.sync.jobs import Jobs
from holdfast.client.sync.kinds import Kinds
from holdfast.client.sync.lanes import Lanes
from holdfast.client.sync.operations import Operations
from holdfast.client.sync.pool import Bound, Pool
from holdfast.client.sync.queues import Queues
from holdfast.client.sync.replies import Replies
from holdfast.client.sync.schedules import Schedules
from holdfast.client.sync.steps import Steps
from holdfast.client.sync.strikes import Strikes
from holdfast.client.sync.together import Together
from holdfast.client.sync.tokens import Tokens
from holdfast.client.sync.upkeep import Upkeep
from holdfast.client.sync.webhooks import Webhooks
from holdfast.client.sync.workers import Workers
from holdfast.client.sync.workflows import Workflows


class Nouns:
    """What a client has by noun; each calls over the client's own connections."""

    _door: Pool | Bound

    @cached_property
    def jobs(self) -> Jobs:
        """Find and change jobs: get, list, search, retry, cancel, edit …"""
        return Jobs(self._door)

    @cached_property
    def dead(self) -> Dead:
        """Dead jobs by how they failed."""
        return Dead(self._door)

    @cached_property
    def queues(self) -> Queues:
        """Queues: list, set, pause, resume, explain, forecast."""
        return Queues(self._door)

    @cached_property
    def lanes(self) -> Lanes:
        """Lanes: list, set, release, explain."""
        return Lanes(self._door)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules: list, declare, set, run, pause, resume, delete."""
        return Schedules(self._door)

    @cached_property
    def kinds(self) -> Kinds:
        """What workers declare about the kinds they handle."""
        return Kinds(self._door)

    @cached_property
    def workers(self) -> Workers:
        """Workers: list, stop."""
        return Workers(self._door)

    @cached_property
    def steps(self) -> Steps:
        """Steps of jobs: list, and what handlers use to store them."""
        return Steps(self._door)

    @cached_property
    def replies(self) -> Replies:
        """Links by which somebody without an account answers a wait: link, asked, send, revoke."""
        return Replies(self._door)

    @cached_property
    def workflows(self) -> Workflows:
        """Workflows: start, list, get, groups, jobs."""
        return Workflows(self._door)

    @cached_property
    def drain(self) -> Drain:
        """What workers use to settle and claim in bulk."""
        return Drain(self._door)

    @cached_property
    def together(self) -> Together:
        """What servers use to act for several callers at once."""
        return Together(self._door)

    @cached_property
    def operations(self) -> Operations:
        """One verb for many jobs: preview, start, cancel, undo."""
        return Operations(self._door)

    @cached_property
    def activity(self) -> Activity:
        """Events, and numbers over time."""
        return Activity(self._door)

    @cached_property
    def strikes(self) -> Strikes:
        """Rules that keep jobs from running: list, add, lift."""
        return Strikes(self._door)

    @cached_property
    def anomalies(self) -> Anomalies:
        """Detected problems: list, ack, mute."""
        return Anomalies(self._door)

    @cached_property
    def detectors(self) -> Detectors:
        """What detects anomalies: list, set, run, report."""
        return Detectors(self._door)

    @cached_property
    def webhooks(self) -> Webhooks:
        """Where anomalies are sent by HTTP: list, set, delete."""
        return Webhooks(self._door)

    @cached_property
    def tokens(self) -> Tokens:
        """Secrets with which programs and users call the server: list, create, revoke."""
        return Tokens(self._door)

    @cached_property
    def upkeep(self) -> Upkeep:
        """Regular maintenance by workers and servers: run, reap, promote …"""
        return Upkeep(self._door)
