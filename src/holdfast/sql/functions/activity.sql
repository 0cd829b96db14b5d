-- The activity log: what happened to jobs, and what operators did. Functions write to it in the statement that
-- changes a job. At `off` a queue records only how many jobs operators changed, at `failures` also failed attempts
-- and each job an operator changed, at `all` every event. Actions that do not concern a job are always recorded.
-- While a client watches a queue that is not at `off`, all its events are recorded too.

-- activity: events, newest first: of queues, a kind, event, actor, worker or job; since and until a time; before a
-- position in the log, or after it, then oldest first. It stops after patience: in every row searched_to is null if
-- the page is full or nothing is left; otherwise nothing beyond this position was checked, and a search from there
-- continues. A search that found nothing in time returns one row without an event.
create or replace function holdfast.activity(
  queues text[] default null, kind text default null, event text default null, actor text default null,
  worker text default null, job uuid default null, since timestamptz default null, until timestamptz default null,
  before bigint default null, after bigint default null, max_events integer default 100,
  patience interval default '100 milliseconds')
returns table (entry holdfast.events, searched_to bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_until constant timestamptz := clock_timestamp() + patience;
  v_kept  constant timestamptz := holdfast.now() - interval '31 days';
  v_slots constant smallint[] := array(
    select distinct holdfast.event_slot(d)
    from generate_series(greatest(since, v_kept), least(until, holdfast.now()) + interval '1 day', interval '1 day') d);
  v_ids   constant uuid[] := case when activity.job is not null then holdfast.once_named(activity.job) end;
  v_step  integer := greatest(1000, 2 * max_events);
  v_from  bigint := coalesce(after, before);
  v_found holdfast.events[] := '{}';
  v_last  bigint;
  v_seen  integer;
  v_some  holdfast.events[];
begin
  if not coalesce(max_events between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_events must be 1 to 100000 (got %s)',
      coalesce(max_events::text, 'null')));
  end if;
  loop
    -- So many are looked at, and four times as many in the next round. A job's own are found by its ids.
    with looked as materialized (
      (select x.*
       from holdfast.event x
       where v_ids is null and after is null and x.slot = any(v_slots) and (v_from is null or x.seq < v_from)
       order by x.seq desc
       limit v_step)
      union all
      (select x.*
       from holdfast.event x
       where v_ids is null and after is not null and x.slot = any(v_slots) and x.seq > v_from
       order by x.seq
       limit v_step)
      union all
      select x.*
      from unnest(v_ids) i(id)
      cross join lateral (
        select y.*
        from holdfast.event y
        where y.part = holdfast.part_of(i.id) and y.job = i.id
          and (before is null or y.seq < before) and (after is null or y.seq > after)
      ) x
    )
    select count(*), case when after is null then min(l.seq) else max(l.seq) end,
           array(
             select row(l.seq, l.at, l.event, l.job, l.queue, l.kind, l.state, l.attempt, l.jobs, l.worker, l.actor,
                        l.reason,
                        l.detail)::holdfast.events
             from looked l
             where (queues is null or l.queue = any(queues)) and (activity.kind is null or l.kind = activity.kind)
               and (activity.event is null or l.event = activity.event)
               and (activity.actor is null or l.actor = activity.actor)
               and (activity.worker is null or l.worker = activity.worker)
               and (since is null or l.at >= since) and (until is null or l.at < until)
             order by case when after is null then -l.seq else l.seq end
             limit max_events - cardinality(v_found))
    into v_seen, v_last, v_some
    from looked l;
    v_found := v_found || v_some;
    if cardinality(v_found) >= max_events or v_ids is not null or v_seen < v_step then
      v_last := null;
      exit;
    end if;
    v_from := v_last;
    exit when clock_timestamp() > v_until;
    v_step := least(4 * v_step, 100000);
  end loop;
  return query select v_found[n], v_last from generate_subscripts(v_found, 1) n;
  if not found and v_last is not null then
    return query select null::holdfast.events, v_last;
  end if;
end
$$;

-- once_named: the id of a job and those it had in the queues that it was moved from.
create or replace function holdfast.once_named(id uuid)
returns uuid[]
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_ids uuid[] := array[coalesce(holdfast.locate(id), id)];
  v_was uuid;
begin
  loop
    select (e.detail ->> 'was')::uuid into v_was
    from holdfast.event e
    where e.part = holdfast.part_of(v_ids[cardinality(v_ids)]) and e.job = v_ids[cardinality(v_ids)]
      and e.event in ('moved', 'retried', 'undone') and e.detail ? 'was'
    order by e.seq
    limit 1;
    exit when v_was is null or v_was = any(v_ids);
    v_ids := v_ids || v_was;
  end loop;
  return v_ids;
end
$$;

-- event_slot: the table of a day, in UTC.
create or replace function holdfast.event_slot(at timestamptz)
returns smallint
language sql stable parallel safe
as $$ select (floor(extract(epoch from at) / 86400)::bigint % 32)::smallint $$;

-- note: record an action that does not concern a particular job.
create or replace function holdfast.note(
  event text, actor text, reason text default null, queue text default null, detail jsonb default null,
  kind text default null, worker text default null)
returns void
language sql volatile
as $$
  insert into holdfast.event (at, slot, part, jobs, event, queue, kind, worker, actor, reason, detail)
  values (holdfast.now(), holdfast.event_slot(holdfast.now()), coalesce(holdfast.queue_part(note.queue), 0), 0,
    note.event,
    note.queue, note.kind, note.worker, note.actor, left(note.reason, 2000), jsonb_strip_nulls(note.detail))
$$;

-- note_events: record events of jobs.
create or replace function holdfast.note_events(events holdfast.event[])
returns void
language plpgsql
as $$
begin
  insert into holdfast.event (at, slot, part, job, event, state, queue, kind, attempt, worker)
  select e.at, holdfast.event_slot(e.at), holdfast.part_of(e.job), e.job, e.event, e.state, e.queue, e.kind, e.attempt,
         e.worker
  from unnest(events) with ordinality e
  -- somebody may watch every queue, and this one's log be off all the same
  where not exists (select from holdfast.queue q where q.name = e.queue and q.activity = 'off')
  order by e.ordinality;
end
$$;

-- note_jobs: record what an operator did to jobs of one part: each job, and only the number for queues whose log is
-- off. Parallel arrays; details may be null.
create or replace function holdfast.note_jobs(
  event text, part smallint, ids uuid[], queues text[], kinds text[], state text, actor text, reason text,
  at timestamptz, details jsonb[] default null, workers text[] default null)
returns void
language sql volatile
as $$
  with told as materialized (
    select u.*, coalesce(q.activity, (holdfast.unset_queue(null)).activity) = 'off' as summed
    from unnest(ids, queues, kinds, details, workers) u(id, queue, kind, detail, worker)
    left join holdfast.queue q on q.name = u.queue
  )
  insert into holdfast.event (at, slot, part, jobs, job, event, state, queue, kind, worker, actor, reason, detail)
  select note_jobs.at, holdfast.event_slot(note_jobs.at), note_jobs.part, 1, t.id, note_jobs.event, note_jobs.state,
         t.queue, t.kind,
         t.worker, note_jobs.actor, left(note_jobs.reason, 2000), t.detail
  from told t
  where not t.summed
  union all
  select note_jobs.at, holdfast.event_slot(note_jobs.at), note_jobs.part, count(*), null, note_jobs.event,
         note_jobs.state, t.queue, t.kind,
         null, note_jobs.actor, left(note_jobs.reason, 2000), null
  from told t
  where t.summed
  group by t.queue, t.kind
$$;

-- told_queues: queues whose every event is recorded; the empty name means all of them.
create or replace function holdfast.told_queues()
returns text[]
language sql stable
as $$
  select array(
    select q.name from holdfast.queue q where q.activity = 'all'
    union all select w.queue from holdfast.watched w where w.until > holdfast.now())
$$;

-- is_told: whether every event of a queue is recorded.
create or replace function holdfast.is_told(queue text)
returns boolean
language sql stable
as $$
  select case (holdfast.settings_of(is_told.queue)).activity
    when 'all' then true
    when 'off' then false
    else holdfast.is_watched(is_told.queue)
  end
$$;

-- is_watched: whether a client watches a queue.
create or replace function holdfast.is_watched(queue text)
returns boolean
language sql stable
as $$ select exists (select from holdfast.watched w where w.queue in (is_watched.queue, '')
  and w.until > holdfast.now()) $$;

-- watch: record every event of these queues for a while, as if their activity were `all`; null means all queues. If
-- the call is repeated before the time is up, no event is missing, and since and place, the time and position of the
-- log when the watch began, stay the same. Calls that began before this one was committed may not be recorded.
create or replace function holdfast.watch(queues text[] default null, lasts interval default '30 seconds')
returns table (queue text, since timestamptz, place bigint, until timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_names constant text[] := coalesce(watch.queues, array['']);
  v_place bigint := 0;
begin
  if not coalesce(lasts > '0' and lasts <= '1 hour', false) then
    perform holdfast.refuse('HF204', format('lasts %s is out of range', coalesce(lasts::text, 'null')), null,
      'It is above 0 and at most 1 hour.');
  end if;
  perform holdfast.named('queue', n, 120) from unnest(queues) n;
  if exists (
    select from unnest(v_names) n(name) where not exists (select from holdfast.watched w where w.queue = n.name
           and w.until >= v_now)) then
    v_place := nextval('holdfast.event_seq');   -- a place of its own: nothing that was noted before is behind it
  end if;
  return query
    insert into holdfast.watched as w (queue, since, place, until)
    select distinct n.name, v_now, v_place, v_now + lasts
    from unnest(v_names) n(name)
    order by n.name   -- servers that say so at once wait for each other and do not deadlock
    on conflict (queue) do update
    set since = case when w.until < v_now then excluded.since else w.since end,
        place = case when w.until < v_now then excluded.place else w.place end,
        until = greatest(w.until, excluded.until)
    returning nullif(w.queue, ''), w.since, w.place, w.until;
end
$$;

-- tail: events in order, for following the log: those after a position, and those at positions that were missing
-- before, from each of missing_from to the one of missing_to. Positions are assigned before their transactions
-- commit: one is missing while its transaction is open, and forever if that was rolled back. It is final if the
-- position is still missing in a call that began after all writers had ended that log_state returned after it was
-- first missing. Reads three days of the log.
create or replace function holdfast.tail(
  after bigint, missing_from bigint[] default null, missing_to bigint[] default null, max_events integer default 1000)
returns setof holdfast.events
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_slots constant smallint[] := array(
    select holdfast.event_slot(holdfast.now() + make_interval(days => d)) from generate_series(-1, 1) d);
begin
  if not coalesce(max_events between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_events must be 1 to 100000 (got %s)',
      coalesce(max_events::text, 'null')));
  end if;
  return query
    select t.seq, t.at, t.event, t.job, t.queue, t.kind, t.state, t.attempt, t.jobs, t.worker, t.actor, t.reason,
           t.detail
    from (
      (select m.*
       from unnest(missing_from, missing_to) r(first, last)
       cross join lateral (
         select x.* from holdfast.event x where x.slot = any(v_slots) and x.seq between r.first and least(r.last, after)
           order by x.seq limit max_events) m
       order by m.seq
       limit max_events)
      union all
      (select x.* from holdfast.event x where x.slot = any(v_slots) and x.seq > after order by x.seq limit max_events)
    ) t
    order by t.seq
    limit max_events;
end
$$;

-- log_state: where the log begins and ends, and the open transactions that have written to it or may have. On a
-- standby, which does not know about locks, all open transactions.
create or replace function holdfast.log_state()
returns table (first bigint, last bigint, writers text[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  -- first the place, then the writers
  v_last constant bigint := coalesce(pg_sequence_last_value('holdfast.event_seq'), 0);
begin
  return query
    select (select e.seq from holdfast.event e order by e.seq limit 1), v_last,
      case when pg_is_in_recovery() then array(select x::text from pg_snapshot_xip(pg_current_snapshot()) x)
        else array(
          select l.virtualtransaction
          from pg_locks l
          where l.locktype = 'relation' and l.database = (select d.oid from pg_database d
            where d.datname = current_database())
            and l.relation = 'holdfast.event'::regclass and l.mode = 'RowExclusiveLock'
              and l.pid is distinct from pg_backend_pid())
      end;
end
$$;

-- forget_activity: empty the tables of days that are too old. Truncated one by one: writers never wait, because they
-- use other days; if a reader holds one, the truncate gives up and the next call tries again.
create or replace function holdfast.forget_activity()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  v_today  constant date := (holdfast.now() at time zone 'UTC')::date;
  v_keep   constant integer := ceil(extract(epoch from greatest(interval '1 day',
    (select max(q.keep_activity) from holdfast.queue q where q.keep_activity is not null), case
      when not exists (select from holdfast.queue) then (holdfast.unset_queue(null)).keep_activity end)) / 86400);
  v_page   text;
  v_full   boolean;
  v_emptied integer := 0;
begin
  if not holdfast.take_turn('activity') then
    return 0;
  end if;
  delete from holdfast.watched w where w.until < holdfast.now() - interval '1 hour';
  for age in v_keep + 1 .. 30 loop
    v_page := format('holdfast.event_%s', lpad(holdfast.event_slot((v_today - age)::timestamp at time zone 'UTC')::text,
      2, '0'));
    execute format('select exists (select from %s)', v_page) into v_full;
    continue when not v_full;
    begin
      execute format('truncate %s', v_page);
      v_emptied := v_emptied + 1;
    exception when lock_not_available then
      null;
    end;
  end loop;
  return v_emptied;
end
$$;
