-- The shape of the queue. `part` leads every key: a queue lives in one part (or, fanned out, in
-- a few), so that the same tables can one day be distributed by it.

create sequence holdfast.pos;

-- One hot table of live jobs: queued, or leased (token is not null). What ended is elsewhere.
create table holdfast.job (
  part         smallint    not null,
  id           uuid        not null,
  pos          bigint      default nextval('holdfast.pos'),   -- place in the ready order; null: not claimable now
  lane_seq     bigint,                                         -- place in the lane's order; null: not in it yet
  run_at       timestamptz not null default statement_timestamp(),
  created_at   timestamptz not null default statement_timestamp(),
  -- The lease. In no index and no index predicate, so that claim and touch are HOT updates.
  token        uuid,
  lease_until  timestamptz,
  priority     smallint    not null default 0,
  attempt      smallint    not null default 0,
  max_attempts smallint    not null default 3,
  blocked      boolean     not null default false,             -- waits for another job's end, not for time
  follow       boolean     not null default false,             -- the one follow-up of a running job with the same key
  by_kind      boolean     not null default false,             -- also kept in the ready order of its kind
  held         boolean,                                        -- leased under a limit: counted by it
  queue        text collate "C" not null,
  kind         text collate "C" not null,
  worker       text,
  key          text collate "C",
  lane         text collate "C",
  tenant       text collate "C",
  subject      text collate "C",
  lease_for    interval,
  error        text,
  reason       text,
  headers      jsonb,
  payload      jsonb       not null default '{}',
  primary key (part, id),
  constraint "priority is 0 to 9" check (priority between 0 and 9),
  constraint "a lease has a token, an end and a worker" check (
    (token is null) = (lease_until is null) and (token is null) = (worker is null)),
  constraint "only a job in a lane or a follow-up is blocked" check (
    not blocked or (pos is null and (lane is not null or follow))),
  constraint "only a keyed job follows" check (not follow or key is not null)
) with (
  fillfactor = 45,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
create index job_ready   on holdfast.job (part, queue, priority, pos) where pos is not null;
create index job_by_kind on holdfast.job (part, (queue || E'\n' || kind), priority, pos) where by_kind and pos is not null;
create index job_tenant  on holdfast.job (part, queue, priority, tenant, pos) where tenant is not null and pos is not null;
create index job_due     on holdfast.job (part, queue, run_at) where pos is null and not blocked;
create index job_lane    on holdfast.job (part, queue, lane, lane_seq) where lane_seq is not null;
create index job_held    on holdfast.job (part, queue, lane) where held;
create index job_subject on holdfast.job (subject, part, id) where subject is not null;
create index job_follow  on holdfast.job (part, queue, kind, key) where follow;
create unique index job_key on holdfast.job (part, queue, kind, key, follow) where key is not null;

-- What ended. One shape; `dead` waits for a person, `history` is dropped by day, `archive` is put away.
create table holdfast.ended (
  part         smallint    not null,
  id           uuid        not null,
  state        text        not null check (state in ('dead', 'done', 'cancelled', 'archived')),
  queue        text collate "C" not null,
  kind         text collate "C" not null,
  priority     smallint    not null,
  attempt      smallint    not null,
  max_attempts smallint    not null,
  run_at       timestamptz not null,
  created_at   timestamptz not null,
  ended_at     timestamptz not null,
  worker       text,
  key          text collate "C",
  lane         text collate "C",
  tenant       text collate "C",
  subject      text collate "C",
  lease_for    interval,
  error        text,
  fingerprint  text,
  reason       text,
  headers      jsonb,
  payload      jsonb       not null,
  result       jsonb
) partition by list (state);
create table holdfast.dead    partition of holdfast.ended for values in ('dead');
create table holdfast.archive partition of holdfast.ended for values in ('archived');
create table holdfast.history partition of holdfast.ended for values in ('done', 'cancelled')
  partition by range (ended_at);
create table holdfast.history_rest partition of holdfast.history default;
create index ended_id on holdfast.ended (part, id);
create index dead_group on holdfast.dead (fingerprint, ended_at);
create index dead_ended on holdfast.dead (ended_at);
create index ended_subject on holdfast.ended (subject) where subject is not null;

-- One row for each failed attempt: what went wrong, where, and whose lease it was.
create table holdfast.attempt (
  part        smallint    not null,
  id          uuid        not null,
  attempt     smallint    not null,
  token       uuid        not null,
  outcome     text        not null check (outcome in ('failed', 'expired')),
  worker      text,
  started_at  timestamptz,
  ended_at    timestamptz not null,
  error_kind  text,
  message     text,
  traceback   text,
  fingerprint text
) partition by range (ended_at);
create table holdfast.attempt_rest partition of holdfast.attempt default;
create index attempt_id on holdfast.attempt (part, id);

create table holdfast.queue (
  name            text collate "C" primary key check (length(name) between 1 and 120),
  max_attempts    smallint not null default 3 check (max_attempts >= 1),
  lease           interval not null default '30 seconds' check (lease > '0'),
  keep_done       interval not null default '0' check (keep_done >= '0'),
  payload_limit   integer  not null default 262144 check (payload_limit > 0),
  backoff         interval not null default '1 second' check (backoff >= '0'),
  backoff_cap     interval not null default '1 hour' check (backoff_cap >= '0'),
  lease_limit     integer  check (lease_limit >= 0),
  rate_limit      integer  check (rate_limit >= 0),
  rate_period     interval check (rate_period > '0'),
  fair            boolean  not null default false,
  by_kind         boolean  not null default false,
  lane_limit      integer  not null default 1 check (lane_limit >= 1),
  lane_on_failure text     not null default 'skip' check (lane_on_failure in ('skip', 'retry', 'halt')),
  fanout          smallint not null default 1 check (fanout between 1 and 64),
  paused_at       timestamptz,
  paused_by       text,
  paused_reason   text,
  paused_until    timestamptz,
  check ((rate_limit is null) = (rate_period is null))
);

create index queue_keeps on holdfast.queue (name) where keep_done > '0';

-- A lane's row is its lock: whoever decides about the lane's slots holds it. Settings are optional.
create table holdfast.lane (
  part        smallint not null,
  queue       text collate "C" not null,
  name        text collate "C" not null,
  lane_limit  integer  check (lane_limit >= 1),
  on_failure  text     check (on_failure in ('skip', 'retry', 'halt')),
  rate_limit  integer  check (rate_limit >= 0),
  rate_period interval check (rate_period > '0'),
  halted_by   uuid,
  primary key (part, queue, name),
  check ((rate_limit is null) = (rate_period is null))
);

-- The lock and the turn of a queue whose claims take turns: limited, rated or fair.
create table holdfast.gate (
  part  smallint not null,
  queue text collate "C" not null,
  turn  text collate "C" not null default '',
  primary key (part, queue)
) with (fillfactor = 50);

-- Starts inside the current rate window; a lane of '' is the queue itself.
create table holdfast.rate_use (
  part   smallint    not null,
  queue  text collate "C" not null,
  lane   text collate "C" not null,
  at     timestamptz not null,
  starts integer     not null
);
create index rate_use_window on holdfast.rate_use (part, queue, lane, at);

-- One row for each claim call: which jobs its token was given. It finds expired leases without an
-- index on the hot table, answers "what do I hold", and is the receipt of an ack whose reply was lost.
create table holdfast.lease (
  token      uuid        not null,
  part       smallint    not null,
  queue      text collate "C" not null,
  worker     text        not null,
  claimed_at timestamptz not null,
  length     interval    not null,
  open       boolean     not null default true,   -- may still hold jobs; else a receipt
  until      timestamptz not null,                -- open: nothing expires before; a receipt: kept till then
  ids        uuid[]      not null,
  taken      jsonb                                -- id -> how it left, where that was not an ack
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
alter table holdfast.lease alter column ids set storage external;   -- random bytes do not compress
create index lease_token on holdfast.lease (token);
create index lease_open on holdfast.lease (until) where open;
create index lease_receipt on holdfast.lease (until) where not open;

-- Counter deltas, one row per call, queue and kind; folded into depth by upkeep. Reading adds both.
create table holdfast.tally (
  part      smallint not null,
  queue     text collate "C" not null,
  kind      text collate "C" not null,
  queued    integer  not null default 0,
  leased    integer  not null default 0,
  dead      integer  not null default 0,
  done      integer  not null default 0,
  cancelled integer  not null default 0,
  archived  integer  not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

create table holdfast.total (
  part      smallint not null,
  queue     text collate "C" not null,
  kind      text collate "C" not null,
  queued    bigint   not null default 0,
  leased    bigint   not null default 0,
  dead      bigint   not null default 0,
  done      bigint   not null default 0,
  cancelled bigint   not null default 0,
  archived  bigint   not null default 0,
  primary key (part, queue, kind)
) with (fillfactor = 50);

-- Where a claim may start looking, per priority (index 1 is priority 9). Insert-only, newest wins:
-- reading it costs the same when nothing can be vacuumed.
create table holdfast.floor (
  part   smallint not null,
  queue  text collate "C" not null,
  gen    bigint   generated always as identity,
  floors bigint[] not null,
  primary key (part, queue, gen)
);

-- Idle workers that asked to be woken.
create unlogged table holdfast.waiter (
  queue  text collate "C" not null,
  until  timestamptz not null,
  worker text not null
);
create index waiter_queue on holdfast.waiter (queue, until);

-- Queues whose settings changed while writers that had read the old ones were under way: applied to
-- the rows once more when those writers are gone.
create table holdfast.redo (
  queue text collate "C" not null,
  waits text[]                                    -- null: not looked yet
);

-- What upkeep remembers from one turn to the next: one row.
create table holdfast.pulse (
  only_row     boolean primary key default true check (only_row),
  reaped_at    timestamptz not null default statement_timestamp(),
  timeline     text,
  credit       interval not null default '0',            -- time the database was away, added to leases
  credit_until timestamptz not null default '-infinity',
  probe_pos    bigint not null default 0,                -- floors may rise to here …
  probe_at     timestamptz not null default '-infinity',
  probe_wait   text[] not null default '{}',             -- … once these writers are gone
  passed       text[] not null default '{}',             -- writers that floors passed: may leave strays
  swept_at     timestamptz not null default '-infinity',
  lane_cursor  text[] not null default '{}',            -- how far the sweep of blocked lanes has come
  idle_cursor  text[] not null default '{}'             -- and that of lanes nobody is in
);
insert into holdfast.pulse default values;
