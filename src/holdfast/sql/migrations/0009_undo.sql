-- What operations changed, so that they can be undone.

-- One chunk of an operation: its jobs, and what each was before: its state, or its queue if it was moved.
create table holdfast.operation_chunk (
  operation bigint not null,
  nth       bigint generated always as identity,
  ids       uuid[] not null,
  was       text[] not null,
  primary key (operation, nth)
);

alter table holdfast.operation
  add column undoable bigint not null default 0,      -- jobs in its chunks
  drop constraint "verb is retry, cancel, archive, purge or move",
  add constraint "verb is retry, cancel, archive, purge, move or undo"
    check (verb in ('retry', 'cancel', 'archive', 'purge', 'move', 'undo'));
