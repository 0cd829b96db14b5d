-- What happened, who did it, how fast it went, and what must not run now.

-- The activity log: one row for each event of a job, or for what was done to none in particular. A ring of
-- days: each has a table of its own, which is truncated, never dropped, when its day is past keeping. So no
-- upkeep ever needs a lock that a writer feels.
create sequence holdfast.event_seq;
create table holdfast.event (
  seq     bigint      not null default nextval('holdfast.event_seq'),
  at      timestamptz not null,
  part    smallint    not null,
  slot    smallint    not null,                       -- the day of `at`, modulo 32
  attempt smallint,
  jobs    integer     not null default 1,             -- how many it speaks of, where that is not one
  job     uuid,
  event   text collate "C" not null,
  state   text collate "C",                           -- of the job since
  queue   text collate "C",
  kind    text collate "C",
  worker  text,
  actor   text,
  reason  text,
  detail  jsonb
) partition by list (slot);
do $$
begin
  for slot in 0 .. 31 loop
    execute format('create table holdfast.event_%s partition of holdfast.event for values in (%s)', lpad(slot::text, 2, '0'), slot);
  end loop;
end
$$;
create index event_order on holdfast.event (seq);
create index event_job on holdfast.event (part, job) where job is not null;

alter table holdfast.queue
  add column activity      text     not null default 'failures',
  add column keep_activity interval not null default '7 days',
  add constraint "activity is off, failures or all" check (activity in ('off', 'failures', 'all')),
  add constraint "activity is kept 1 to 30 days" check (keep_activity between '1 day' and '30 days');
create index queue_told on holdfast.queue (name) where activity = 'all';
create index queue_watched on holdfast.queue (name) where keep_done > '0' or activity = 'all';   -- what an ack asks for

-- Rules by which jobs are not run for a while. A job that a claim met and held back leaves the ready order
-- and names the rule.
create table holdfast.strike (
  number     bigint      generated always as identity primary key,
  mode       text        not null,
  queue      text collate "C",                        -- null: of any
  kind       text collate "C",
  payload    jsonb,                                   -- what the payload must contain
  reason     text,
  actor      text,
  created_at timestamptz not null,
  expires_at timestamptz not null default 'infinity',
  ended_at   timestamptz,                             -- its jobs are back, or on their way
  ended_by   text,
  constraint "mode is hold or skip" check (mode in ('hold', 'skip')),
  constraint "a strike names a queue, a kind or a payload" check (num_nonnulls(queue, kind, payload) > 0)
);
create index strike_open on holdfast.strike (number) where ended_at is null;

-- The check is not proven for rows that are there: none of them can be struck yet.
alter table holdfast.job add column strike bigint;
alter table holdfast.job drop constraint "only a job in a lane or a follow-up is blocked";
alter table holdfast.job add constraint "only a job in a lane, a follow-up or a struck job is blocked" check (
  not blocked or (pos is null and (lane is not null or follow or strike is not null))) not valid;
create index job_struck on holdfast.job (strike, part, id) where strike is not null;

-- Numbers over time, each resolution kept for longer than the finer one before it. Counts are of the time
-- from `at`; queued, leased and dead are averages, oldest is the largest seen. Kind '' is the queue itself.
create table holdfast.sample (
  step     integer     not null,                      -- seconds
  at       timestamptz not null,
  queue    text collate "C" not null,
  kind     text collate "C" not null,
  enqueued bigint      not null default 0,
  done     bigint      not null default 0,
  failed   bigint      not null default 0,
  queued   double precision not null default 0,
  leased   double precision not null default 0,
  dead     double precision not null default 0,
  oldest   double precision not null default 0,       -- seconds
  pickup   bigint[],                                  -- jobs by how long they waited when due: below 1, 2, 4, 8 … ms
  run      bigint[],                                  -- likewise by how long their handlers ran
  primary key (step, at, queue, kind)
) with (fillfactor = 70);

-- What workers measured since they last said so; folded into the samples.
create table holdfast.measure (
  queue  text collate "C" not null,
  kind   text collate "C" not null,
  pickup bigint[],
  run    bigint[]
);

alter table holdfast.tally
  add column enqueued integer not null default 0,
  add column failed   integer not null default 0;
alter table holdfast.total
  add column enqueued bigint not null default 0,
  add column failed   bigint not null default 0;

-- When those who look on did what. Apart from pulse, whose row a claim may hold till its transaction ends;
-- and each of these has a row of its own.
create table holdfast.chore (
  name text        primary key,
  at   timestamptz not null default '-infinity'
);
insert into holdfast.chore (name) values ('sampled'), ('rolled');

-- Of attempts: where they ran, by which release, and what their handlers logged. Of those that ended well
-- only some are kept.
alter table holdfast.attempt
  add column host    text,
  add column version text,
  add column log     text;
alter table holdfast.attempt drop constraint attempt_outcome_check;
alter table holdfast.attempt add constraint attempt_outcome_check
  check (outcome in ('failed', 'expired', 'reconciled', 'done')) not valid;

alter table holdfast.worker
  add column busy_time  double precision not null default 0,   -- seconds its handlers ran, in all
  add column claimed_at timestamptz,
  add column acked_at   timestamptz,
  add column claims     timestamptz[] not null default '{}';   -- when it claimed, the newest first, up to ten
