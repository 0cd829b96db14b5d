-- Attempts over all lives of a job: a retry counts from 0 again, and those before it are kept here. Null, as nearly
-- always, takes no room in a row; only a retry writes it. Takes a lock on the jobs that writers feel for a moment.
alter table holdfast.job add column attempts_before integer;
alter table holdfast.ended add column attempts_before integer;

-- The same of rows of adopted tables, which have no column for it. Forgotten 90 days after the last retry.
create table holdfast.adopted_lives (
  part     smallint    not null,
  id       uuid        not null,
  attempts integer     not null,
  at       timestamptz not null,
  primary key (part, id)
);
create index adopted_lives_at on holdfast.adopted_lives (at);
