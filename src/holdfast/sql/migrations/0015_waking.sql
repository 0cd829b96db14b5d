-- Slots that cancelled jobs keep while their handlers run on.

-- A job that was cancelled while it ran under a limit or in a lane: its slot is taken until its holder has let
-- go, or its lease has ended. The job itself is in the history.
create table holdfast.leaving (
  part     smallint    not null,
  id       uuid        not null,
  token    uuid        not null,
  queue    text collate "C" not null,
  lane     text collate "C",
  lane_seq bigint,
  worker   text        not null,
  until    timestamptz not null,
  primary key (part, id, token)
);
create index leaving_slot on holdfast.leaving (part, queue, lane);
