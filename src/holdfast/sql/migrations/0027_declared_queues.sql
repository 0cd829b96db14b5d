-- The settings that a program last declared for a queue.
alter table holdfast.queue add column declared jsonb;
