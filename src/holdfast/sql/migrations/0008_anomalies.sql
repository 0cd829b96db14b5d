-- What looks wrong: what was found, how closely to look, who is told, and the numbers over time behind it.

-- One thing that looks or looked wrong. While it lasts there is one row for it, however often it is seen.
create table holdfast.anomaly (
  handle      text collate "C" primary key,           -- what people call it by
  code        text collate "C" not null,              -- the detector
  queue       text collate "C",                       -- null: of the whole database
  subject     text        not null default '',        -- of what: a kind, a job, a lane, a worker, a process
  severity    text        not null,
  title       text        not null,
  detail      text,
  suggestion  text,                                   -- what to type
  evidence    jsonb       not null default '{}',
  since       timestamptz not null,                   -- of the condition, as far as it is known
  raised_at   timestamptz not null,
  seen_at     timestamptz not null,
  times       integer     not null default 1,         -- how often it came back soon after it was over
  resolved_at timestamptz,
  acked_at    timestamptz,
  acked_by    text,
  note        text,
  constraint "severity is info, warning or critical" check (severity in ('info', 'warning', 'critical'))
);
create unique index anomaly_open on holdfast.anomaly (code, coalesce(queue, ''), subject) where resolved_at is null;
create index anomaly_resolved on holdfast.anomaly (resolved_at) where resolved_at is not null;

-- How closely a detector looks; a queue of '' is all of them.
create table holdfast.detector_setting (
  code       text collate "C" not null,
  queue      text collate "C" not null default '',
  enabled    boolean,                                 -- null: as it comes
  thresholds jsonb       not null default '{}',
  changed_at timestamptz not null,
  changed_by text,
  primary key (code, queue)
);

-- When a detector looked last, how long that took, and what was wrong with it.
create table holdfast.detector_run (
  code    text collate "C" primary key,
  run_at  timestamptz not null,
  took    interval,
  problem text
) with (fillfactor = 50);

-- What nobody wants to be told for a while.
create table holdfast.mute (
  code     text collate "C" not null,
  queue    text collate "C" not null default '',      -- '': all
  subject  text        not null default '',
  until    timestamptz,
  muted_at timestamptz not null,
  muted_by text,
  reason   text,
  primary key (code, queue, subject)
);

-- Who is told by HTTP. The secret signs; roles that only look may not read this table.
create table holdfast.webhook (
  name       text collate "C" primary key,
  url        text        not null,
  secret     text        not null,
  severity   text        not null default 'warning',  -- this and worse
  codes      text[],                                  -- null: all
  queues     text[],
  created_at timestamptz not null,
  created_by text,
  constraint "severity is info, warning or critical" check (severity in ('info', 'warning', 'critical')),
  constraint "url is http or https" check (url ~ '^https?://[^\s]+$')
);

-- Counters of a queue as they were; a row is written only when something changed. failed and expired count on.
create table holdfast.reading (
  queue     text collate "C" not null,
  at        timestamptz not null,
  queued    bigint      not null,
  leased    bigint      not null,
  dead      bigint      not null,
  done      bigint      not null,
  cancelled bigint      not null,
  archived  bigint      not null,
  failed    bigint      not null default 0,
  expired   bigint      not null default 0,
  primary key (queue, at)
);

-- Calls that changed many jobs at once, noted when their counter deltas are folded.
create table holdfast.bulk (
  at      timestamptz not null,
  queue   text collate "C" not null,
  sort    text        not null,                       -- enqueued, deleted, moved or cancelled
  calls   bigint      not null,
  jobs    bigint      not null,
  largest bigint      not null                        -- of one call
);
create index bulk_at on holdfast.bulk (at);

insert into holdfast.chore (name) values ('read'), ('detected'), ('tidied');

alter table holdfast.worker
  add column skew    double precision,                -- seconds its clock is ahead
  add column listens boolean;                         -- whether notifications reach it

create index attempt_ended on holdfast.attempt (ended_at);

create type holdfast.finding as (
  queue text, subject text, severity text, since timestamptz, title text, detail text, suggestion text, evidence jsonb);
