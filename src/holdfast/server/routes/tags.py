"""The sections of the contract."""

from holdfast.server.relay.routes import TAG as RELAY_TAG

PRODUCE, CONSUME, JOBS, OPERATIONS = "Produce", "Consume", "Jobs", "Operations"
QUEUES, SCHEDULES, WORKERS, WATCH = "Queues", "Schedules", "Workers", "Watch"
ACCESS, SERVER, WORKFLOWS = "Access", "Server", "Workflows"
TAGS = {
    PRODUCE: "Storing jobs.",
    CONSUME: "Leasing jobs and ending leases.",
    JOBS: "Reading jobs and changing them one by one.",
    OPERATIONS: "Changing many jobs: preview, start, follow, stop.",
    WORKFLOWS: "Jobs that belong together, under a name.",
    QUEUES: "Queues, kinds, lanes, strikes and settings.",
    SCHEDULES: "Jobs at regular times.",
    WORKERS: "The workers that run jobs.",
    WATCH: "Events, anomalies and numbers over time.",
    ACCESS: "Tokens, and signing in.",
    SERVER: "The server itself, and this contract.",
    RELAY_TAG: "The routes of Relay, for the same jobs. They are also below /api.",
}
