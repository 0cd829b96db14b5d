-- Durable steps of a job, and the events that jobs wait for. Takes a lock on the jobs that writers feel for a moment.

-- How much the steps of a job have stored, in kB, at least 1 for each; null, as nearly always, takes no room in a row.
-- Whoever ends a job looks for its steps only if this is set.
alter table holdfast.job add column steps integer;
-- What ended keeps its steps in its own row: they are moved, archived and forgotten with it.
alter table holdfast.ended add column steps jsonb;

-- One row for each step that is done, each sleep, and each event that a live job waits for or got.
create table holdfast.step (
  part      smallint    not null,
  id        uuid        not null,
  name      text collate "C" not null,
  kind      text        not null check (kind in ('step', 'sleep', 'event')),
  nth       integer     not null,                 -- which of its handler's steps, from 1; 0: called by something beside it
  attempt   smallint    not null,
  began_at  timestamptz not null,
  ended_at  timestamptz,                          -- of a sleep: when it is over; null: it waits
  until     timestamptz,                          -- how long it sleeps or waits
  event     text collate "C",
  key       text collate "C",                     -- '': without a key
  timed_out boolean     not null default false,
  result    jsonb,
  primary key (part, id, name)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
create index step_waits on holdfast.step (event, key, began_at) where ended_at is null;

-- Events that nobody has received yet.
create table holdfast.sent (
  nth      bigint      generated always as identity primary key,
  event    text collate "C" not null,
  key      text collate "C" not null,
  at       timestamptz not null,
  until    timestamptz not null,                  -- kept till then
  everyone boolean     not null default false,    -- for all who wait now; not kept
  late     boolean     not null default false,    -- could not be handed out when it was sent: upkeep does it
  sender   text,
  payload  jsonb
);
create index sent_event on holdfast.sent (event, key, nth);
create index sent_late on holdfast.sent (nth) where late;
create index sent_until on holdfast.sent (until);

-- An event that a transaction sends is handed out when it commits, by the trigger that wakes workers.
alter table holdfast.bell add column event text collate "C", add column key text collate "C";
