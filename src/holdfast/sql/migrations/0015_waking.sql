-- Wake-ups that open transactions do not use up, and slots that cancelled jobs keep while their handlers run on.

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

-- Who waits: for which kinds, if not for all, and what proves that its listener lives: a lock that the listening
-- session holds. Without one it is believed until its time is up.
alter table holdfast.waiter add column kinds text[], add column ear integer;

-- Who is to be told when a transaction commits: those who wait for a queue, or one worker.
create unlogged table holdfast.bell (
  nth    bigint  generated always as identity primary key,
  queue  text collate "C",
  jobs   integer not null default 1,
  worker text,
  kept   boolean not null default false    -- a prepared transaction may not notify: upkeep does it
);
create index bell_kept on holdfast.bell (nth) where kept;
create function holdfast.ring() returns trigger language plpgsql as $$
begin
  return null;   -- its text is with the other functions
end
$$;
create constraint trigger ring after insert on holdfast.bell
  deferrable initially deferred for each row execute function holdfast.ring();
