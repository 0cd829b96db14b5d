-- When a job is not worth starting any more. Null, as nearly always, takes no room in a row. Takes a lock on the jobs
-- that writers feel for a moment.
alter table holdfast.job add column expires_at timestamptz;
alter table holdfast.ended add column expires_at timestamptz;

-- When upkeep looks at jobs that expire: at that time, or before it, to see whether they are still there. Not an index
-- of jobs: every statement that writes a job would open it, which took 4 to 8 percent of the CPU of an enqueue and of
-- a claim.
create table holdfast.expiry (
  look_at  timestamptz not null,
  part     smallint    not null,
  id       uuid        not null,
  noted_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index expiry_look_at on holdfast.expiry (look_at);
insert into holdfast.chore (name) values ('expired');
