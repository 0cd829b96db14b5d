-- What a job that waits for an event takes as its payload, as a JSON schema: a page can make a form of it.
alter table holdfast.step add column schema jsonb;
