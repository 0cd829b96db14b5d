-- Tables of the application as queues. Their rows stay where they are; ids of parts from 64 on stand for them.

create schema holdfast_adopted;   -- what is generated for each: a view and the verbs

create table holdfast.adopted (
  part       smallint    primary key check (part between 64 and 4095),
  queue      text collate "C" not null check (length(queue) between 1 and 120),
  relation   text        not null,                    -- schema and table, quoted
  spec       jsonb       not null,                    -- what its columns and values mean
  steps      jsonb       not null default '[]',       -- what was done to it: name, do, undo, done
  live       boolean     not null default false,      -- speaks the verbs
  adopted_at timestamptz not null default statement_timestamp(),
  adopted_by text
);

alter table holdfast.queue add column adopted smallint;   -- the part of the table that is this queue

-- What other code did to the rows of an adopted table, and outputs that were not made twice: one row for each
-- statement, folded by the hour.
create table holdfast.adopted_note (
  part   smallint    not null,
  hour   timestamptz not null,
  who    text        not null,
  what   text        not null,
  jobs   bigint      not null,
  sample text,
  folded boolean     not null default false
);
create index adopted_note_part on holdfast.adopted_note (part, hour);
