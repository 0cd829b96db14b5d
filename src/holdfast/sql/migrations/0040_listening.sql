-- One row while somebody may wait for the end of a job: every ack asks this, and would otherwise walk over what is left
-- of all who have waited since the oldest open transaction began.
create unlogged table holdfast.listening (
  one boolean primary key default true check (one)
);
insert into holdfast.chore (name) values ('listening');
