-- What a running job says of itself, and what is known of a kind whose jobs may have left their output.

alter table holdfast.job add column progress jsonb;   -- of the attempt it names; in no index

-- A kind as its workers declare it. done_when: it can tell whether its work is done, and is asked before a
-- job whose worker vanished is run again.
create table holdfast.kind (
  name        text collate "C" primary key check (length(name) between 1 and 200),
  done_when   boolean     not null default false,
  about       jsonb       not null default '{}',
  declared_at timestamptz not null default statement_timestamp()
);

alter table holdfast.lease
  add column outside  boolean not null default false,   -- handed over: waits for an answer from outside
  add column asked_at timestamptz;                      -- since when it holds jobs that reap left to those who can tell
create index lease_asked on holdfast.lease (asked_at) where open and asked_at is not null;
create index kind_asked on holdfast.kind (name) where done_when;

alter table holdfast.tally add column reconciled integer not null default 0;   -- done by recovery, not by an ack
alter table holdfast.total add column reconciled bigint not null default 0;

alter table holdfast.attempt drop constraint attempt_outcome_check;
alter table holdfast.attempt add constraint attempt_outcome_check check (outcome in ('failed', 'expired', 'reconciled'));
