-- The ready order of the jobs that belong to lanes, so that a claim knows where the first of them stands without
-- locking one. Jobs in no lane are not in it and pay nothing for it. Building it reads the table of jobs once, and
-- keeps writers waiting meanwhile. Nothing else is spelt like it, so that no plan takes another index for this one, or
-- this one for another.
create index job_ready_lane on holdfast.job (part, (queue || E'\n'), priority, pos) where pos is not null and lane is not null;

-- Where claims begin to look for expired leases. Made here: who makes it in a turn of upkeep waits for whoever does too.
insert into holdfast.chore (name) values ('leases');
