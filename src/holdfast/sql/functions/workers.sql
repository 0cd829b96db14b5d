-- Workers: which are running, which should stop, which one leads. This is only for display and to save work: leases
-- depend on tokens alone.

-- beat: a worker reports that it is alive, with facts about itself; facts it leaves out stay the same. measured is
-- what it measured since the last beat: times by queue and kind, and successful attempts. Returns whether it should
-- stop.
create or replace function holdfast.beat(worker text, facts jsonb default '{}', measured jsonb default null)
returns table (stop boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_known constant text[] := '{host,pid,version,python,started_at,queues,kinds,slots,busy,rss,loop_lag,claimed,acked,'
    'failed,lost,busy_time,claimed_at,acked_at,claims,clock,listens,shapes}';
  v_field text;
  v_said  holdfast.worker;
begin
  perform holdfast.named('worker', worker);
  if facts is null or jsonb_typeof(facts) <> 'object' then
    perform holdfast.refuse('HF221', 'facts must be a JSON object', null, 'For example {"slots": 8, "busy": 2}.');
  end if;
  select k into v_field from jsonb_object_keys(facts) k where not k = any(v_known) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF221', format('fact %L of a worker is unknown', v_field), null,
      'Facts are: ' || array_to_string(v_known, ', ') || '.');
  end if;
  begin
    select f.* into v_said from jsonb_populate_record(null::holdfast.worker, facts) f;
    v_said.skew := extract(epoch from (facts ->> 'clock')::timestamptz - v_now);
  exception when data_exception then
    perform holdfast.refuse('HF221', format('facts %s are not valid for a worker', left(facts::text, 200)), sqlerrm,
      'queues and kinds are arrays of names, started_at and clock are times, listens is true or false, shapes is '
      'an object of a text for each kind, the counts are whole numbers.');
  end;

  return query
    insert into holdfast.worker as w (
      name, seen_at, started_at, host, pid, version, python, queues, kinds, slots, busy, rss, loop_lag,
      claimed, acked, failed, lost, busy_time, claimed_at, acked_at, claims, skew, listens, shapes)
    values (
      beat.worker, v_now, coalesce(v_said.started_at, v_now), v_said.host, v_said.pid, v_said.version, v_said.python,
      coalesce(v_said.queues, '{}'), coalesce(v_said.kinds, '{}'), coalesce(v_said.slots, 0), coalesce(v_said.busy, 0),
      v_said.rss, v_said.loop_lag, coalesce(v_said.claimed, 0), coalesce(v_said.acked, 0), coalesce(v_said.failed, 0),
      coalesce(v_said.lost, 0), coalesce(v_said.busy_time, 0), v_said.claimed_at, v_said.acked_at,
      coalesce(v_said.claims, '{}'), v_said.skew,
      v_said.listens, v_said.shapes)
    on conflict (name) do update
    set seen_at    = v_now,
        started_at = coalesce(v_said.started_at, w.started_at),
        host       = coalesce(v_said.host, w.host),
        pid        = coalesce(v_said.pid, w.pid),
        version    = coalesce(v_said.version, w.version),
        python     = coalesce(v_said.python, w.python),
        queues     = coalesce(v_said.queues, w.queues),
        kinds      = coalesce(v_said.kinds, w.kinds),
        slots      = coalesce(v_said.slots, w.slots),
        busy       = coalesce(v_said.busy, w.busy),
        rss        = coalesce(v_said.rss, w.rss),
        loop_lag   = coalesce(v_said.loop_lag, w.loop_lag),
        claimed    = coalesce(v_said.claimed, w.claimed),
        acked      = coalesce(v_said.acked, w.acked),
        failed     = coalesce(v_said.failed, w.failed),
        lost       = coalesce(v_said.lost, w.lost),
        busy_time  = coalesce(v_said.busy_time, w.busy_time),
        claimed_at = coalesce(v_said.claimed_at, w.claimed_at),
        acked_at   = coalesce(v_said.acked_at, w.acked_at),
        claims     = coalesce(v_said.claims, w.claims),
        skew       = coalesce(v_said.skew, w.skew),
        listens    = coalesce(v_said.listens, w.listens),
        shapes     = coalesce(v_said.shapes, w.shapes)
    returning w.stop_at is not null;
  if jsonb_typeof(v_said.shapes) = 'object' then
    perform holdfast.offer_unread(v_said.shapes);
  end if;
  if measured is not null then
    perform holdfast.take_measures(worker, measured);
  end if;
end
$$;

-- leave: a worker that exits calls this; its leases, if it still has any, do not change. It is also removed from the
-- list of waiting workers.
create or replace function holdfast.leave(worker text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  gone holdfast.worker;
begin
  delete from holdfast.waiter w where w.worker = leave.worker;
  delete from holdfast.worker w where w.name = leave.worker returning w.* into gone;
  if not found then
    return false;
  end if;
  perform holdfast.note('worker_left', null, worker => leave.worker,
    detail => jsonb_build_object('host', gone.host, 'started_at', gone.started_at,
    'claimed', gone.claimed, 'acked', gone.acked, 'failed', gone.failed, 'lost', gone.lost, 'busy_time',
      gone.busy_time));
  return true;
end
$$;

-- stop_worker: request a worker to finish its running jobs and exit; it sees this at its next beat. Returns whether
-- the worker exists.
create or replace function holdfast.stop_worker(worker text, actor text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update holdfast.worker w
  set stop_at = coalesce(w.stop_at, holdfast.now()), stop_by = coalesce(w.stop_by, stop_worker.actor)
  where w.name = stop_worker.worker;
  if not found then
    return false;
  end if;
  perform holdfast.note('worker_stopped', actor, worker => stop_worker.worker);
  set constraints holdfast.ring deferred;   -- as wake does
  insert into holdfast.bell (worker) values (stop_worker.worker);   -- a hint, as for leases: look now
  return true;
end
$$;

-- lead: whether holder is the one that does upkeep, for length from now. This saves work and is not a lock: several
-- may do upkeep at once. If another process is writing the row right now, it does not wait: then the holder in the
-- row leads, or anyone if its time is over.
create or replace function holdfast.lead(holder text, length interval default '5 seconds')
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_leads boolean;
begin
  perform holdfast.named('holder', holder);
  perform holdfast.check_length('length', length, '1 hour');
  update holdfast.pulse p
  set leader = lead.holder, leader_until = v_now + lead.length,
      term = p.term + (p.leader is distinct from lead.holder)::integer
  where p.ctid = any(array(
    select x.ctid
    from holdfast.pulse x
    where x.leader = lead.holder or x.leader_until <= v_now or x.leader_until > v_now + interval '1 hour'
    for update skip locked));
  if found then
    return true;
  end if;
  select coalesce(p.leader = lead.holder, false) or p.leader_until <= v_now into v_leads from holdfast.pulse p;
  return v_leads;
end
$$;

-- tend: upkeep, or some of its steps, if the caller leads; failed has, by step, why the caller could not do it. done
-- is null if another process leads; next_slot is the time until the next slot of a schedule, zero or less if one is
-- due; doubtful, whether jobs wait for a check; operating, whether an operation waits for its next step; detecting,
-- whether detectors are due; delivering, whether anomalies wait to be delivered; empty, whether all steps were done and
-- none of queues has a job that could be claimed now: a claim would have found nothing either.
create or replace function holdfast.tend(holder text, length interval default '5 seconds', steps text[] default null,
  failed jsonb default null, queues text[] default null)
returns table (
  leads boolean, done jsonb, next_slot interval, doubtful boolean, operating boolean, detecting boolean,
    delivering boolean, empty boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  leads := holdfast.lead(holder, length);
  perform holdfast.note_failing(s.name, '', '57014', f.why)
  from jsonb_each_text(failed) f(step, why)
  join holdfast.upkeep_steps() s on s.name = f.step;
  if leads then
    -- Strays are only reported: a node that stands still holds up whoever sends to it, and must not hold up the rest.
    done := holdfast.upkeep(coalesce(steps,
        array(select s.name from holdfast.upkeep_steps() s where s.name <> 'strays' order by s.nth)))
      || case when holdfast.has_strays() then '{"strays": true}' else jsonb '{}' end;
    next_slot := (
      select case when isfinite(s.next_at) then s.next_at - holdfast.now() else '0' end
      from holdfast.schedule s
      where s.paused_at is null and s.withdrawn_at is null and s.next_at < 'infinity'
      order by s.next_at
      limit 1);
  end if;
  doubtful := exists (select from holdfast.lease l where l.open and l.asked_at is not null);
  operating := exists (select from holdfast.operation o where o.state = 'running' and o.next_at <= holdfast.now());
  detecting := leads and exists (
    select from holdfast.chore c
    where c.name = 'detected' and (c.at <= holdfast.now() - interval '10 seconds' or c.at > holdfast.now()));
  delivering := leads and exists (
    select from holdfast.job j
    where j.part = holdfast.queue_part('holdfast.alerts') and j.queue = 'holdfast.alerts' and j.pos is not null
      and j.token is null);
  if queues is not null then
    empty := leads and steps is null and not done ?| '{failed,more}'
      and not exists (select from unnest(queues) q(name) where not holdfast.is_empty(q.name));
  end if;
  return next;
end
$$;

-- is_empty: whether a queue has no job that a claim could take, or let in: none is ready, and none of a lane waits for
-- its turn. Of an adopted table it is not known.
create or replace function holdfast.is_empty(queue text)
returns boolean
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
  v_queue constant holdfast.queue := holdfast.settings_of(queue);
begin
  return v_queue.adopted is null and holdfast.oldest(queue) is null and not exists (
    select
    from generate_series(0, v_queue.fanout - 1) step
    cross join lateral (
      select from holdfast.job j
      where j.part = ((holdfast.queue_part(is_empty.queue) + step) % 64)::smallint and j.queue = is_empty.queue
        and j.lane > '' and j.lane_seq is not null and j.blocked
      order by j.lane   -- so that job_lane is the only choice
      limit 1) x);
end
$$;
