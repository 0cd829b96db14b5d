-- Shapes: what a queue is that nobody has set up. Each stands here once.

-- unset_queue: a queue of which nobody has set anything: the defaults. Columns of holdfast.queue have the same, for
-- who inserts by hand; a row of a queue that was set up keeps what it had when a default changes.
create or replace function holdfast.unset_queue(name text)
returns holdfast.queue
language plpgsql stable
cost 1
as $$
declare
  q holdfast.queue;
begin
  q.name := unset_queue.name;
  q.max_attempts := 3;
  q.lease := '30 seconds';
  q.keep_done := '0';
  q.payload_limit := 262144;
  q.backoff := '1 second';
  q.backoff_cap := '1 hour';
  q.fair := false;
  q.by_kind := false;
  q.lane_limit := 1;
  q.lane_on_failure := 'skip';
  q.fanout := 1;
  q.activity := 'failures';
  q.keep_activity := '7 days';
  return q;
end
$$;

-- settings_of: what is set for a queue, or the defaults.
create or replace function holdfast.settings_of(queue text)
returns holdfast.queue
language plpgsql stable
as $$
declare
  q holdfast.queue;
begin
  select x.* into q from holdfast.queue x where x.name = settings_of.queue;
  return case when found then q else holdfast.unset_queue(queue) end;
end
$$;

-- fanout_of: over how many parts a queue is spread.
create or replace function holdfast.fanout_of(queue text)
returns integer
language sql stable
as $$ select (holdfast.settings_of(queue)).fanout $$;
