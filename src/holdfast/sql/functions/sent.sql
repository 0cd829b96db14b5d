-- Events: a transaction sends one, and a job that waits for it goes on.

-- send_event: send an event with a name and a key. The job that has waited longest for it receives it, and is ready
-- when the caller's transaction commits. If none waits, the event is kept for a while, and the first job that waits
-- takes it. everyone: all that wait receive it, and it is not kept.
create or replace function holdfast.send_event(
  name text, key text default null, payload jsonb default null, keep interval default '7 days',
  everyone boolean default false, sender text default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  v_now constant timestamptz := holdfast.clock();
begin
  perform holdfast.check_event(name, key);
  perform holdfast.check_length('keep', keep, '1 year');
  perform holdfast.check_value(format('payload of event %s', name), payload,
    (holdfast.unset_queue(null)).payload_limit)
  where payload is not null;
  -- late until it is handed out for the first time, when the transaction commits: a job that waits then receives it,
  -- however long that took, and however short it is to be kept.
  insert into holdfast.sent (event, key, at, until, everyone, late, sender, payload)
  values (name, coalesce(key, ''), v_now, v_now + coalesce(keep, '7 days'), coalesce(everyone, false), true, sender,
    payload);
  -- As wake does: who has all constraints checked at once would hold the event's lock while its transaction is open.
  set constraints holdfast.ring deferred;
  insert into holdfast.bell (event, key) values (name, coalesce(key, ''));
end
$$;

-- check_event: refuse what cannot be the name or the key of an event.
create or replace function holdfast.check_event(name text, key text)
returns void
language plpgsql
as $$
begin
  perform holdfast.named('event', name);
  if key = '' or length(key) > 500 or octet_length(key) > 1000 then
    perform holdfast.refuse('HF202', format('key of event %s is %s characters and %s bytes long', name, length(key),
      octet_length(key)), null, 'It may have 1 to 500 characters and at most 1000 bytes; leave it out for none.');
  end if;
end
$$;

-- await_event: what has become of an event that a job waits for, or is about to. Outcomes: received, with the payload;
-- timed_out; waiting, until when, if it has waited before; lost. What was received or timed out is stored as a step.
create or replace function holdfast.await_event(
  id uuid, token uuid, step text, event text, key text default null, nth integer default null)
returns table (outcome text, result jsonb, until timestamptz, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_key constant text := coalesce(key, '');
  v_now timestamptz;
  j     holdfast.job;
  s     holdfast.step;
  mail  record;
begin
  perform holdfast.check_event(event, key);
  perform holdfast.named('step', step);
  if holdfast.part_of(id) >= 64 then
    perform holdfast.refuse_adopted_steps(id);
  end if;
  select x.* into j from holdfast.job x
  where x.part = holdfast.part_of(await_event.id) and x.id = await_event.id and x.token = await_event.token
  for update;
  if not found then
    return query
      select 'lost', null::jsonb, null::timestamptz, l.detail
      from holdfast.lost('step', array[id], array[token]) l;
    return;
  end if;
  perform holdfast.lock_events(array[event], array[v_key]);
  v_now := holdfast.clock();
  select x.* into s from holdfast.step x where x.part = j.part and x.id = j.id and x.name = await_event.step;
  if s.ended_at is null then
    delete from holdfast.sent m
    where m.nth = (
      select x.nth from holdfast.sent x
      where x.event = await_event.event and x.key = v_key and x.until > v_now and not x.everyone
      order by x.nth
      limit 1)
    returning m.payload into mail;
    if not found and (s.name is null or s.until > v_now) then
      return query select 'waiting', null::jsonb, s.until, null::text;
      return;
    end if;
    insert into holdfast.step as x (
      part, id, name, kind, nth, attempt, began_at, ended_at, event, key, timed_out, result)
    values (j.part, j.id, step, 'event', coalesce(await_event.nth, 0), j.attempt, v_now, v_now, await_event.event,
      v_key, not found, mail.payload)
    on conflict (part, id, name) do update
    set ended_at = excluded.ended_at, timed_out = excluded.timed_out, result = excluded.result
    returning x.* into s;
    update holdfast.job x set steps = coalesce(x.steps, 0) + 1 where x.part = j.part and x.id = j.id;
  end if;
  return query
    select case when s.timed_out then 'timed_out' else 'received' end, s.result, s.until, null::text;
end
$$;

-- lock_events: those who send an event and those who begin to wait for it take turns, in one order: each sees what the
-- other has stored. It is held for the end of a transaction only, not while the caller's own work goes on.
create or replace function holdfast.lock_events(events text[], keys text[])
returns void
language plpgsql
as $$
begin
  perform pg_advisory_xact_lock(4918, l.number)
  from (
    select distinct hashtext(u.event || E'\n' || u.key) as number
    from unnest(events, keys) u(event, key)
    order by 1
  ) l;
end
$$;

-- ring_event: hand out an event that the transaction has sent, when it commits. The locks of all that it has sent are
-- taken at the first of them.
create or replace function holdfast.ring_event(event text, key text)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  these record;
begin
  select array_agg(b.event) || ring_event.event as events, array_agg(b.key) || ring_event.key as keys into these
  from holdfast.bell b
  where b.event is not null and not b.kept;
  if current_setting('transaction_isolation') <> 'read committed' then
    return;   -- it cannot see who has begun to wait since it began: upkeep does it
  end if;
  perform holdfast.lock_events(these.events, these.keys);
  perform holdfast.hand_out(event, key, holdfast.clock());
end
$$;

-- hand_out: give the events of a name and a key, oldest first, to the jobs that wait for them, those that have waited
-- longest first. The caller holds their lock. Nothing is waited for: a job that somebody is changing at this moment
-- gets its event from upkeep.
create or replace function holdfast.hand_out(event text, key text, at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_given integer := 0;
  v_busy  uuid[] := '{}';
  mail    record;
  waiter  record;
begin
  for mail in
    select m.nth, m.payload, m.everyone, m.at, m.xmin = pg_current_xact_id()::xid as own
    from holdfast.sent m
    where m.event = hand_out.event and m.key = hand_out.key and (m.until > hand_out.at or m.late)
    order by m.nth
    for update skip locked
  loop
    for waiter in
      select s.part, s.id, s.name
      from holdfast.step s
      where s.event = hand_out.event and s.key = hand_out.key and s.ended_at is null and s.id <> all(v_busy)
        -- who has begun to wait since; not asked by the clock, which may have been set back, if it is sent just now
        and (not mail.everyone or mail.own or s.began_at <= mail.at)
      order by s.began_at, s.id
    loop
      if not holdfast.hand_event(waiter.part, waiter.id, waiter.name, mail.payload, at) then
        v_busy := v_busy || waiter.id;
        continue;
      end if;
      v_given := v_given + 1;
      delete from holdfast.sent m where m.nth = mail.nth and not mail.everyone;
      exit when not mail.everyone;
    end loop;
    if mail.everyone then
      delete from holdfast.sent m where m.nth = mail.nth and cardinality(v_busy) = 0;
    end if;
    exit when not found and not mail.everyone;
  end loop;
  update holdfast.sent m set late = v_busy <> '{}'
  where m.event = hand_out.event and m.key = hand_out.key and m.late <> (v_busy <> '{}');
  return v_given;
end
$$;

-- hand_event: store an event as the result of the step that waited for it, and make its job ready. False: somebody is
-- changing the job.
create or replace function holdfast.hand_event(
  part smallint, id uuid, name text, payload jsonb, at timestamptz)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  s holdfast.step;
  j holdfast.job;
begin
  select x.* into j from holdfast.job x
  where x.part = hand_event.part and x.id = hand_event.id
  for update skip locked;
  if not found then
    return false;
  end if;
  update holdfast.step x
  set result = hand_event.payload, ended_at = hand_event.at
  where x.part = hand_event.part and x.id = hand_event.id and x.name = hand_event.name and x.ended_at is null
  returning x.* into s;
  if not found then
    return false;
  end if;
  -- One that fails and backs off meanwhile, or was put off by somebody, is left alone: its next run gets the event.
  if j.token is null and j.pos is null and not j.blocked and j.run_at = s.until then
    update holdfast.job x
    set run_at = hand_event.at, pos = nextval('holdfast.pos'),
        lane_seq = case when x.lane is not null then coalesce(x.lane_seq, nextval('holdfast.pos')) end
    where x.part = j.part and x.id = j.id;
    if holdfast.is_told(j.queue) then
      perform holdfast.note_events(array[
        holdfast.happened('woken', hand_event.at, j.id, j.queue, j.kind, 'queued', j.attempt, null)]);
    end if;
    perform holdfast.wake(array[j.queue], 1);
  end if;
  return true;
end
$$;

-- hand_out_rest: events for jobs that somebody was changing when they were sent; and those that nobody wanted are
-- forgotten. Returns how many were given.
create or replace function holdfast.hand_out_rest(most integer default 200)
returns bigint
language plpgsql
as $$
declare
  v_now   constant timestamptz := holdfast.clock();
  v_given bigint := 0;
  mail    record;
begin
  if not exists (select from holdfast.sent) then
    return 0;
  end if;
  delete from holdfast.sent m
  where m.nth = any(array(
    select x.nth from holdfast.sent x where x.until <= v_now and not x.late order by x.until limit 5000
    for update skip locked));
  for mail in
    select distinct x.event, x.key
    from (select m.event, m.key from holdfast.sent m where m.late order by m.nth limit most) x
    order by x.event, x.key
  loop
    if pg_try_advisory_xact_lock(4918, hashtext(mail.event || E'\n' || mail.key)) then
      v_given := v_given + holdfast.hand_out(mail.event, mail.key, v_now);
    end if;
  end loop;
  return v_given;
end
$$;
