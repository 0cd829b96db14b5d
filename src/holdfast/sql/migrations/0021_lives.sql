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

-- Ended jobs that are put away by themselves. Found by name: only queues that ask for it are looked at.
alter table holdfast.queue
  add column archive_dead interval,
  add column archive_done interval,
  add constraint "archive_dead is at most 100 years" check (archive_dead between '0' and '100 years'),
  add constraint "archive_done is at most 100 years" check (archive_done between '0' and '100 years'),
  add constraint "archive_done needs keep_done: a job that is deleted when done is not archived" check (
    archive_done is null or keep_done > '0');
create index queue_archives on holdfast.queue (name) where archive_dead is not null or archive_done is not null;
create index queue_archive_done on holdfast.queue (archive_done) where archive_done is not null;
insert into holdfast.chore (name) values ('archived');
