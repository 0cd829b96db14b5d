-- Whose jobs' lives somebody watches. While a row's time is not up, verbs note every event of the queue, as if its
-- activity were `all`; the empty name is every queue. Nobody watches for long without saying so again, so what a
-- server leaves that was killed runs out by itself.
create table holdfast.watched (
  queue text collate "C" primary key,
  since timestamptz not null,    -- watched without a break from then,
  place bigint      not null,    -- when the log had come so far,
  until timestamptz not null
) with (fillfactor = 50);
