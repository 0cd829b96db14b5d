-- Adopted tables at arm's length: what is remembered of their shape, and rows that cannot be written.

alter table holdfast.adopted add column relid oid;     -- the table, whatever it is called by now
alter table holdfast.adopted add column shape jsonb;   -- of each column that is used: its number and type when the code was generated

-- Rows of adopted tables that refused a change: jobs that are dead until somebody mends the row or its table.
create table holdfast.adopted_fault (
  part    smallint    not null,
  id      uuid        not null,
  kind    text collate "C" not null,
  state   text        not null,      -- what the row itself says; counted as dead instead
  verb    text        not null,      -- what was to be done
  code    text        not null,      -- SQLSTATE
  message text        not null,
  at      timestamptz not null,
  times   integer     not null default 1,
  primary key (part, id)
);

-- A row as what is generated for its table tells it.
create type holdfast_adopted.job_row as (
  id uuid, token uuid, kind text, state text, priority smallint, attempt smallint, max_attempts smallint,
  run_at timestamptz, created_at timestamptz, lease_until timestamptz, worker text, lane text, tenant text,
  subject text, payload jsonb, error text, reason text, ended_at timestamptz
);
