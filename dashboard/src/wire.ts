// What /v1 says, as openapi.yaml describes it. Ids are strings, times RFC 3339, durations seconds.

export type State = "queued" | "leased" | "done" | "dead" | "cancelled" | "archived";
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface Me {
  user: string;
  via: string;
  scopes: string[];
  queues: string[] | null;
  read_only: boolean;
  name: string;
  color: string;
  version: string;
  mode: "live" | "polling";
  oidc?: string | null;
  features?: string[];
}

export interface Progress {
  done?: number;
  total?: number;
  note?: string;
  at?: string;
  attempt?: number;
}

export interface Job {
  id: string;
  queue: string;
  kind: string;
  state: State;
  priority: number;
  attempt: number;
  total_attempts: number;
  max_attempts: number;
  run_at: string;
  created_at: string;
  lease_until: string | null;
  worker: string | null;
  key: string | null;
  lane: string | null;
  tenant: string | null;
  subject: string | null;
  headers: Record<string, Json> | null;
  payload: Json;
  payload_preview?: string;
  payload_size?: number;
  error: string | null;
  fingerprint: string | null;
  reason: string | null;
  result: Json;
  ended_at: string | null;
  lease: number | null;
  progress: Progress | null;
  explain?: string;
  attempts?: Attempt[];
  events?: Event[];
}

export interface Attempt {
  attempt: number;
  outcome: string;
  worker: string | null;
  started_at: string | null;
  ended_at: string | null;
  error_kind: string | null;
  message: string | null;
  traceback: string | null;
  fingerprint: string | null;
  host: string | null;
  version: string | null;
  log: string | null;
}

export interface JobPage {
  jobs: Job[];
  cursor: string | null;
  count?: number;
  capped?: boolean;
  searched?: number | null;
}

export interface Queue {
  queue: string;
  max_attempts: number;
  lease: number;
  keep_done: number;
  payload_limit: number;
  limit: number | null;
  rate_limit: number | null;
  rate_period: number | null;
  fair: boolean;
  by_kind: boolean;
  lane_limit: number;
  lane_on_failure: "skip" | "retry" | "halt";
  backoff: number;
  backoff_cap: number;
  fanout: number;
  paused_at: string | null;
  paused_by: string | null;
  paused_reason: string | null;
  paused_until: string | null;
  queued: number;
  leased: number;
  dead: number;
  done: number;
  cancelled: number;
  archived: number;
  reconciled: number;
  activity: "off" | "failures" | "all";
  keep_activity: number;
  archive_dead: number | null;
  archive_done: number | null;
  success?: { hour: Rate[]; day: Rate[] };
  enqueued: number;
  failed: number;
  oldest: number | null;
  kinds?: { kind: string; state: State; jobs: number }[];
}

export interface Rate {
  kind: string | null;
  done: number;
  failed: number;
  rate: number;
}

export interface DeadGroup {
  group: string;
  fingerprint: string;
  kind: string;
  queue: string;
  error: string | null;
  jobs: number;
  first_at: string;
  last_at: string;
}

export interface Worker {
  worker: string;
  alive: boolean;
  seen_at: string;
  started_at: string;
  host: string | null;
  pid: number | null;
  version: string | null;
  python: string | null;
  queues: string[];
  kinds: string[];
  slots: number;
  busy: number;
  rss: number | null;
  loop_lag: number | null;
  claimed: number;
  acked: number;
  failed: number;
  lost: number;
  stop_at: string | null;
  stop_by: string | null;
  busy_time: number;
  claimed_at: string | null;
  acked_at: string | null;
  claims: string[];
}

export interface Slot {
  slot: string;
  outcome: "fired" | "skipped" | "duplicate" | "refused" | "run";
  job: string | null;
}

export interface Schedule {
  name: string;
  state: "active" | "paused" | "withdrawn";
  kind: string;
  queue: string;
  cron: string | null;
  every: number | null;
  tz: string;
  missed: "skip" | "once" | "all";
  overlap: "queue" | "skip" | "cancel";
  payload: Json;
  options: Record<string, Json>;
  next_at: string | null;
  last_at: string | null;
  last_job: string | null;
  fired: number;
  skipped: number;
  problem: string | null;
  paused_at: string | null;
  paused_by: string | null;
  paused_reason: string | null;
  owner: string | null;
  withdrawn_at: string | null;
  edited: boolean;
  updated_at: string;
  updated_by: string | null;
  explain?: string;
  next?: string[];
  slots?: Slot[];
}

export interface JsonSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  enum?: Json[];
  const?: Json;
  default?: Json;
  anyOf?: JsonSchema[];
  format?: string;
  minimum?: number;
  maximum?: number;
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
}

export interface Kind {
  kind: string;
  queue?: string | null;
  schema?: JsonSchema | null;
  doc?: string | null;
  declared: boolean;
  workers: string[];
  jobs: Partial<Record<State, number>>;
  max_attempts?: number | null;
}

export type Verb = "retry" | "cancel" | "archive" | "purge" | "move";

export interface Operation {
  id: string;
  state: "previewed" | "running" | "done" | "cancelled" | "failed";
  verb: Verb | "undo";
  filter: string;
  arguments: Record<string, Json> | null;
  most: number | null;
  as_of: string;
  total: number;
  capped: boolean;
  rate: number | null;
  reason: string | null;
  actor: string | null;
  done: number;
  changed: number;
  undoable: number;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  ended_by: string | null;
  problem: string | null;
}

export interface Preview {
  count: number;
  capped: boolean;
  as_of: string;
  sample: string[];
  preview_token: string;
}

export interface Lane {
  queue: string;
  lane: string;
  limit: number;
  on_failure: "skip" | "retry" | "halt";
  rate_limit: number | null;
  rate_period: number | null;
  halted_by: string | null;
  job: string | null;
  worker: string | null;
  lease_until: string | null;
  running: number;
  waiting: number;
  oldest: number | null;
}

export type Metric =
  | "queued" | "leased" | "dead" | "oldest" | "done" | "enqueued" | "failed"
  | "pickup_p50" | "pickup_p95" | "pickup_p99" | "run_p50" | "run_p95" | "run_p99";

export interface Series {
  metric: Metric;
  queue: string | null;
  step: number;
  points: [number, number | null][];
}

export interface Event {
  id: string;
  at: string;
  event: string;
  job: string | null;
  queue: string | null;
  kind: string | null;
  state: State | null;
  attempt: number | null;
  jobs: number;
  worker: string | null;
  actor: string | null;
  reason: string | null;
  detail: Record<string, Json> | null;
}

export interface EventPage {
  events: Event[];
  cursor: string | null;
}

export interface Anomaly {
  id: string;
  code: string;
  severity: "info" | "warning" | "critical";
  queue: string | null;
  subject: string;
  title: string;
  detail: string | null;
  suggestion: string | null;
  evidence: Record<string, Json>;
  since: string;
  raised_at: string;
  seen_at: string;
  times: number;
  resolved_at: string | null;
  acked_at: string | null;
  acked_by: string | null;
  note: string | null;
  muted: boolean;
}

export interface Detector {
  code: string;
  enabled: boolean;
  run_at: string | null;
  problem: string | null;
}

export interface System {
  version: string;
  database: {
    schema: number;
    release: string;
    postgresql: string;
    size: number;
    connections: number;
    max_connections: number;
    oldest_transaction: number | null;
    relations: Relation[];
  };
}

export interface Relation {
  name: string;
  size: number;
  rows: number;
  dead: number;
  vacuumed_at: string | null;
}

export interface Checkup {
  name: string;
  level: "ok" | "warn" | "fail";
  what: string;
  why: string;
  fix: string | null;
}

export interface Token {
  id: string;
  sort: "token" | "ticket" | "session";
  name: string;
  scopes: string[];
  queues: string[] | null;
  created_at: string;
  created_by: string | null;
  expires_at: string | null;
  used_at?: string | null;
  seen_at?: string | null;
  revoked_at?: string | null;
}
