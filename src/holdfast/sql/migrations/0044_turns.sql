-- What takes turns locks something that nobody else may lock. Advisory locks are everybody's: any role that connects
-- could take them, and have a release or upkeep wait for ever.

-- turn: a row for each thing that one at a time does.
create table holdfast.turn (name text primary key);
insert into holdfast.turn
values ('activity'), ('archive'), ('detect'), ('failing'), ('fold'), ('fold dead'), ('grants'), ('recount'), ('sample'),
  ('turn pages');

-- releases, listening_now: locked as a whole, by many at once or by one alone. They have no rows.
create table holdfast.releases ();
create table holdfast.listening_now ();
