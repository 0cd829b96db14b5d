-- Workflows: jobs that belong together, under a name. The table of jobs does not change: a job of a workflow has a link,
-- and is found by it. A job that is in no workflow pays nothing.
create table holdfast.workflow (
  id         uuid        primary key,
  name       text collate "C" not null,
  key        text collate "C",                      -- one live workflow of a name can have it
  parent     uuid,                                  -- the link of the job that it goes with
  created_at timestamptz not null,
  created_by text,
  deadline   timestamptz,                           -- what is not done by then is cancelled
  stopped_at timestamptz,                           -- it was cancelled: nothing can be added
  reason     text,
  ended_at   timestamptz,                           -- null: it lives, or nobody has looked since its last job ended
  state      text,                                  -- how it ended, and …
  jobs       jsonb                                  -- … with how many jobs of each state
);
create unique index workflow_key on holdfast.workflow (name, key) where key is not null and ended_at is null;
create index workflow_name on holdfast.workflow (name, id);
create index workflow_live on holdfast.workflow (id) where ended_at is null;
create index workflow_ended on holdfast.workflow (ended_at) where ended_at is not null;
create index workflow_deadline on holdfast.workflow (deadline)
  where deadline is not null and ended_at is null and stopped_at is null;
create index workflow_parent on holdfast.workflow (parent) where parent is not null;

-- The jobs of workflows, by their links. In no index is what the end of a job writes.
create table holdfast.member (
  part       smallint    not null,
  id         uuid        not null,                  -- its link
  workflow   uuid        not null,
  nth        bigint      generated always as identity,
  queue      text collate "C" not null,
  kind       text collate "C" not null,
  fold       bigint      not null,                  -- equal for jobs of one kind and queue that follow the same folds
  after      bigint[],                              -- the folds that it waits for
  if_failed  text,
  parent     uuid,                                  -- the link of the job that it goes with
  created_at timestamptz not null,
  began_at   timestamptz,                           -- of its last attempt, if it is done
  ended_at   timestamptz,
  state      text,                                  -- how it ended; null: it has not
  primary key (part, id)
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_vacuum_cost_delay = 0);
create index member_workflow on holdfast.member (workflow, nth);
create index member_parent on holdfast.member (parent) where parent is not null;
insert into holdfast.chore (name) values ('workflows');
