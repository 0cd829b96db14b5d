-- Callers that wait for the end of a job, and are notified of it.
create unlogged table holdfast.awaited (
  part   smallint    not null,
  id     uuid        not null,
  waiter text        not null,
  until  timestamptz not null,
  primary key (part, id, waiter)
);
create index awaited_until on holdfast.awaited (until);
alter table holdfast.bell add column ended text;        -- a job that has ended, and who waits for that
