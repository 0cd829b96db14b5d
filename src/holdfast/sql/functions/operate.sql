-- The verbs of an operator. Each takes ids and returns one row per id: whether the job changed, its state now, and if
-- nothing changed, why. By filter: pass holdfast.find(…).

-- cancel: cancel queued and running jobs. For a running handler, the next touch or ack returns lost. Its worker is
-- notified, as a hint to touch now. The job ends at once and its key is free; its slot in a limit or a lane is free
-- when the holder has settled the lease (by ack, nack or release, which return lost) or the lease has expired.
create or replace function holdfast.cancel(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
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

-- cancelled, and similar functions for the other verbs: apply the verb to jobs by their stored ids; returns which
-- changed.
create or replace function holdfast.cancelled(stored uuid[], reason text, actor text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_done   uuid[] := '{}';
  v_locked uuid[];
  v_some   uuid[];
  v_told   text[];
  v_all    text[] := '{}';
  v_links  uuid[] := '{}';
  v_part   smallint;
begin
  v_locked := (holdfast.lock_to_end(holdfast.with_children(stored))).locked;
  for v_part in select distinct holdfast.part_of(i) from unnest(v_locked) i order by 1 loop
    select array_agg(c.id), array_agg(c.worker) filter (where c.token is not null),
           v_links || array_agg(c.link) filter (where c.link is not null)
    into v_some, v_told, v_links
    from holdfast.end_cancelled(v_part, v_locked, array_fill(null::uuid, array[cardinality(v_locked)]),
      array_fill(coalesce(cancelled.reason, 'cancelled by ' || cancelled.actor), array[cardinality(v_locked)]),
        'cancelled', v_now, cancelled.actor, alone => true) c;
    v_done := v_done || v_some;
    v_all := v_all || v_told;
  end loop;
  perform holdfast.end_links(v_links, 'cancelled', v_now);
  select v_done || array_agg(a.id), v_all || array_agg(a.worker) filter (where a.token is not null) into v_done, v_all
  from holdfast.settle_adopted(stored, null, 'cancel', v_now,
    reason => coalesce(cancelled.reason, 'cancelled by ' || cancelled.actor)) a;
  set constraints holdfast.ring deferred;   -- as wake does
  insert into holdfast.bell (worker) select distinct x.worker from unnest(v_all) x(worker);
  return v_done;
end
$$;

-- retry: queue ended jobs (dead, cancelled, done, archived) again: no lease, no error, attempt 0, and the reason kept
-- with the job. The record of failed attempts is kept, and counts in attempts. So are its steps: it goes on where it
-- was. fresh: they are forgotten.
create or replace function holdfast.retry(
  ids uuid[], reason text default null, actor text default null, delay interval default null,
  fresh boolean default false)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  perform holdfast.check_length('delay', delay, '100 years');
  v_done := holdfast.retried(v_stored, reason, actor, delay, coalesce(fresh, false));
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'retried') a;
end
$$;

create or replace function holdfast.retried(
  stored uuid[], reason text, actor text, delay interval, fresh boolean)
returns uuid[]
language sql
as $$
  select holdfast.revive(stored, reason, actor, delay, fresh => retried.fresh) || array(
    select a.id
    from holdfast.settle_adopted(stored, null, 'retry', holdfast.now(),
      delays => array_fill(delay, array[cardinality(stored)]),
      reason => coalesce(retried.reason, 'retried by ' || retried.actor)) a)
$$;

-- revive: queue ended jobs again, and with them those that were cancelled because of them; returns which, by their old
-- ids. as_before: only cancelled ones, with their run_at and attempts. fresh: without their steps. Both are about the
-- jobs with these ids, and not about those that come with them. All keys are taken before any link is locked: who ends
-- the job that has a key holds that, and wants links next. A key that is in use keeps a job from coming back, and so
-- what was cancelled because of it: what has come back without its cause is undone, and the rest done again.
create or replace function holdfast.revive(
  ids uuid[], reason text, actor text, delay interval default null, as_before boolean default false,
  fresh boolean default false)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_with uuid[];
  these  record;
  back   record;
begin
  -- Written in the order of keys, as by an enqueue, but placed in the order in which they ended. Places are drawn
  -- under the table's lock: floors rely on it. From here on no queue's fanout changes.
  lock table holdfast.job in row exclusive mode;
  select l.* into these from holdfast.lock_to_revive(ids, reason, as_before) l;
  v_with := these.others;
  if not these.keyed then
    select q.* into back
    from holdfast.queue_again(these.asked, v_with, reason, actor, delay, as_before, fresh) q;
  else
    loop
      begin
        select q.* into back
        from holdfast.queue_again(these.asked, v_with, reason, actor, delay, as_before, fresh) q;
        these.others := holdfast.with_cause(v_with, back.done, back.links);
        exit when cardinality(these.others) = cardinality(v_with);
        raise exception using errcode = 'HFAGN', message = 'a key keeps back what others were cancelled because of';
      exception when sqlstate 'HFAGN' then
        v_with := these.others;
      end;
    end loop;
  end if;
  perform holdfast.back_to_links(back.links, reason, as_before) where cardinality(back.links) > 0;
  perform holdfast.close_again(these.closed, back.links) where these.closed is not null;
  return back.done;
end
$$;

-- queue_again: revive for jobs that the caller has locked: those that were asked for, and others that come with them.
-- done: the ids of those that came back, and links: the new id and the link of each that has one. If an id has several
-- ended jobs, it takes a dead one, or the last, and leaves the others. A job goes to the part where its queue now keeps
-- it; the part in its id changes with it.
create or replace function holdfast.queue_again(
  asked uuid[], others uuid[], reason text, actor text, delay interval, as_before boolean, fresh boolean,
  out done uuid[], out links uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_found  constant uuid[] := asked || others;
  v_parts  constant smallint[] := array(select distinct holdfast.part_of(i) from unnest(v_found) i);
  v_places bigint[];
  v_name   text;
  back     record;
begin
  done := '{}';
  links := '{}';
  for v_name in
    select q.queue
    from (select distinct e.queue from holdfast.ended e where e.part = any(v_parts) and e.id = any(v_found)) q
    order by holdfast.queue_part(q.queue), q.queue collate "C"
  loop
    v_places := array(
      select nextval('holdfast.pos') from holdfast.ended e
      where e.part = any(v_parts) and e.id = any(v_found) and e.queue = v_name);
    with ended as materialized (
      select e.*, row_number() over (order by e.ended_at, e.id) as nth, h.part as home,
             holdfast.free_id(e.id, h.part) as new_id, q.fair, q.by_kind, l.halted_by = e.id as halts,
             case when not e.was_asked then v_now when as_before then e.run_at
               else v_now + coalesce(queue_again.delay, '0') end as due
      from (
        select distinct on (x.id) x.*
        from (
          select y.part, y.id, y.state, y.queue, y.kind, y.key, y.lane, y.fingerprint, y.run_at, y.ended_at, y.steps,
                 y.link, y.tableoid as in_table, y.ctid as in_row,
                 -- as below, it is looked up in a hash
                 (y.id in (select o.id from unnest(others) o(id))) is not true as was_asked
          from holdfast.ended y
          where y.part = any(v_parts) and y.id = any(v_found)
            and (not as_before or y.state = 'cancelled' or (y.id in (select o.id from unnest(others) o(id))) is true)
          for update skip locked   -- they are locked, except what came meanwhile
        ) x
        order by x.id, x.state = 'dead' desc, x.ended_at desc
      ) e
      left join holdfast.queue q on q.name = e.queue
      cross join lateral (select holdfast.home(e.queue, coalesce(q.fanout, 1), e.lane, e.key, e.id) as part) h
      left join holdfast.lane l on l.part = h.part and l.queue = e.queue and l.name = e.lane
      where e.queue = v_name
    ), queued as (
      insert into holdfast.job
      select j.*
      from ended e
      cross join lateral (
        select case when e.due <= v_now then v_places[e.nth] end as place,
               -- the job that halted its lane goes first in it again
               case when e.lane is not null and e.due <= v_now then coalesce((
                 select j.lane_seq - 1 from holdfast.job j
                 where e.halts and j.part = e.home and j.queue = e.queue and j.lane = e.lane and j.lane_seq is not null
                 order by j.lane_seq limit 1), v_places[e.nth]) end as lane_place
      ) p
      join holdfast.ended was
        on was.part = any(array[e.part]) and was.id = e.id and was.tableoid = e.in_table and was.ctid = e.in_row
      cross join lateral holdfast.job_of_ended(was, e.home, e.new_id, e.queue, e.fair, e.by_kind,
        not (as_before and e.was_asked), e.due, p.place, p.lane_place,
        coalesce(queue_again.reason, 'retried by ' || queue_again.actor)) j
      where e.home is not null
      order by e.kind collate "C", e.key collate "C", e.nth
      on conflict do nothing
      returning id
    ), back as materialized (
      -- asked so that it is looked up in a hash, whatever the planner believes
      select e.* from ended e where (e.new_id in (select q.id from queued q)) is true
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, dead, cancelled, archived)
      select x.part, x.queue, x.kind, sum(x.queued), sum(x.dead), sum(x.cancelled), sum(x.archived)
      from (
        select b.part, b.queue, b.kind, 0 as queued, -(b.state = 'dead')::integer as dead,
               -(b.state = 'cancelled')::integer as cancelled, -(b.state = 'archived')::integer as archived
        from back b
        union all
        select b.home, b.queue, b.kind, 1, 0, 0, 0 from back b
      ) x
      group by x.part, x.queue, x.kind
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select b.part, b.fingerprint, b.kind, b.queue, -count(*)
      from back b
      where b.state = 'dead'
      group by b.part, b.fingerprint, b.kind, b.queue
    ), gone as (
      delete from holdfast.ended e
      using back b
      where e.part = any(array[b.part]) and e.id = b.id and e.tableoid = b.in_table and e.ctid = b.in_row
    ), told as (
      select holdfast.note_jobs(case when as_before and b.was_asked then 'undone' else 'retried' end, b.home,
        array_agg(b.new_id), array_agg(b.queue), array_agg(b.kind), 'queued', queue_again.actor, queue_again.reason,
        v_now, array_agg(case when b.new_id <> b.id then jsonb_build_object('was', b.id) end)) as noted
      from back b
      group by b.home, b.was_asked
    )
    select array_agg(b.id) as ids, array_agg(distinct b.queue) as queues, (select count(t.noted) from told t) as told,
           array_agg(b.id) filter (where b.new_id <> b.id) as old_ids,
           array_agg(b.new_id) filter (where b.new_id <> b.id) as new_ids,
           array_agg(b.queue) filter (where b.new_id <> b.id) as old_queues,
           count(holdfast.keep_steps(b.home, b.new_id, b.steps))
             filter (where b.steps is not null and not (queue_again.fresh and b.was_asked)) as stepped,
           array_agg(array[b.new_id, b.link]) filter (where b.link is not null) as links
    into back
    from back b;
    continue when back.ids is null;
    done := done || back.ids;
    perform holdfast.rename_jobs(back.old_ids, back.new_ids, back.old_queues) where back.old_ids is not null;
    perform holdfast.note_expiry(back.ids, v_now) where as_before;
    perform holdfast.resume_lanes(back.ids, v_now);
    perform holdfast.wake(back.queues, cardinality(back.ids));
    links := links || back.links;
  end loop;
end
$$;

-- refuse_clear_text: refuse to put clear text where one of these jobs has an encrypted payload.
create or replace function holdfast.refuse_clear_text(ids uuid[], changes jsonb)
returns void
language plpgsql stable
as $$
declare
  v_coded uuid;
begin
  if not changes ? 'payload' or holdfast.is_coded(changes -> 'payload') then
    return;
  end if;
  select j.id into v_coded
  from unnest(ids) i(id) cross join lateral holdfast.get(i.id) j
  where holdfast.is_coded(j.payload)
  limit 1;
  if v_coded is not null then
    perform holdfast.refuse('HF222', format('the payload of job %s is encrypted and cannot be edited', v_coded),
      'Or it is in a store. Clear text would be stored in its place.',
      'Cancel the job, and enqueue another by its task.');
  end if;
end
$$;

-- edit: change queued or dead jobs. changes: payload, priority, run_at, max_attempts, lease, headers.
create or replace function holdfast.edit(ids uuid[], changes jsonb, reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_stored constant uuid[] := holdfast.located(ids);
  v_field  text;
  v_locked uuid[];
  v_ended  uuid[];
  v_done   uuid[] := '{}';
  v_run_at timestamptz;
  v_part   smallint;
  v_ids    uuid[];
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
      'Fields are: payload, priority, run_at, max_attempts, lease, headers. To change the queue, use holdfast.move.');
  end if;
  perform holdfast.check_items(jsonb_build_array(jsonb_build_object('kind', 'edited', 'queue', q.queue) || changes))
  from (select distinct j.queue from unnest(v_stored) i(id) cross join lateral holdfast.get(i.id) j) q;
  v_run_at := (changes ->> 'run_at')::timestamptz;

  select l.locked, l.ended into v_locked, v_ended from holdfast.lock_to_change(v_stored) l;
  perform holdfast.refuse_clear_text(v_stored, changes);
  for v_part, v_ids in select p.part, p.ids from holdfast.by_part(v_locked || v_ended) p loop
    with edited as (
      update holdfast.job j
      set payload      = coalesce(changes -> 'payload', j.payload),
          headers      = case when changes ? 'headers' then nullif(changes -> 'headers', 'null') else j.headers end,
          priority     = coalesce(nullif(changes -> 'priority', 'null')::smallint, j.priority),
          max_attempts = greatest(coalesce(nullif(changes -> 'max_attempts', 'null')::smallint, j.max_attempts),
            j.attempt + 1),
          lease_for    = case when changes ? 'lease' then make_interval(secs => (changes ->> 'lease')::double precision)
            else j.lease_for end,
          reason       = coalesce(edit.reason, 'edited by ' || edit.actor, j.reason),
          run_at       = d.run_at,
          -- Put off, it leaves its lane's order and comes back at the end; due, it needs a place there.
          lane_seq = case
            when j.lane is null or j.follow or j.waits is not null or d.run_at > v_now then null
            else coalesce(j.lane_seq, nextval('holdfast.pos'))
          end,
          -- a job that was held back is looked at afresh: it may be another one now
          strike = null,
          blocked = j.waits is not null or j.blocked and j.strike is null and (j.follow or d.run_at <= v_now),
          pos = case
            when d.run_at > v_now or j.waits is not null or j.blocked and j.strike is null then null
            when j.pos is not null and j.priority = coalesce(nullif(changes -> 'priority', 'null')::smallint,
              j.priority) then j.pos
            else nextval('holdfast.pos')
          end
      from (
        select x.id, coalesce(v_run_at, x.run_at) as run_at, holdfast.kept_of(to_jsonb(x), changes) as was
        from holdfast.job x
        where x.part = v_part and x.id = any(v_ids) and x.id = any(v_locked)
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
      perform holdfast.note_jobs('edited', v_part, waiting.ids, waiting.told, waiting.kinds, 'queued', actor, reason,
        v_now, waiting.was);
      perform holdfast.wake(waiting.queues, cardinality(waiting.ids));
    end if;
    with edited as (
      update holdfast.dead d
      set payload      = coalesce(changes -> 'payload', d.payload),
          headers      = case when changes ? 'headers' then nullif(changes -> 'headers', 'null') else d.headers end,
          priority     = coalesce(nullif(changes -> 'priority', 'null')::smallint, d.priority),
          max_attempts = coalesce(nullif(changes -> 'max_attempts', 'null')::smallint, d.max_attempts),
          lease_for    = case when changes ? 'lease' then make_interval(secs => (changes ->> 'lease')::double precision)
            else d.lease_for end,
          reason       = coalesce(edit.reason, 'edited by ' || edit.actor, d.reason)
      from (
        select distinct on (x.id) x.id, x.in_row, holdfast.kept_of(to_jsonb(x), changes) as was
        from (
          select y.*, y.ctid as in_row
          from holdfast.dead y
          where y.part = v_part and y.id = any(v_ids)
          for update skip locked
        ) x
        order by x.id, x.ended_at desc
      ) o
      where d.part = v_part and d.id = o.id and d.ctid = o.in_row
      returning d.id, d.queue, d.kind, o.was
    )
    select array_agg(e.id) as ids, array_agg(e.queue) as told, array_agg(e.kind) as kinds, array_agg(e.was) as was
    into waiting
    from edited e;
    v_done := v_done || waiting.ids;
    if waiting.ids is not null then
      perform holdfast.note_jobs('edited', v_part, waiting.ids, waiting.told, waiting.kinds, 'dead', actor, reason,
        v_now, waiting.was);
    end if;
  end loop;
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'edited') a;
end
$$;

-- move: move queued or dead jobs to another queue. The part in an id changes with the queue, so the job gets a
-- new_id; every lookup still accepts the old one while the job is kept.
create or replace function holdfast.move(ids uuid[], queue text, reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text, new_id uuid)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_ours(queue);
  perform holdfast.refuse_other_node(queue);
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
  v_new    uuid;
  v_moved  boolean;
  v_kind   text;
  v_from   text;
  v_link   uuid;
  v_state  text;
  v_places bigint[];
  v_locked uuid[];
  v_ended  uuid[];
  job      holdfast.job;
  dead     record;
  these    record;
begin
  -- and the table: from here on the target's fanout does not change
  select l.locked, l.ended into v_locked, v_ended from holdfast.lock_to_change(stored) l;
  stored := v_locked || v_ended;
  select q.* into v_target from holdfast.queue q where q.name = moved.queue;
  if v_target.adopted is not null then
    perform holdfast.refuse_adopted(queue);
  end if;
  -- Written in the order of keys, as by an enqueue, but placed in the order of their ids.
  v_places := array(select nextval('holdfast.pos') from unnest(stored));
  for these in
    select o.id, o.nth
    from (select d.id, row_number() over (order by d.id) as nth
      from (select distinct u.id from unnest(stored) u(id)) d) o
    left join lateral (
      select x.kind, x.key from holdfast.job x where x.part = holdfast.part_of(o.id) and x.id = o.id limit 1) j on true
    order by j.kind collate "C", j.key collate "C", o.id
  loop
    v_moved := null;
    v_part := holdfast.part_of(these.id);
    select j.* into job from holdfast.job j
    where j.part = v_part and j.id = these.id and j.id = any(v_locked) and j.token is null and j.queue <> moved.queue;
    if found then
      v_to := holdfast.home(moved.queue, coalesce(v_target.fanout, 1), job.lane, job.key, these.id);
      continue when v_to is null;   -- it has a key and a lane, and the queue is fanned out
      v_new := holdfast.free_id(these.id, v_to);
      begin
        perform holdfast.put_into(job, v_target, moved.queue, v_to, v_new, v_places[these.nth],
          coalesce(moved.reason, 'moved by ' || moved.actor), v_now);
        v_moved := true;
        v_kind := job.kind;
        v_from := job.queue;
        v_link := job.link;
        v_state := 'queued';
      exception when unique_violation or lock_not_available then
        v_moved := false;   -- a live job there has the same key, or is about to
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
      -- of an id that died more than once, the last
      select d.queue, d.kind, d.fingerprint, d.lane, d.key, d.link, d.ctid as in_row into dead from holdfast.dead d
      where d.part = v_part and d.id = these.id and d.queue <> moved.queue
      order by d.ended_at desc limit 1 for update skip locked;
      if found then
        v_to := holdfast.home(moved.queue, coalesce(v_target.fanout, 1), dead.lane, dead.key, these.id);
        continue when v_to is null;
        v_new := holdfast.free_id(these.id, v_to);
        update holdfast.dead d
        set part = v_to, id = v_new, queue = moved.queue, reason = coalesce(moved.reason, d.reason)
        where d.part = v_part and d.id = these.id and d.ctid = dead.in_row;
        insert into holdfast.tally (part, queue, kind, dead)
        values (v_part, dead.queue, dead.kind, -1), (v_to, moved.queue, dead.kind, 1);
        insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
        values (v_part, dead.fingerprint, dead.kind, dead.queue, -1),
          (v_to, dead.fingerprint, dead.kind, moved.queue, 1);
        perform holdfast.resume_lanes(array[these.id], v_now);
        v_moved := true;
        v_kind := dead.kind;
        v_from := dead.queue;
        v_link := dead.link;
        v_state := 'dead';
      end if;
    end if;
    if v_moved then
      perform holdfast.note_jobs('moved', v_to, array[v_new], array[moved.queue], array[v_kind],
        v_state, actor, reason, v_now, array[jsonb_build_object('from', v_from, 'was', these.id)]);
      perform holdfast.rename_jobs(array[these.id], array[v_new], array[v_from]);
      if v_link is not null then
        -- who may see and change its workflow depends on where its jobs are
        update holdfast.member m set queue = moved.queue where m.part = holdfast.part_of(v_link) and m.id = v_link;
      end if;
      id := these.id;
      new_id := v_new;
      return next;
    end if;
  end loop;
end
$$;

-- put_into: move a waiting job from its queue into another. It does not wait for a transaction that is about to take
-- the key there: it already holds the job's own key, so waiting could deadlock.
create or replace function holdfast.put_into(
  job holdfast.job, target holdfast.queue, queue text, part smallint, id uuid, place bigint, reason text,
  at timestamptz)
returns void
language plpgsql
set lock_timeout = '10ms'
as $$
#variable_conflict use_column
begin
  -- deleted first: in a queue of the same part the id stays as it is
  delete from holdfast.job j where j.part = job.part and j.id = job.id;
  insert into holdfast.job
  select j.*
  from holdfast.ended_of(job, null, null, null) e
  cross join lateral holdfast.job_of_ended(e, put_into.part, put_into.id, put_into.queue, target.fair, target.by_kind,
    false, job.run_at, case when job.run_at <= put_into.at then put_into.place end,
    case when job.lane is not null and job.run_at <= put_into.at then put_into.place end,
    coalesce(put_into.reason, job.reason)) j;
  if job.steps is not null then
    update holdfast.step s set part = put_into.part, id = put_into.id where s.part = job.part and s.id = job.id;
  end if;
  if job.waits is not null then
    perform holdfast.keep_waiting(array[put_into.id], array[job.waits]);
  end if;
end
$$;

-- archive: archive ended jobs; they are kept until deleted and can still be retried.
create or replace function holdfast.archive(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
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

-- archived: only_state and ended_before restrict it to the jobs of a queue's policy.
create or replace function holdfast.archived(
  stored uuid[], reason text, actor text, only_state text default null, ended_before timestamptz default null)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_done uuid[] := '{}';
  v_part smallint;
  v_ids  uuid[];
  these  record;
begin
  for v_part, v_ids in select p.part, p.ids from holdfast.by_part(holdfast.lock_ended(stored)) p loop
    -- deleted and inserted, not updated: whoever waits for the row must find it gone, not moved
    with removed as (
      delete from holdfast.ended e
      using (
        select x.tableoid as in_table, x.ctid as in_row, x.part, x.id
        from holdfast.ended x
        where x.part = v_part and x.id = any(v_ids) and x.state <> 'archived'
          and (only_state is null or x.state = only_state) and (ended_before is null or x.ended_at <= ended_before)
        for update skip locked   -- they are locked, except what came meanwhile
      ) l
      where e.part = any(array[l.part]) and e.id = l.id and e.tableoid = l.in_table and e.ctid = l.in_row
      returning e as was, e.queue, e.kind, e.state, e.fingerprint, e.reason
    ), put_away as (
      insert into holdfast.archive
      select e.*
      from removed r
      cross join lateral jsonb_populate_record(r.was, jsonb_build_object('state', 'archived',
        'recent', null, 'reason', coalesce(archived.reason, 'archived by ' || archived.actor, r.reason))) e
      returning id, queue, kind
    ), counted as (
      insert into holdfast.tally (part, queue, kind, dead, cancelled, archived)
      select v_part, r.queue, r.kind, -count(*) filter (where r.state = 'dead'),
             -count(*) filter (where r.state = 'cancelled'), count(*)
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
    perform holdfast.note_jobs('archived', v_part, these.ids, these.queues, these.kinds, 'archived', actor, reason,
      holdfast.now());
    v_done := v_done || these.ids;
    perform holdfast.resume_lanes(these.ids, holdfast.now());
  end loop;
  return v_done;
end
$$;

-- delete: delete jobs permanently. A leased job is refused: cancel it first.
create or replace function holdfast.delete(ids uuid[], reason text default null, actor text default null)
returns table (id uuid, changed boolean, state text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(ids);
  v_done   uuid[];
begin
  v_done := holdfast.deleted(v_stored, reason, actor);
  return query select a.id, a.changed, a.state, a.detail from holdfast.answers(ids, v_stored, v_done, 'deleted') a;
end
$$;

create or replace function holdfast.deleted(stored uuid[], reason text, actor text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_done   uuid[] := '{}';
  v_locked uuid[];
  v_ended  uuid[];
  v_part   smallint;
  v_ids    uuid[];
  v_links  uuid[] := '{}';
  gone     record;
begin
  select l.locked, l.ended into v_locked, v_ended from holdfast.lock_to_end(stored, deleting => true) l;
  for v_part, v_ids in select p.part, p.ids from holdfast.by_part(v_locked || v_ended) p loop
    with waiting as (
      delete from holdfast.job j
      where j.part = v_part and j.id = any(v_ids) and j.id = any(v_locked) and j.token is null
      returning j.id, j.queue, j.kind, j.key, j.lane, 'queued' as state, j.steps, j.link
    ), ended as (
      delete from holdfast.ended e
      using (
        select x.tableoid as in_table, x.ctid as in_row, x.part, x.id
        from holdfast.ended x
        where x.part = v_part and x.id = any(v_ids)
        for update skip locked
      ) l
      where e.part = any(array[l.part]) and e.id = l.id and e.tableoid = l.in_table and e.ctid = l.in_row
      returning e.id, e.queue, e.kind, null::text as key, null::text as lane, e.state, e.link, e.fingerprint
    ), removed as (
      select w.* from waiting w
      union all
      select e.id, e.queue, e.kind, e.key, e.lane, e.state, null, e.link from ended e
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, e.fingerprint, e.kind, e.queue, -count(*)
      from ended e
      where e.state = 'dead'
      group by e.fingerprint, e.kind, e.queue
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, dead, cancelled, archived)
      select v_part, r.queue, r.kind, -count(*) filter (where r.state = 'queued'),
             -count(*) filter (where r.state = 'dead'), -count(*) filter (where r.state = 'cancelled'),
             -count(*) filter (where r.state = 'archived')
      from removed r
      group by r.queue, r.kind
    )
    select array_agg(r.id) as ids, array_agg(r.queue) as queues, array_agg(r.kind) as kinds,
           array_agg(r.id) filter (where r.steps is not null) as stepped,
           jsonb_agg(holdfast.place_of(v_part, r.queue, r.kind, r.key, r.lane))
             filter (where r.key is not null or r.lane is not null) as places, v_links || array_agg(r.link) as links
    into gone
    from removed r;
    continue when gone.ids is null;
    v_done := v_done || gone.ids;
    v_links := gone.links;
    perform holdfast.tell_awaited(gone.ids);
    perform holdfast.note_jobs('deleted', v_part, gone.ids, gone.queues, gone.kinds, null, actor, reason, v_now);
    delete from holdfast.attempt a where a.part = v_part and a.id = any(gone.ids);
    delete from holdfast.line l where l.part = v_part and l.id = any(gone.ids);
    if gone.stepped is not null then
      perform holdfast.forget_steps(gone.stepped);
    end if;
    perform holdfast.resume_lanes(gone.ids, v_now);
    if gone.places is not null then
      perform holdfast.let_next_in(gone.places, v_now);
    end if;
  end loop;
  perform holdfast.end_links(array_remove(v_links, null), 'deleted', v_now);
  return v_done;
end
$$;

-- end_cancelled: end live jobs of one part as cancelled; where a token is given, only if it holds the job.
-- The caller has locked the rows. alone: it tells end_links itself, when it has ended those of other parts too.
create or replace function holdfast.end_cancelled(
  part smallint, ids uuid[], tokens uuid[], reasons text[], how text, at timestamptz, actor text,
  alone boolean default false)
returns table (id uuid, token uuid, worker text, link uuid)
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
    returning j as job, j.part, j.id, j.token, j.worker, j.queue, j.kind, j.key, j.lane, u.reason as why
  ), kept as (
    insert into holdfast.history
    select e.* from removed r cross join lateral holdfast.ended_of(r.job, 'cancelled', end_cancelled.at, r.why) e
  ), leaving as (
    insert into holdfast.leaving as leaving (part, id, token, queue, lane, lane_seq, worker, until)
    select r.part, r.id, r.token, r.queue, r.lane, (r.job).lane_seq, r.worker, (r.job).lease_until
    from removed r
    where (r.job).held and how = 'cancelled'
    -- a job that was cancelled, retried, and claimed with the same token once more
    on conflict (part, id, token) do update set until = greatest(leaving.until, excluded.until)
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued, leased, cancelled)
    select r.part, r.queue, r.kind, -count(*) filter (where r.token is null),
           -count(*) filter (where r.token is not null), count(*)
    from removed r
    group by r.part, r.queue, r.kind
  )
  select array_agg(r.id) as ids, array_agg(r.token) as tokens, array_agg(r.worker) as workers,
         array_agg(r.queue) as queues, array_agg(r.kind) as kinds, min(r.why) as why,
         array_agg((r.job).link) as links, array_agg(r.id) filter (where r.token is not null) as leased_ids,
         array_agg(r.token) filter (where r.token is not null) as leased_tokens,
         array_agg(r.id) filter (where (r.job).steps is not null) as stepped,
         jsonb_agg(holdfast.place_of(r.part, r.queue, r.kind, r.key, r.lane))
           filter (where r.key is not null or r.lane is not null) as places
  into gone
  from removed r;
  if gone.ids is null then
    return;
  end if;
  perform holdfast.tell_awaited(gone.ids);
  perform holdfast.note_jobs('cancelled', part, gone.ids, gone.queues, gone.kinds, 'cancelled', actor, gone.why, at,
    workers => gone.workers);
  if gone.leased_ids is not null then
    perform holdfast.mark_taken(gone.leased_ids, gone.leased_tokens, how);
  end if;
  if gone.stepped is not null then
    perform holdfast.forget_steps(gone.stepped);
  end if;
  if gone.places is not null then
    perform holdfast.let_next_in(gone.places, at);
  end if;
  perform holdfast.end_links(array_remove(gone.links, null), 'cancelled', at) where not alone;
  return query
    select u.id, u.token, u.worker, u.link
    from unnest(gone.ids, gone.tokens, gone.workers, gone.links) u(id, token, worker, link);
end
$$;

-- kept_of: what is recorded of a job before it is edited: the fields that change, if they are not large.
create or replace function holdfast.kept_of(job jsonb, changes jsonb)
returns jsonb
language sql immutable
as $$
  select jsonb_build_object('was', coalesce(
           jsonb_object_agg(k.name, f.value) filter (where pg_column_size(f.value) < 8192), '{}'))
  from jsonb_object_keys(changes) k(name)
  cross join lateral (select job -> case k.name when 'lease' then 'lease_for' else k.name end as value) f
$$;

-- lock_jobs: lock live jobs, always in the order of their ids, so that calls that share jobs wait for each other and
-- do not deadlock; those that wait for others come last, since whoever ends those releases them. The table is locked
-- first, because every writer needs it: locking a job before the table could deadlock with a change of fanout. Returns
-- the locked ids: a job that came meanwhile is not among them, and must not be changed by callers that ignore tokens.
create or replace function holdfast.lock_jobs(ids uuid[])
returns uuid[]
language plpgsql
as $$
begin
  lock table holdfast.job in row exclusive mode;
  return array(
    select u.id
    from (
      select d.id
      from (select distinct x.id from unnest(ids) x(id)) d
      left join lateral (
        select y.waits is not null as later from holdfast.job y
        where y.part = holdfast.part_of(d.id) and y.id = d.id limit 1) w on true
      order by coalesce(w.later, false), d.id
    ) u
    cross join lateral (
      select from holdfast.job j where j.part = holdfast.part_of(u.id) and j.id = u.id for update) j);
end
$$;

-- lock_loose: the same, without those that wait for others. Callers that go on to lock receipts, counters or keys lock
-- these first, and those that wait at the end, if at all.
create or replace function holdfast.lock_loose(ids uuid[])
returns uuid[]
language plpgsql
set enable_seqscan = off
as $$
begin
  lock table holdfast.job in row exclusive mode;
  return array(
    select u.id
    from (select distinct x.id from unnest(ids) x(id) order by x.id) u
    cross join lateral (
      select from holdfast.job j
      where j.part = holdfast.part_of(u.id) and j.id = u.id and j.waits is null for update) j);
end
$$;

-- lock_to_end: lock live jobs that are to be ended, whether they run, are ready or wait for others, with all that their
-- ends change: receipts, then links, counters and jobs that wait. deleting: the ended jobs with these ids as well, and
-- what counts them. locked and ended: which of the ids are. If somebody else is at a job that waits or has just been
-- let in, everything is given back, and locked again behind them.
create or replace function holdfast.lock_to_end(
  ids uuid[], deleting boolean default false, out locked uuid[], out ended uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_rest uuid[] := '{}';
begin
  for turn in 1 .. 100 loop
    begin
      perform holdfast.let_pass(v_rest);
      locked := holdfast.lock_loose(ids);
      v_rest := array(select x from unnest(ids) x except select y from unnest(locked) y);
      ended := case when deleting then holdfast.lock_ended(ids) else '{}' end;
      perform holdfast.lock_ledger(array(
        select j.token
        from unnest(locked) u(id)
        join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
        where j.token is not null));
      perform holdfast.lock_counts('{}', locked || v_rest, array(
        select e.link
        from unnest(ended) u(id)
        join holdfast.ended e on e.part = any(array[holdfast.part_of(u.id)]) and e.id = u.id and e.link is not null));
      locked := locked || holdfast.lock_rest(v_rest);
      return;
    exception when sqlstate 'HFAGN' then
      null;
    end;
  end loop;
  perform holdfast.give_up();
end
$$;

-- lock_to_change: lock live jobs that are to be changed and live on, those that wait for others last, and the ended
-- jobs with these ids before those. As above.
create or replace function holdfast.lock_to_change(ids uuid[], out locked uuid[], out ended uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_rest uuid[] := '{}';
begin
  for turn in 1 .. 100 loop
    begin
      perform holdfast.let_pass(v_rest);
      locked := holdfast.lock_loose(ids);
      v_rest := array(select x from unnest(ids) x except select y from unnest(locked) y);
      ended := holdfast.lock_ended(ids);
      locked := locked || holdfast.lock_rest(v_rest);
      return;
    exception when sqlstate 'HFAGN' then
      null;
    end;
  end loop;
  perform holdfast.give_up();
end
$$;

-- lock_rest: lock jobs that wait for others, when all else is locked, without waiting for any: one that somebody else
-- has may be let in by them, and then be held by who wants what the caller has. Raises HFAGN if somebody has one, or it
-- waits no longer: then more has to be locked for it, and before.
create or replace function holdfast.lock_rest(ids uuid[])
returns uuid[]
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_locked constant uuid[] := array(
    select u.id
    from (select distinct x.id from unnest(ids) x(id) order by x.id) u
    cross join lateral (
      select from holdfast.job j
      where j.part = holdfast.part_of(u.id) and j.id = u.id and j.waits is not null for update skip locked) j);
begin
  if exists (
    select from (select x from unnest(ids) x except select y from unnest(v_locked) y) u(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id) then
    raise exception using errcode = 'HFAGN', message = 'somebody else is at a job that waits or did';
  end if;
  return v_locked;
end
$$;

-- give_up: refuse a call that has given everything back too often.
create or replace function holdfast.give_up()
returns void
language plpgsql
as $$
begin
  raise exception using
    errcode = 'serialization_failure',
    message = 'jobs that wait for others were changed by others too often to be locked',
    hint = 'Repeat the transaction.';
end
$$;

-- lock_ended: the same for ended jobs, after live ones; returns which of these ids have ended. A job that was waited
-- for may be in another table by then: callers change only rows that they find unlocked.
create or replace function holdfast.lock_ended(ids uuid[])
returns uuid[]
language plpgsql
as $$
declare
  v_found constant uuid[] := array(
    select distinct e.id
    from unnest(ids) u(id)
    cross join lateral (
      select x.id from holdfast.ended x where x.part = holdfast.part_of(u.id) and x.id = u.id limit 1) e
    order by e.id);
begin
  perform from unnest(v_found) u(id)
  cross join lateral (
    select from holdfast.ended x where x.part = holdfast.part_of(u.id) and x.id = u.id for update) x;
  return v_found;
end
$$;

-- by_part: ids by part: callers change the jobs of one part at a time, and only parts that have some.
create or replace function holdfast.by_part(ids uuid[])
returns table (part smallint, ids uuid[])
language sql immutable
as $$
  select holdfast.part_of(i), array_agg(distinct i) from unnest(by_part.ids) i group by 1 order by 1
$$;

-- resume_lanes: resume lanes whose dead jobs were retried, archived or deleted. A lane may be in another part than
-- the job that halted it, if fanout has changed since.
create or replace function holdfast.resume_lanes(ids uuid[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  perform holdfast.unblock(r.part, array_agg(r.queue), array_agg(r.name), resume_lanes.at)
  from holdfast.resumed_lanes(ids) r
  group by r.part;
end
$$;

create or replace function holdfast.resumed_lanes(ids uuid[])
returns table (part smallint, queue text, name text)
language plpgsql
as $$
#variable_conflict use_column
begin
  return query
    update holdfast.lane l
    set halted_by = null
    where l.halted_by = any(ids)
    returning l.part, l.queue, l.name;
end
$$;

-- locate: the id a job is stored under, null if there is none. It differs from the given id if the job was moved, or
-- if its queue has fanout and the id was created before its part was known. Otherwise an id with the same number and
-- another part belongs to another job. queue: only a job of this queue.
create or replace function holdfast.locate(id uuid, queue text default null)
returns uuid
language plpgsql stable
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_id   uuid := id;
  v_next uuid;
begin
  if holdfast.part_of(id) >= 64 then
    return id;   -- of an adopted table, where ids do not change
  end if;
  for hop in 1 .. 64 loop
    if exists (select from holdfast.job j where j.part = holdfast.part_of(v_id) and j.id = v_id
      and (locate.queue is null or hop > 1 or j.queue = locate.queue))
       or exists (select from holdfast.ended e where e.part = holdfast.part_of(v_id) and e.id = v_id
         and (locate.queue is null or hop > 1 or e.queue = locate.queue)) then
      return v_id;
    end if;
    select a.stored into v_next from holdfast.alias a
    where a.part = holdfast.part_of(v_id) and a.id = v_id
      and (locate.queue is null or hop > 1 or a.queue = locate.queue);
    exit when not found;
    v_id := v_next;
  end loop;
  if not exists (select from holdfast.queue q where q.fanout > 1) then
    return null;
  end if;
  -- Probed one by one: two conditions joined by `or` could be answered by reading both tables.
  return (
    select f.id
    from (select holdfast.stamp(locate.id, p::smallint) as id, p::smallint as part from generate_series(0, 63) p) s
    cross join lateral (
      (select j.id, j.queue from holdfast.job j where j.part = s.part and j.id = s.id limit 1)
      union all
      (select e.id, e.queue from holdfast.ended e where e.part = s.part and e.id = s.id limit 1)
    ) f
    where case when locate.queue is null then holdfast.queue_part(f.queue) = holdfast.part_of(locate.id)
      else f.queue = locate.queue end
    limit 1);
end
$$;

-- rename_jobs: record that jobs have new ids, so that the old ones still work. Their failed attempts and their lines
-- stay with them. Who waits for the end of one is notified, and has to ask again. queues are those in which they had
-- the old ids. Parallel arrays.
create or replace function holdfast.rename_jobs(old_ids uuid[], new_ids uuid[], queues text[])
returns void
language sql
as $$
  insert into holdfast.alias as a (part, id, queue, stored, at)
  select holdfast.part_of(u.old_id), u.old_id, u.queue, u.new_id, holdfast.now()
  from unnest(old_ids, new_ids, queues) u(old_id, new_id, queue)
  where u.old_id <> u.new_id
  on conflict (part, id) do update set queue = excluded.queue, stored = excluded.stored, at = excluded.at;
  -- whoever comes back to an id it had must not go round in circles
  delete from holdfast.alias a
  using unnest(old_ids, new_ids) u(old_id, new_id)
  where a.part = any(array[holdfast.part_of(u.new_id)]) and a.id = u.new_id and u.old_id <> u.new_id;
  update holdfast.attempt a
  set part = holdfast.part_of(u.new_id), id = u.new_id
  from unnest(old_ids, new_ids) u(old_id, new_id)
  where a.part = any(array[holdfast.part_of(u.old_id)]) and a.id = u.old_id and u.old_id <> u.new_id;
  update holdfast.line l
  set part = holdfast.part_of(u.new_id), id = u.new_id
  from unnest(old_ids, new_ids) u(old_id, new_id)
  where l.part = any(array[holdfast.part_of(u.old_id)]) and l.id = u.old_id and u.old_id <> u.new_id;
  select holdfast.note_expiry(new_ids, holdfast.now());
  select holdfast.tell_awaited(array(
    select u.old_id from unnest(old_ids, new_ids) u(old_id, new_id) where u.old_id <> u.new_id));
$$;

-- forget_aliases: delete old ids of jobs that no longer exist, after an hour in which their enqueue may be repeated.
-- Old ids of existing jobs go to the end of the list to check.
create or replace function holdfast.forget_aliases(most integer default 500)
returns bigint
language plpgsql
as $$
declare
  v_gone bigint;
begin
  with old as materialized (
    select a.part, a.id, a.stored
    from holdfast.alias a
    where a.at < holdfast.now() - interval '1 hour'
    order by a.at
    limit most
    for update skip locked
  ), judged as materialized (
    select o.part, o.id,
           exists (select from holdfast.job j where j.part = holdfast.part_of(o.stored) and j.id = o.stored)
           or exists (select from holdfast.ended e where e.part = holdfast.part_of(o.stored) and e.id = o.stored)
           or exists (select from holdfast.alias n where n.part = holdfast.part_of(o.stored)
             and n.id = o.stored) as there
    from old o
  ), kept as (
    update holdfast.alias a set at = holdfast.now()
    from judged j
    where j.there and a.part = j.part and a.id = j.id
  ), gone as (
    delete from holdfast.alias a
    using judged j
    where not j.there and a.part = j.part and a.id = j.id
    returning 1
  )
  select count(*) into v_gone from gone;
  return v_gone;
end
$$;

-- free_id: the id for a job that moves into this part: the same number, unless another job there has it.
create or replace function holdfast.free_id(id uuid, part smallint)
returns uuid
language sql volatile
as $$
  select case
    when part is null or holdfast.part_of(id) = part then id
    when exists (select from holdfast.job j where j.part = free_id.part
      and j.id = holdfast.stamp(free_id.id, free_id.part))
      or exists (select from holdfast.ended e where e.part = free_id.part
        and e.id = holdfast.stamp(free_id.id, free_id.part))
      then holdfast.id_in(part)
    else holdfast.stamp(id, part)
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

-- answers: one row per id that an operator gave: whether it changed, its state now, and why nothing changed.
create or replace function holdfast.answers(ids uuid[], stored uuid[], done uuid[], verbed text)
returns table (id uuid, changed boolean, state text, detail text)
language sql stable
as $$
  select
    u.id, d.id is not null, j.state,
    case
      when d.id is not null then null
      when holdfast.part_of(u.stored) >= 64 and holdfast.why_not_written(u.stored) is not null
        then holdfast.why_not_written(u.stored)
      when j.state is null then format('no job has the id %s', u.id)
      when holdfast.part_of(u.stored) >= 64 and verbed not in ('retried', 'cancelled') then
        format('job %s is a row of an adopted table and cannot be %s', u.id, verbed)
      when verbed = 'retried' and j.state in ('dead', 'cancelled', 'done', 'archived') and j.key is not null
        and j.lane is not null
        and exists (select from holdfast.queue q where q.name = j.queue and q.fanout > 1) then
        format('queue %L has fanout: a job there can have a key or a lane, not both', j.queue)
      when verbed = 'retried' and j.state in ('dead', 'cancelled', 'done', 'archived')
        then format('a live job has the same key %L', j.key)
      when verbed = 'moved' and j.state in ('queued', 'dead') and j.key is not null and j.lane is not null then
        'it is already in that queue, a live job there has the same key, or that queue has fanout and its jobs can '
          'have a key or a lane, not both'
      when verbed = 'moved' and j.state in ('queued', 'dead')
        then 'it is already in that queue, or a live job there has the same key'
      when verbed = 'deleted' and j.state = 'leased'
        then format('job %s is leased by %s and cannot be deleted; cancel it first', u.id, j.worker)
      else format('job %s is %s and cannot be %s', u.id, j.state, verbed)
    end
  from unnest(ids, stored) with ordinality u(id, stored, nth)
  left join (select distinct x.id from unnest(done) x(id)) d on d.id = u.stored
  left join lateral holdfast.get(u.stored) j on true
  order by u.nth
$$;
