-- Jobs whose arguments a worker could not read, as while old and new workers run side by side. They are given back;
-- here is by whom, and what was wrong. A row counts while the job still has this attempt and this payload.
create table holdfast.unreadable (
  part    smallint    not null,
  id      uuid        not null,
  queue   text collate "C" not null,
  kind    text collate "C" not null,
  attempt smallint    not null,
  payload text        not null,   -- its md5
  shapes  text[]      not null,   -- the declarations of its kind that could not read it
  problem text        not null,
  since   timestamptz not null,
  at      timestamptz not null,
  times   integer     not null default 1,
  primary key (part, id)
);

-- What a worker takes for each kind: a fingerprint of its declaration.
alter table holdfast.worker add column shapes jsonb;
insert into holdfast.chore (name) values ('unreadable');
