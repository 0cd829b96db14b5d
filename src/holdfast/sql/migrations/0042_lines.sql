-- What handlers log while their jobs run: the newest lines of each job, numbered by job. own is the number that the
-- sender gave to the line, by which a call that is repeated is recognised.
create table holdfast.line (
  part    smallint    not null,
  id      uuid        not null,
  nth     integer     not null,
  attempt smallint    not null,
  at      timestamptz not null,
  text    text        not null,
  token   uuid        not null,
  own     bigint,
  primary key (part, id, nth)
);
insert into holdfast.chore (name) values ('lines');
