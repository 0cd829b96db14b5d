"""The nouns of a client: `client.jobs`, `client.queues` …, each with the verbs of one thing."""

from functools import cached_property

from holdfast.client.aio.activity import AsyncActivity
from holdfast.client.aio.anomalies import AsyncAnomalies, AsyncDetectors
from holdfast.client.aio.dead import AsyncDead
from holdfast.client.aio.drain import AsyncDrain
from holdfast.client.aio.jobs import AsyncJobs
from holdfast.client.aio.kinds import AsyncKinds
from holdfast.client.aio.lanes import AsyncLanes
from holdfast.client.aio.operations import AsyncOperations
from holdfast.client.aio.pool import AsyncBound, AsyncPool
from holdfast.client.aio.queues import AsyncQueues
from holdfast.client.aio.replies import AsyncReplies
from holdfast.client.aio.schedules import AsyncSchedules
from holdfast.client.aio.steps import AsyncSteps
from holdfast.client.aio.strikes import AsyncStrikes
from holdfast.client.aio.together import AsyncTogether
from holdfast.client.aio.tokens import AsyncTokens
from holdfast.client.aio.upkeep import AsyncUpkeep
from holdfast.client.aio.webhooks import AsyncWebhooks
from holdfast.client.aio.workers import AsyncWorkers
from holdfast.client.aio.workflows import AsyncWorkflows


class AsyncNouns:
    """What a client has by noun; each calls over the client's own connections."""

    _door: AsyncPool | AsyncBound

    @cached_property
    def jobs(self) -> AsyncJobs:
        """Find and change jobs: get, list, search, retry, cancel, edit …"""
        return AsyncJobs(self._door)

    @cached_property
    def dead(self) -> AsyncDead:
        """Dead jobs by how they failed."""
        return AsyncDead(self._door)

    @cached_property
    def queues(self) -> AsyncQueues:
        """Queues: list, set, pause, resume, explain, forecast."""
        return AsyncQueues(self._door)

    @cached_property
    def lanes(self) -> AsyncLanes:
        """Lanes: list, set, release, explain."""
        return AsyncLanes(self._door)

    @cached_property
    def schedules(self) -> AsyncSchedules:
        """Schedules: list, declare, set, run, pause, resume, delete."""
        return AsyncSchedules(self._door)

    @cached_property
    def kinds(self) -> AsyncKinds:
        """What workers declare about the kinds they handle."""
        return AsyncKinds(self._door)

    @cached_property
    def workers(self) -> AsyncWorkers:
        """Workers: list, stop."""
        return AsyncWorkers(self._door)

    @cached_property
    def steps(self) -> AsyncSteps:
        """Steps of jobs: list, and what handlers use to store them."""
        return AsyncSteps(self._door)

    @cached_property
    def replies(self) -> AsyncReplies:
        """Links by which somebody without an account answers a wait: link, asked, send, revoke."""
        return AsyncReplies(self._door)

    @cached_property
    def workflows(self) -> AsyncWorkflows:
        """Workflows: start, list, get, groups, jobs."""
        return AsyncWorkflows(self._door)

    @cached_property
    def drain(self) -> AsyncDrain:
        """What workers use to settle and claim in bulk."""
        return AsyncDrain(self._door)

    @cached_property
    def together(self) -> AsyncTogether:
        """What servers use to act for several callers at once."""
        return AsyncTogether(self._door)

    @cached_property
    def operations(self) -> AsyncOperations:
        """One verb for many jobs: preview, start, cancel, undo."""
        return AsyncOperations(self._door)

    @cached_property
    def activity(self) -> AsyncActivity:
        """Events, and numbers over time."""
        return AsyncActivity(self._door)

    @cached_property
    def strikes(self) -> AsyncStrikes:
        """Rules that keep jobs from running: list, add, lift."""
        return AsyncStrikes(self._door)

    @cached_property
    def anomalies(self) -> AsyncAnomalies:
        """Detected problems: list, ack, mute."""
        return AsyncAnomalies(self._door)

    @cached_property
    def detectors(self) -> AsyncDetectors:
        """What detects anomalies: list, set, run, report."""
        return AsyncDetectors(self._door)

    @cached_property
    def webhooks(self) -> AsyncWebhooks:
        """Where anomalies are sent by HTTP: list, set, delete."""
        return AsyncWebhooks(self._door)

    @cached_property
    def tokens(self) -> AsyncTokens:
        """Secrets with which programs and users call the server: list, create, revoke."""
        return AsyncTokens(self._door)

    @cached_property
    def upkeep(self) -> AsyncUpkeep:
        """Regular maintenance by workers and servers: run, reap, promote …"""
        return AsyncUpkeep(self._door)
