-- The verbs of an operator. Each takes ids, changes those jobs it may, and answers one row per id:
-- whether it changed, its state now, and if nothing changed, why. By filter: pass holdfast.find(…).

-- cancel: stop jobs that wait or run. A running handler learns of it by its next touch or ack: lost. Its
-- worker is notified, as a hint to touch now. The job has ended, and its key is free; a slot of a limit or a lane
-- is free when the holder has let go (by ack, nack or release, which answer lost) or the lease has ended.
create or replace function holdfast.cancel(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  v_done := holdfast.cancelled(v_stored, reason, actor);
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'cancelled') a;
end
$$;

-- cancelled, and its like for the other verbs: do it to jobs by the ids they are stored under; which it changed.
create or replace function holdfast.cancelled(stored uuid[], reason text, actor text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_done   uuid[] := '{}';
  v_some   uuid[];
  v_told   text[];
  v_all    text[] := '{}';
  v_part   smallint;
begin
  perform holdfast.lock_jobs(stored);
  perform holdfast.lock_ledger(array(
    select j.token
    from unnest(stored) u(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
    where j.token is not null));
  for v_part in select distinct holdfast.part_of(i) from unnest(stored) i order by 1 loop
    select array_agg(c.id), array_agg(c.worker) filter (where c.token is not null) into v_some, v_told
    from holdfast.end_cancelled(v_part, stored, array_fill(null::uuid, array[cardinality(stored)]),
      array_fill(coalesce(cancelled.reason, 'cancelled by ' || cancelled.actor), array[cardinality(stored)]), 'cancelled', v_now, cancelled.actor) c;
    v_done := v_done || v_some;
    v_all := v_all || v_told;
  end loop;
  select v_done || array_agg(a.id), v_all || array_agg(a.worker) filter (where a.token is not null) into v_done, v_all
  from holdfast.settle_adopted(stored, null, 'cancel', v_now, reason => coalesce(cancelled.reason, 'cancelled by ' || cancelled.actor)) a;
  insert into holdfast.bell (worker) select distinct x.worker from unnest(v_all) x(worker);
  return v_done;
end
$$;

-- retry: give ended jobs (dead, cancelled, done, archived) another life: no lease, no error, attempt 0,
-- and the reason kept with the job. The failed attempts stay on record.
create or replace function holdfast.retry(
  ids uuid[], reason text default null, actor text default null, delay interval default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  perform holdfast.check_length('delay', delay, '100 years');
  v_done := holdfast.retried(v_stored, reason, actor, delay);
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'retried') a;
end
$$;

create or replace function holdfast.retried(stored uuid[], reason text, actor text, delay interval)
returns uuid[]
language sql
as $$
  select holdfast.revive(stored, reason, actor, delay) || array(
    select a.id
    from holdfast.settle_adopted(stored, null, 'retry', holdfast.now(), delays => array_fill(delay, array[cardinality(stored)]),
      reason => coalesce(retried.reason, 'retried by ' || retried.actor)) a)
$$;

-- revive: queue ended jobs again; which. as_before: only cancelled ones, with the time they were to run at and
-- the attempts they had.
create or replace function holdfast.revive(
  ids uuid[], reason text, actor text, delay interval default null, as_before boolean default false)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_done   uuid[] := '{}';
  v_places bigint[];
  v_part   smallint;
  back     record;
begin
  -- Written in the order of keys, as by an enqueue, but placed in the order in which they ended. Places are drawn
  -- under the table's lock: floors rely on it.
  lock table holdfast.job in row exclusive mode;
  for v_part in select distinct holdfast.part_of(i) from unnest(ids) i order by 1 loop
    perform from holdfast.ended e where e.part = v_part and e.id = any(ids) order by e.id for update;
    v_places := array(
      select nextval('holdfast.pos') from holdfast.ended e where e.part = v_part and e.id = any(ids));
    with ended as materialized (
      select e.*, row_number() over (order by e.ended_at, e.id) as nth, l.halted_by = e.id as halts, case when as_before then e.run_at else v_now + coalesce(revive.delay, '0') end as due
      from holdfast.ended e
      left join holdfast.lane l on l.part = e.part and l.queue = e.queue and l.name = e.lane
      where e.part = v_part and e.id = any(ids) and (not as_before or e.state = 'cancelled')
    ), queued as (
      insert into holdfast.job (
        part, id, queue, kind, priority, attempt, max_attempts, run_at, created_at, key, lane, tenant, subject, lease_for,
        error, reason, headers, payload, by_kind, lane_seq, pos)
      select e.part, e.id, e.queue, e.kind, e.priority, case when as_before then e.attempt else 0 end, e.max_attempts, e.due, e.created_at, e.key, e.lane,
             coalesce(e.tenant, case when q.fair then '' end), e.subject, e.lease_for,
             case when as_before then e.error end, coalesce(revive.reason, 'retried by ' || revive.actor), e.headers, e.payload,
             coalesce(q.by_kind, false),
             case
               when e.lane is null or e.due > v_now then null
               -- the job that halted its lane goes first in it again
               when e.halts then coalesce((
                 select j.lane_seq - 1 from holdfast.job j
                 where j.part = e.part and j.queue = e.queue and j.lane = e.lane and j.lane_seq is not null
                 order by j.lane_seq limit 1), v_places[e.nth])
               else v_places[e.nth]
             end,
             case when e.due <= v_now then v_places[e.nth] end
      from ended e
      left join holdfast.queue q on q.name = e.queue
      order by e.queue collate "C", e.kind collate "C", e.key collate "C", e.nth
      on conflict do nothing
      returning id, queue, kind, lane
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, dead, cancelled, archived)
      select v_part, e.queue, e.kind, count(*), -count(*) filter (where e.state = 'dead'),
             -count(*) filter (where e.state = 'cancelled'), -count(*) filter (where e.state = 'archived')
      from queued q
      join ended e on e.id = q.id
      group by e.queue, e.kind
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, e.fingerprint, e.kind, e.queue, -count(*)
      from queued q
      join ended e on e.id = q.id
      where e.state = 'dead'
      group by e.fingerprint, e.kind, e.queue
    )
    select array_agg(q.id) as ids, array_agg(distinct q.queue) as queues, array_agg(q.queue) as told, array_agg(q.kind) as kinds
    into back
    from queued q;
    continue when back.ids is null;
    perform holdfast.note_jobs(case when as_before then 'undone' else 'retried' end, v_part, back.ids, back.told, back.kinds, 'queued', actor, reason, v_now);
    v_done := v_done || back.ids;
    delete from holdfast.ended e where e.part = v_part and e.id = any(back.ids);
    perform holdfast.resume_lanes(v_part, back.ids, v_now);
    perform holdfast.wake(back.queues, cardinality(back.ids));
  end loop;
  return v_done;
end
$$;

-- edit: change jobs that wait or are dead. changes: payload, priority, run_at, max_attempts, lease, headers.
create or replace function holdfast.edit(ids uuid[], changes jsonb, reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_stored constant uuid[] := holdfast.located(ids);
  v_field  text;
  v_done   uuid[] := '{}';
  v_run_at timestamptz;
  v_part   smallint;
  waiting  record;
begin
  if changes is null or jsonb_typeof(changes) <> 'object' or changes = '{}' then
    perform holdfast.refuse('HF222', 'changes must be a JSON object with at least one field', null,
      'Fields are: payload, priority, run_at, max_attempts, lease, headers.');
  end if;
  select k into v_field from jsonb_object_keys(changes) k
  where not k = any('{payload,priority,run_at,max_attempts,lease,headers}') limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF222', format('%L cannot be edited', v_field), null,
      'Fields are: payload, priority, run_at, max_attempts, lease, headers. To change the queue use holdfast.move.');
  end if;
  perform holdfast.check_items(jsonb_build_array(jsonb_build_object('kind', 'edited', 'queue', q.queue) || changes))
  from (select distinct j.queue from unnest(v_stored) i(id) cross join lateral holdfast.get(i.id) j) q;
  v_run_at := (changes ->> 'run_at')::timestamptz;

  perform holdfast.lock_jobs(v_stored);
  for v_part in select distinct holdfast.part_of(i) from unnest(v_stored) i order by 1 loop
    with edited as (
      update holdfast.job j
      set payload      = coalesce(changes -> 'payload', j.payload),
          headers      = case when changes ? 'headers' then nullif(changes -> 'headers', 'null') else j.headers end,
          priority     = coalesce(nullif(changes -> 'priority', 'null')::smallint, j.priority),
          max_attempts = greatest(coalesce(nullif(changes -> 'max_attempts', 'null')::smallint, j.max_attempts), j.attempt + 1),
          lease_for    = case when changes ? 'lease' then make_interval(secs => (changes ->> 'lease')::double precision) else j.lease_for end,
          reason       = coalesce(edit.reason, 'edited by ' || edit.actor, j.reason),
          run_at       = d.run_at,
          -- Put off, it leaves its lane's order and comes back at the end; due, it needs a place there.
          lane_seq = case
            when j.lane is null or j.follow or d.run_at > v_now then null
            else coalesce(j.lane_seq, nextval('holdfast.pos'))
          end,
          -- a job that was held back is looked at afresh: it may be another one now
          strike = null,
          blocked = j.blocked and j.strike is null and (j.follow or d.run_at <= v_now),
          pos = case
            when d.run_at > v_now or j.blocked and j.strike is null then null
            when j.pos is not null and j.priority = coalesce(nullif(changes -> 'priority', 'null')::smallint, j.priority) then j.pos
            else nextval('holdfast.pos')
          end
      from (
        select x.id, coalesce(v_run_at, x.run_at) as run_at, holdfast.kept_of(to_jsonb(x), changes) as was
        from holdfast.job x
        where x.part = v_part and x.id = any(v_stored)
      ) d
      where j.part = v_part and j.id = d.id and j.token is null
      returning j.id, j.queue, j.kind, j.lane, d.was
    )
    select array_agg(e.id) as ids, array_agg(e.queue) as told, array_agg(e.kind) as kinds, array_agg(e.was) as was,
           array_agg(e.queue) filter (where e.lane is not null) as lane_queues,
           array_agg(e.lane) filter (where e.lane is not null) as lanes,
           array_agg(distinct e.queue) as queues
    into waiting
    from edited e;
    v_done := v_done || waiting.ids;
    if waiting.lanes is not null then
      perform holdfast.unblock(v_part, waiting.lane_queues, waiting.lanes, v_now);
    end if;
    if waiting.ids is not null then
      perform holdfast.note_jobs('edited', v_part, waiting.ids, waiting.told, waiting.kinds, 'queued', actor, reason, v_now, waiting.was);
      perform holdfast.wake(waiting.queues, cardinality(waiting.ids));
    end if;
    with edited as (
      update holdfast.dead d
      set payload      = coalesce(changes -> 'payload', d.payload),
          headers      = case when changes ? 'headers' then nullif(changes -> 'headers', 'null') else d.headers end,
          priority     = coalesce(nullif(changes -> 'priority', 'null')::smallint, d.priority),
          max_attempts = coalesce(nullif(changes -> 'max_attempts', 'null')::smallint, d.max_attempts),
          lease_for    = case when changes ? 'lease' then make_interval(secs => (changes ->> 'lease')::double precision) else d.lease_for end,
          reason       = coalesce(edit.reason, 'edited by ' || edit.actor, d.reason)
      from (
        select x.id, holdfast.kept_of(to_jsonb(x), changes) as was
        from holdfast.dead x
        where x.part = v_part and x.id = any(v_stored)
      ) o
      where d.part = v_part and d.id = o.id
      returning d.id, d.queue, d.kind, o.was
    )
    select array_agg(e.id) as ids, array_agg(e.queue) as told, array_agg(e.kind) as kinds, array_agg(e.was) as was into waiting
    from edited e;
    v_done := v_done || waiting.ids;
    if waiting.ids is not null then
      perform holdfast.note_jobs('edited', v_part, waiting.ids, waiting.told, waiting.kinds, 'dead', actor, reason, v_now, waiting.was);
    end if;
  end loop;
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'edited') a;
end
$$;

-- move: put waiting or dead jobs into another queue. The part inside an id changes with the queue, so
-- new_id is the job's id from now on; every lookup still understands the old one.
create or replace function holdfast.move(ids uuid[], queue text, reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text, new_id uuid)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_ours(queue);
  v_done := array(select m.id from holdfast.moved(v_stored, queue, reason, actor) m);
  return query
    select a.id, a.changed, a.state, a.detail, holdfast.locate(a.id)
    from holdfast.answers(ids, v_stored, v_done, 'moved') a;
end
$$;

create or replace function holdfast.moved(stored uuid[], queue text, reason text, actor text)
returns table (id uuid, new_id uuid)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_target holdfast.queue;
  v_part   smallint;
  v_to     smallint;
  v_moved  boolean;
  v_kind   text;
  v_from   text;
  v_state  text;
  job      holdfast.job;
  dead     record;
  these    record;
begin
  select q.* into v_target from holdfast.queue q where q.name = moved.queue;
  if v_target.adopted is not null then
    perform holdfast.refuse_adopted(queue);
  end if;
  for these in select u.id from unnest(stored) u(id) order by u.id loop
    v_part := holdfast.part_of(these.id);
    select j.* into job from holdfast.job j
    where j.part = v_part and j.id = these.id and j.token is null and j.queue <> moved.queue for update;
    if found then
      v_to := case when coalesce(v_target.fanout, 1) = 1 then holdfast.queue_part(queue)
                   else holdfast.fanned_part(queue, v_target.fanout, jsonb_build_object('lane', job.lane, 'key', job.key, 'id', these.id), 0) end;
      -- deleted first: in a queue of the same part the id stays as it is
      begin
        delete from holdfast.job j where j.part = v_part and j.id = these.id;
        insert into holdfast.job (
          part, id, queue, kind, priority, run_at, created_at, attempt, max_attempts, key, lane, tenant, subject,
          lease_for, error, reason, headers, payload, by_kind, lane_seq, pos)
        values (
          v_to, holdfast.stamp(these.id, v_to), moved.queue, job.kind, job.priority, job.run_at, job.created_at, job.attempt,
          job.max_attempts, job.key, job.lane, coalesce(job.tenant, case when v_target.fair then '' end), job.subject,
          job.lease_for, job.error, coalesce(moved.reason, 'moved by ' || moved.actor, job.reason), job.headers, job.payload,
          coalesce(v_target.by_kind, false),
          case when job.lane is not null and job.run_at <= v_now then nextval('holdfast.pos') end,
          case when job.run_at <= v_now then nextval('holdfast.pos') end);
        v_moved := true;
        v_kind := job.kind;
        v_from := job.queue;
        v_state := 'queued';
      exception when unique_violation then
        v_moved := false;   -- a live job there has the same key
      end;
      if v_moved then
        insert into holdfast.tally (part, queue, kind, queued)
        values (v_part, job.queue, job.kind, -1), (v_to, moved.queue, job.kind, 1);
        if job.key is not null then
          perform holdfast.unfollow(v_part, array[job.queue], array[job.kind], array[job.key], v_now);
        end if;
        if job.lane is not null then
          perform holdfast.unblock(v_part, array[job.queue], array[job.lane], v_now);
        end if;
        perform holdfast.wake(array[moved.queue], 1);
      end if;
    else
      v_to := holdfast.queue_part(queue);
      select d.queue, d.kind, d.fingerprint into dead from holdfast.dead d
      where d.part = v_part and d.id = these.id and d.queue <> moved.queue for update;
      if found then
        update holdfast.dead d
        set part = v_to, id = holdfast.stamp(these.id, v_to), queue = moved.queue, reason = coalesce(moved.reason, d.reason)
        where d.part = v_part and d.id = these.id;
        insert into holdfast.tally (part, queue, kind, dead)
        values (v_part, dead.queue, dead.kind, -1), (v_to, moved.queue, dead.kind, 1);
        insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
        values (v_part, dead.fingerprint, dead.kind, dead.queue, -1), (v_to, dead.fingerprint, dead.kind, moved.queue, 1);
        perform holdfast.resume_lanes(v_part, array[these.id], v_now);
        v_moved := true;
        v_kind := dead.kind;
        v_from := dead.queue;
        v_state := 'dead';
      end if;
    end if;
    if v_moved then
      perform holdfast.note_jobs('moved', v_to, array[holdfast.stamp(these.id, v_to)], array[moved.queue], array[v_kind],
        v_state, actor, reason, v_now, array[jsonb_build_object('from', v_from, 'was', these.id)]);
      update holdfast.attempt a set part = v_to, id = holdfast.stamp(these.id, v_to)
      where a.part = v_part and a.id = these.id;
      id := these.id;
      new_id := holdfast.stamp(these.id, v_to);
      return next;
    end if;
    v_moved := null;
  end loop;
end
$$;

-- archive: put ended jobs away; they are kept until purged and can still be retried.
create or replace function holdfast.archive(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  v_done := holdfast.archived(v_stored, reason, actor);
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'archived') a;
end
$$;

create or replace function holdfast.archived(stored uuid[], reason text, actor text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_done   uuid[] := '{}';
  v_part   smallint;
  these    record;
begin
  for v_part in select distinct holdfast.part_of(i) from unnest(stored) i order by 1 loop
    -- deleted and inserted, not updated: whoever waits for the row must find it gone, not moved
    with removed as (
      delete from holdfast.ended e
      where e.part = v_part and e.id = any(stored) and e.state <> 'archived'
      returning e.*
    ), put_away as (
      insert into holdfast.archive (
        part, id, state, queue, kind, priority, attempt, max_attempts, run_at, created_at, ended_at, worker,
        key, lane, tenant, subject, lease_for, error, fingerprint, reason, headers, payload, result)
      select r.part, r.id, 'archived', r.queue, r.kind, r.priority, r.attempt, r.max_attempts, r.run_at, r.created_at,
             r.ended_at, r.worker, r.key, r.lane, r.tenant, r.subject, r.lease_for, r.error, r.fingerprint,
             coalesce(archived.reason, 'archived by ' || archived.actor, r.reason), r.headers, r.payload, r.result
      from removed r
      returning id, queue, kind
    ), counted as (
      insert into holdfast.tally (part, queue, kind, dead, cancelled, archived)
      select v_part, r.queue, r.kind, -count(*) filter (where r.state = 'dead'), -count(*) filter (where r.state = 'cancelled'), count(*)
      from removed r
      group by r.queue, r.kind
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, r.fingerprint, r.kind, r.queue, -count(*)
      from removed r
      where r.state = 'dead'
      group by r.fingerprint, r.kind, r.queue
    )
    select array_agg(p.id) as ids, array_agg(p.queue) as queues, array_agg(p.kind) as kinds into these from put_away p;
    continue when these.ids is null;
    perform holdfast.note_jobs('archived', v_part, these.ids, these.queues, these.kinds, 'archived', actor, reason, holdfast.now());
    v_done := v_done || these.ids;
    perform holdfast.resume_lanes(v_part, these.ids, holdfast.now());
  end loop;
  return v_done;
end
$$;

-- purge: delete jobs for good. A leased job is refused: cancel it first.
create or replace function holdfast.purge(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  v_done := holdfast.purged(v_stored, reason, actor);
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'purged') a;
end
$$;

create or replace function holdfast.purged(stored uuid[], reason text, actor text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_done   uuid[] := '{}';
  v_part   smallint;
  gone     record;
begin
  perform holdfast.lock_jobs(stored);
  for v_part in select distinct holdfast.part_of(i) from unnest(stored) i order by 1 loop
    with waiting as (
      delete from holdfast.job j
      where j.part = v_part and j.id = any(stored) and j.token is null
      returning j.id, j.queue, j.kind, j.key, j.lane, 'queued' as state
    ), ended as (
      delete from holdfast.ended e
      where e.part = v_part and e.id = any(stored)
      returning e.id, e.queue, e.kind, null::text as key, null::text as lane, e.state, e.fingerprint
    ), removed as (
      select w.* from waiting w union all select e.id, e.queue, e.kind, e.key, e.lane, e.state from ended e
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, e.fingerprint, e.kind, e.queue, -count(*)
      from ended e
      where e.state = 'dead'
      group by e.fingerprint, e.kind, e.queue
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, dead, cancelled, archived)
      select v_part, r.queue, r.kind, -count(*) filter (where r.state = 'queued'), -count(*) filter (where r.state = 'dead'),
             -count(*) filter (where r.state = 'cancelled'), -count(*) filter (where r.state = 'archived')
      from removed r
      group by r.queue, r.kind
    )
    select array_agg(r.id) as ids, array_agg(r.queue) as queues, array_agg(r.kind) as kinds,
           array_agg(r.queue) filter (where r.lane is not null) as lane_queues,
           array_agg(r.lane) filter (where r.lane is not null) as lanes,
           array_agg(r.queue) filter (where r.key is not null) as key_queues,
           array_agg(r.kind) filter (where r.key is not null) as key_kinds,
           array_agg(r.key) filter (where r.key is not null) as keys
    into gone
    from removed r;
    continue when gone.ids is null;
    v_done := v_done || gone.ids;
    perform holdfast.note_jobs('purged', v_part, gone.ids, gone.queues, gone.kinds, null, actor, reason, v_now);
    delete from holdfast.attempt a where a.part = v_part and a.id = any(gone.ids);
    perform holdfast.resume_lanes(v_part, gone.ids, v_now);
    if gone.keys is not null then
      perform holdfast.unfollow(v_part, gone.key_queues, gone.key_kinds, gone.keys, v_now);
    end if;
    if gone.lanes is not null then
      perform holdfast.unblock(v_part, gone.lane_queues, gone.lanes, v_now);
    end if;
  end loop;
  return v_done;
end
$$;

-- end_cancelled: end live jobs of one part as cancelled; where a token is given, only if it holds the job.
-- The caller has locked the rows.
create or replace function holdfast.end_cancelled(
  part smallint, ids uuid[], tokens uuid[], reasons text[], how text, at timestamptz, actor text)
returns table (id uuid, token uuid, worker text)
language plpgsql
as $$
#variable_conflict use_column
declare
  gone record;
begin
  with removed as (
    delete from holdfast.job j
    using (
      select distinct on (x.id, x.token) holdfast.part_of(x.id) as part, x.id, x.token, x.reason
      from unnest(ids, tokens, reasons) x(id, token, reason)
      where holdfast.part_of(x.id) = end_cancelled.part
    ) u
    where j.part = any(array[u.part]) and j.id = u.id and (u.token is null or j.token = u.token)
    returning j.*, u.reason as why
  ), kept as (
    insert into holdfast.history (
      part, id, state, queue, kind, priority, attempt, max_attempts, run_at, created_at, ended_at, worker,
      key, lane, tenant, subject, lease_for, error, reason, headers, payload)
    select r.part, r.id, 'cancelled', r.queue, r.kind, r.priority, r.attempt, r.max_attempts, r.run_at, r.created_at,
           end_cancelled.at, r.worker, r.key, r.lane, r.tenant, r.subject, r.lease_for, r.error, r.why, r.headers, r.payload
    from removed r
  ), leaving as (
    insert into holdfast.leaving (part, id, token, queue, lane, lane_seq, worker, until)
    select r.part, r.id, r.token, r.queue, r.lane, r.lane_seq, r.worker, r.lease_until
    from removed r
    where r.held and how = 'cancelled'
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued, leased, cancelled)
    select r.part, r.queue, r.kind, -count(*) filter (where r.token is null), -count(*) filter (where r.token is not null), count(*)
    from removed r
    group by r.part, r.queue, r.kind
  )
  select array_agg(r.id) as ids, array_agg(r.token) as tokens, array_agg(r.worker) as workers,
         array_agg(r.queue) as queues, array_agg(r.kind) as kinds, min(r.why) as why,
         array_agg(r.id) filter (where r.token is not null) as leased_ids,
         array_agg(r.token) filter (where r.token is not null) as leased_tokens,
         array_agg(r.queue) filter (where r.lane is not null) as lane_queues,
         array_agg(r.lane) filter (where r.lane is not null) as lanes,
         array_agg(r.queue) filter (where r.key is not null) as key_queues,
         array_agg(r.kind) filter (where r.key is not null) as key_kinds,
         array_agg(r.key) filter (where r.key is not null) as keys
  into gone
  from removed r;
  if gone.ids is null then
    return;
  end if;
  perform holdfast.note_jobs('cancelled', part, gone.ids, gone.queues, gone.kinds, 'cancelled', actor, gone.why, at,
    workers => gone.workers);
  if gone.leased_ids is not null then
    perform holdfast.mark_taken(gone.leased_ids, gone.leased_tokens, how);
  end if;
  if gone.keys is not null then
    perform holdfast.unfollow(part, gone.key_queues, gone.key_kinds, gone.keys, at);
  end if;
  if gone.lanes is not null then
    perform holdfast.unblock(part, gone.lane_queues, gone.lanes, at);
  end if;
  return query select u.id, u.token, u.worker from unnest(gone.ids, gone.tokens, gone.workers) u(id, token, worker);
end
$$;

-- kept_of: what is put on record of a job before it is edited: the fields that change, if they are not large.
create or replace function holdfast.kept_of(job jsonb, changes jsonb)
returns jsonb
language sql immutable
as $$
  select jsonb_build_object('was', coalesce(jsonb_object_agg(k.name, f.value) filter (where pg_column_size(f.value) < 8192), '{}'))
  from jsonb_object_keys(changes) k(name)
  cross join lateral (select job -> case k.name when 'lease' then 'lease_for' else k.name end as value) f
$$;

-- lock_jobs: lock live jobs, everywhere in the order of their ids, so that calls that share jobs wait for
-- each other and do not deadlock.
create or replace function holdfast.lock_jobs(ids uuid[])
returns void
language plpgsql
as $$
begin
  perform from (select distinct x.id from unnest(ids) x(id) order by x.id) u
  cross join lateral (
    select from holdfast.job j where j.part = holdfast.part_of(u.id) and j.id = u.id for update) j;
end
$$;

-- resume_lanes: a dead job that halted its lane was dealt with; the lane goes on.
create or replace function holdfast.resume_lanes(part smallint, ids uuid[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  lanes record;
begin
  with resumed as (
    update holdfast.lane l
    set halted_by = null
    where l.part = resume_lanes.part and l.halted_by = any(ids)
    returning l.queue, l.name
  )
  select array_agg(r.queue) as queues, array_agg(r.name) as names into lanes from resumed r;
  if lanes.names is not null then
    perform holdfast.unblock(part, lanes.queues, lanes.names, at);
  end if;
end
$$;

-- locate: the id a job is stored under. It differs from the one given if the job was moved since.
create or replace function holdfast.locate(id uuid)
returns uuid
language plpgsql stable
as $$
#variable_conflict use_column
begin
  if holdfast.part_of(id) >= 64 then
    return id;   -- of an adopted table, where ids do not change
  end if;
  if exists (select from holdfast.job j where j.part = holdfast.part_of(locate.id) and j.id = locate.id)
     or exists (select from holdfast.ended e where e.part = holdfast.part_of(locate.id) and e.id = locate.id) then
    return id;
  end if;
  -- Probed one by one: two conditions joined by `or` could be answered by reading both tables.
  return (
    select f.id
    from (select holdfast.stamp(locate.id, p::smallint) as id, p::smallint as part from generate_series(0, 63) p) s
    cross join lateral (
      (select j.id from holdfast.job j where j.part = s.part and j.id = s.id limit 1)
      union all
      (select e.id from holdfast.ended e where e.part = s.part and e.id = s.id limit 1)
    ) f
    limit 1);
end
$$;

create or replace function holdfast.located(ids uuid[])
returns uuid[]
language sql stable
as $$
  select array(
    select coalesce(holdfast.locate(u.id), u.id)
    from unnest(ids) with ordinality u(id, nth)
    order by u.nth)
$$;

-- answers: one row per id an operator gave: changed or not, its state now, and why nothing changed.
create or replace function holdfast.answers(ids uuid[], stored uuid[], done uuid[], verbed text)
returns table (id uuid, changed boolean, state text, detail text)
language sql stable
as $$
  select
    u.id, coalesce(u.stored = any(done), false), j.state,
    case
      when u.stored = any(done) then null
      when holdfast.part_of(u.stored) >= 64 and holdfast.why_not_written(u.stored) is not null then holdfast.why_not_written(u.stored)
      when j.state is null then format('there is no job %s', u.id)
      when holdfast.part_of(u.stored) >= 64 and verbed not in ('retried', 'cancelled') then
        format('job %s is a row of an adopted table and cannot be %s', u.id, verbed)
      when verbed = 'retried' and j.state in ('dead', 'cancelled', 'done', 'archived') then format('a live job has the same key %L', j.key)
      when verbed = 'moved' and j.state in ('queued', 'dead') then 'it is there already, or a live job there has the same key'
      when verbed = 'purged' and j.state = 'leased' then format('job %s is leased by %s and cannot be purged; cancel it first', u.id, j.worker)
      else format('job %s is %s and cannot be %s', u.id, j.state, verbed)
    end
  from unnest(ids, stored) with ordinality u(id, stored, nth)
  left join lateral holdfast.get(u.stored) j on true
  order by u.nth
$$;
