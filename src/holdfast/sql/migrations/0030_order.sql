-- Order between jobs: a job may wait until others have ended. A job that is part of nothing has null in all of these
-- columns, which takes no room in its row. None of them is in an index: every statement that writes jobs would pay for
-- one. Takes a lock on the jobs that writers feel for a moment.
alter table holdfast.job
  add column waits smallint,                            -- how much it still waits for; null: for nothing
  add column link uuid,                                 -- the id under which holdfast.link knows it, in either role
  add column takes jsonb;                               -- fields of its payload that are results of others
alter table holdfast.ended
  add column link uuid,
  add column takes jsonb;

-- Who waits for whom: one row for each pair. Both are known by the ids that they were stored under, whatever became
-- of them. In no index is what the end of a job writes.
create table holdfast.link (
  part      smallint not null,                          -- of the job that is waited for
  parent    uuid     not null,
  follower  uuid     not null,
  nth       integer  not null,                          -- which of those that its follower waits for
  leaf      smallint,                                   -- the countdown that counts it; null: the follower itself
  if_failed text     not null,                          -- wait, cancel, run
  state     text,                                       -- how it ended; null: it has not
  counted   boolean  not null default false,            -- it is no longer waited for
  stopped   boolean  not null default false,            -- its follower was cancelled because of it
  result    jsonb,
  primary key (part, parent, follower, nth)
) with (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_vacuum_cost_delay = 0);
create index link_follower on holdfast.link (follower, nth);

-- A follower of many counts them in a few rows, so that those who end them seldom wait for one another.
create table holdfast.countdown (
  part     smallint not null,                           -- of the follower
  follower uuid     not null,
  leaf     smallint not null,
  jobs     integer  not null,
  primary key (part, follower, leaf)
) with (fillfactor = 30);
insert into holdfast.chore (name) values ('links');
