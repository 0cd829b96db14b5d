-- Whether somebody may wait for the end of a job is now a number: reading it takes no statement of every ack.
drop table holdfast.listening;
create sequence holdfast.listening;
-- Who waits already has asked the version before.
select setval('holdfast.listening', 1) where exists (select from holdfast.awaited);
