-- The node of a Citus cluster on which a queue lives; null: this one. The lock lasts no longer than the statement, and
-- the table has one row for each queue.
alter table holdfast.queue add column node integer;
