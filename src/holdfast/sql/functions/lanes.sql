-- Lanes. A job in a lane is ready, blocked behind others, or scheduled. The claim decides: it locks the lane's row in
-- holdfast.lane and counts the slots in use from the jobs themselves, so that a crash cannot leak one. A call that
-- frees a slot unblocks the next job, as a hint; a sweep repairs what was missed.

-- pick_lanes: which jobs of the lanes in the ready order may start now. Jobs that may not are removed from the ready
-- order (blocked), so that claims do not find them again before it is their turn. It never waits: a lane or a job
-- that is locked is skipped. It reads without locks, and then locks only the lanes that it takes a job from: a claim
-- whose transaction stays open must not block other lanes. Fewer than max_jobs are chosen only if no lane can start
-- another.
create or replace function holdfast.pick_lanes(
  queue_row holdfast.queue, part smallint, floors bigint[], max_jobs integer, kinds text[], at timestamptz,
  out chosen tid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_page   integer := greatest(max_jobs, 50);
  v_open   text[];     -- of each job that this claim could start, its lane; in the order in which they start
  v_next   text[];     -- lanes that are tried next
  v_begun  uuid[] := '{}';
  v_strikes constant boolean := exists (
    select from holdfast.strike s
    where s.ended_at is null and s.expires_at > at and coalesce(s.queue = queue_row.name, true));
  seen     record;
  heads    record;
begin
  while cardinality(v_begun) < max_jobs loop
    select array_agg(c.id) as ids, array_agg(distinct c.lane) as names, array_agg(c.nth) as nths,
           array_agg(c.pos) as places
    into seen
    from (
      select r.id, r.lane, f.nth, r.pos
      from unnest(floors) with ordinality as f(floor, nth)
      cross join lateral (
        select j.id, j.lane, j.pos
        from holdfast.job j
        where j.part = pick_lanes.part and j.queue || E'\n' = queue_row.name || E'\n'
          and j.priority = (10 - f.nth)::smallint
          and j.pos >= f.floor and j.token is null and j.lane is not null   -- spelt as in job_ready_lane
          and (kinds is null or j.kind = any(kinds))
        order by j.pos
        limit v_page
      ) r
      limit v_page
    ) c;
    exit when seen.ids is null;

    select coalesce(array_agg(h.id), '{}') as ids,
           coalesce(array_agg(h.lane order by h.priority desc, h.lane_seq) filter (where h.startable), '{}') as open
    into heads
    from (
      select x.id, x.lane, x.priority, x.lane_seq,
             x.run_at <= at and (kinds is null or x.kind = any(kinds))
             and (not v_strikes or not coalesce(holdfast.held_back(queue_row.name, x.kind, (
               select j.payload from holdfast.job j where j.part = pick_lanes.part and j.id = x.id limit 1), at),
                      false)) as startable
      from holdfast.lane_heads(queue_row, pick_lanes.part, seen.names, at) x
      offset 0
    ) h;
    -- Where this claim can start nothing, whatever is not next in line makes room.
    perform holdfast.block_unlocked(
      queue_row, pick_lanes.part, seen.ids, array(select n from unnest(seen.names) n where n <> all(heads.open)),
        heads.ids, at);
    v_open := heads.open;
    while cardinality(v_begun) < max_jobs and cardinality(v_open) > 0 loop
      v_next := v_open[1 : max_jobs - cardinality(v_begun)];
      v_open := array(select o.name from unnest(v_open) with ordinality o(name, nth) where o.name <> all(v_next)
        order by o.nth);
      v_begun := v_begun || holdfast.start_lanes(
        queue_row, pick_lanes.part, array(select distinct n from unnest(v_next) n), seen.ids,
        max_jobs - cardinality(v_begun), kinds, at,
        v_strikes);
    end loop;
    exit when cardinality(seen.ids) < v_page;
    floors := holdfast.floors_after(floors, seen.nths, seen.places);
    v_page := least(v_page * 2, 2000);
  end loop;

  chosen := array(
    select j.ctid
    from unnest(v_begun) u(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id);
end
$$;

-- start_lanes: lock those of the lanes that are free, and return the jobs that start now. Of the jobs found, those
-- that are not next in their lane leave the ready order.
create or replace function holdfast.start_lanes(
  queue_row holdfast.queue, part smallint, names text[], met uuid[], max_jobs integer, kinds text[], at timestamptz,
    strikes boolean)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_locked constant text[] := holdfast.lock_lanes(part, queue_row.name, names);
  v_heads  uuid[];
  v_start  uuid[];
begin
  if cardinality(v_locked) = 0 then
    return '{}';
  end if;
  at := holdfast.clock();   -- behind what may wait: starts are counted from when they are made
  if exists (select from holdfast.lane l where l.part = start_lanes.part and l.queue = queue_row.name
    and l.name = any(v_locked) and l.rate_limit is not null) then
    perform holdfast.no_starts_ahead(start_lanes.part, queue_row.name, v_locked, at);
  end if;
  v_heads := array(
    select h.id from holdfast.lane_heads(queue_row, start_lanes.part, v_locked, at) h
      order by h.priority desc, h.lane_seq);
  v_start := array(
    select s.id
    from (
      select j.id, u.nth
      from unnest(v_heads) with ordinality u(id, nth)
      cross join lateral (
        select x.id
        from holdfast.job x
        where x.part = start_lanes.part and x.id = u.id
          and x.token is null and x.run_at <= at and (kinds is null or x.kind = any(kinds))
          and (not strikes or not coalesce(holdfast.held_back(x.queue, x.kind, x.payload, at), false))
        for update skip locked
      ) j
      limit max_jobs
    ) s
    order by s.nth);

  perform holdfast.block(start_lanes.part, met, v_locked, v_heads);
  -- Heads that stay behind for want of room become ready, unless someone is at them.
  update holdfast.job j
  set pos = nextval('holdfast.pos'), blocked = false
  from (
    select h.part, h.id
    from unnest(v_heads) u(id)
    cross join lateral (
      select x.part, x.id
      from holdfast.job x
      where x.part = holdfast.part_of(u.id) and x.id = u.id and not x.id = any(v_start) and x.blocked and x.run_at <= at
      for update skip locked
    ) h
    offset 0
  ) h
  where j.part = any(array[h.part]) and j.id = h.id;
  update holdfast.job j
  set blocked = false
  from unnest(v_start) u(id)
  where j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.blocked;

  insert into holdfast.rate_use (part, queue, lane, at, starts)
  select start_lanes.part, queue_row.name, l.name, start_lanes.at, count(*)
  from unnest(v_start) u(id)
  join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
  cross join lateral (
    select x.name from holdfast.lane x
    where x.part = j.part and x.queue = j.queue and x.name = j.lane and x.rate_limit is not null
    limit 1
  ) l
  group by l.name;
  return v_start;
end
$$;

-- block: remove jobs from the ready order that are not next in these lanes. Returns how many.
create or replace function holdfast.block(part smallint, met uuid[], names text[], heads uuid[])
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_moved integer;
begin
  -- Jobs are always reached by joining their ids, never by `part = … and id = any(…)`: an older
  -- planner that believes the table is tiny would read the whole part instead. Nor is `pos is not null` said, which
  -- would offer it the index of the ready order.
  update holdfast.job j
  set pos = null, blocked = true
  from (
    select x.part, x.id
    from unnest(met) u(id)
    cross join lateral (
      select y.part, y.id
      from holdfast.job y
      where y.part = block.part and y.id = u.id and y.token is null and coalesce(y.pos, 0) > 0 and y.lane = any(names)
        and y.id <> all(heads)
      for update skip locked
    ) x
    offset 0
  ) b
  where j.part = any(array[b.part]) and j.id = b.id;
  get diagnostics v_moved = row_count;
  return v_moved;
end
$$;

-- block_unlocked: the same for lanes that are not locked. A call that frees a slot between the read and the block
-- finds the next job still in the ready order and unblocks nothing: so check again afterwards.
create or replace function holdfast.block_unlocked(
  queue_row holdfast.queue, part smallint, met uuid[], names text[], heads uuid[], at timestamptz)
returns void
language plpgsql
as $$
begin
  if cardinality(names) > 0 and holdfast.block(part, met, names, heads) > 0 then
    perform holdfast.unblock(part, array_fill(queue_row.name, array[cardinality(names)]), names, at);
  end if;
end
$$;

-- lock_lanes: lock those of the lanes that no other claim has locked. The first claim of a lane creates its row; it
-- must not wait for another claim that is creating it.
create or replace function holdfast.lock_lanes(part smallint, queue text, names text[])
returns text[]
language plpgsql
as $$
#variable_conflict use_column
begin
  lock table holdfast.job in row exclusive mode;   -- before the lanes, which move when their queue is fanned out
  insert into holdfast.lane (part, queue, name)
  select lock_lanes.part, lock_lanes.queue, n.name
  from unnest(names) n(name)
  where (select l.name from holdfast.lane l where l.part = lock_lanes.part and l.queue = lock_lanes.queue
    and l.name = n.name) is null
    -- in 1024 buckets: a claim of many new lanes must not fill the lock table
    and pg_try_advisory_xact_lock(4916, hashtext(lock_lanes.queue || E'\n' || n.name) & 1023)
  order by n.name
  on conflict do nothing;
  return array(
    select l.name
    from holdfast.lane l
    where l.part = lock_lanes.part and l.queue = lock_lanes.queue and l.name = any(names)
    order by l.name
    for update skip locked);
end
$$;

-- lane_heads: the next jobs of each lane: as many as it has free slots, in order. A scheduled job at the head keeps
-- its slot; a halted lane has none.
create or replace function holdfast.lane_heads(queue_row holdfast.queue, part smallint, names text[], at timestamptz)
returns table (id uuid, lane text, kind text, priority smallint, lane_seq bigint, run_at timestamptz, blocked boolean)
language sql stable
rows 100
as $$
  select h.id, n.name, h.kind, h.priority, h.lane_seq, h.run_at, h.blocked
  from unnest(names) n(name)
  left join lateral (
    select x.lane_limit, x.rate_limit, x.rate_period, x.halted_by
    from holdfast.lane x
    where x.part = lane_heads.part and x.queue = (queue_row).name and x.name = n.name
    limit 1
  ) l on true
  cross join lateral (
    select
      coalesce(l.lane_limit, (queue_row).lane_limit)
      - (select count(*) from holdfast.job j
         where j.part = lane_heads.part and j.queue = (queue_row).name and j.lane = n.name and j.held)
      - (select count(*) from holdfast.leaving g
         where g.part = lane_heads.part and g.queue = (queue_row).name and g.lane = n.name) as slots,
      case when l.rate_limit is null then 2147483647 else l.rate_limit - coalesce((
        select sum(u.starts) from holdfast.rate_use u
        where u.part = lane_heads.part and u.queue = (queue_row).name and u.lane = n.name
          and u.at > lane_heads.at - l.rate_period and u.at <= lane_heads.at), 0) end as starts
  ) free
  cross join lateral (
    select j.id, j.kind, j.priority, j.lane_seq, j.run_at, j.blocked
    from holdfast.job j
    where j.part = lane_heads.part and j.queue = (queue_row).name and j.lane = n.name
      and j.lane_seq is not null and j.token is null
    order by j.lane_seq
    limit greatest(least(free.slots, free.starts), 0)
  ) h
  where l.halted_by is null
$$;

-- unblock: add the next jobs of these lanes to the ready order, after a slot was freed; queues and lanes are
-- parallel. A hint: it takes no lane lock and skips locked jobs.
create or replace function holdfast.unblock(part smallint, queues text[], lanes text[], at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_queue holdfast.queue;
  v_name  text;
  v_lanes text[];
  v_woken integer;
  v_ready integer := 0;
begin
  for v_name, v_lanes in
    select u.queue, array_agg(distinct u.lane) from unnest(queues, lanes) u(queue, lane) group by u.queue
      order by u.queue
  loop
    select q.* into v_queue from holdfast.queue q where q.name = v_name;
    v_queue.name := v_name;
    update holdfast.job j
    set pos = case when j.run_at <= at then nextval('holdfast.pos') end, blocked = false
    from (
      select b.part, b.id
      from holdfast.lane_heads(v_queue, unblock.part, v_lanes, at) h
      cross join lateral (
        select x.part, x.id
        from holdfast.job x
        where x.part = unblock.part and x.id = h.id and x.blocked and not x.follow
        for update skip locked
      ) b
      offset 0
    ) b
    where j.part = any(array[b.part]) and j.id = b.id;
    get diagnostics v_woken = row_count;
    if v_woken > 0 then
      v_ready := v_ready + v_woken;
      perform holdfast.wake(array[v_name], v_woken);
    end if;
  end loop;
  return v_ready;
end
$$;

-- let_go: the workers of cancelled jobs have stopped: free their slots. ids and tokens are parallel; a pair that no
-- longer holds a slot is skipped.
create or replace function holdfast.let_go(ids uuid[], tokens uuid[], at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_freed integer := 0;
  these   record;
begin
  if not exists (select from holdfast.leaving) then
    return 0;
  end if;
  for these in
    with gone as (
      -- A reap that frees one now may wait for what the caller holds.
      delete from holdfast.leaving g
      where g.ctid = any(array(
        select y.ctid
        from unnest(ids, tokens) x(id, token)
        join holdfast.leaving y on y.part = holdfast.part_of(x.id) and y.id = x.id and y.token = x.token
        for update of y skip locked))
      returning g.part, g.queue, g.lane
    )
    select g.part, array_agg(g.queue) as queues, array_agg(g.queue) filter (where g.lane is not null) as lane_queues,
           array_agg(g.lane) filter (where g.lane is not null) as lanes, count(*) as slots
    from gone g
    group by g.part
    order by g.part
  loop
    v_freed := v_freed + these.slots;
    if these.lanes is not null then
      perform holdfast.unblock(these.part, these.lane_queues, these.lanes, at);
    end if;
    perform holdfast.wake(these.queues, these.slots);   -- for jobs that only the limit kept waiting
  end loop;
  return v_freed;
end
$$;

-- let_go_expired: free the slots of cancelled jobs whose leases ended before cut, of one queue or of all.
create or replace function holdfast.let_go_expired(cut timestamptz, at timestamptz, only_queue text default null)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ids    uuid[];
  v_tokens uuid[];
begin
  if not exists (select from holdfast.leaving) then
    return 0;
  end if;
  select array_agg(g.id), array_agg(g.token) into v_ids, v_tokens
  from (
    select x.id, x.token
    from holdfast.leaving x
    where x.until <= cut and (only_queue is null or x.queue = only_queue)
    order by x.id
    limit 1000
    for update skip locked
  ) g;
  return case when v_ids is null then 0 else holdfast.let_go(v_ids, v_tokens, at) end;
end
$$;

-- unfollow: jobs with these keys have ended; a waiting follow-up takes the place. Parallel arrays. A hint, like
-- unblock: the caller already holds jobs, and the follow-up may have any id, so a locked one is left to the sweep.
-- Waiting for it could deadlock.
create or replace function holdfast.unfollow(part smallint, queues text[], kinds text[], keys text[], at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ids   uuid[];
  v_ready integer;
begin
  v_ids := array(
    select f.id
    from unnest(queues, kinds, keys) u(queue, kind, key)
    cross join lateral (
      select x.id
      from holdfast.job x
      where x.part = unfollow.part and x.queue = u.queue and x.kind = u.kind and x.key = u.key and x.follow
      for update skip locked
    ) f);
  if cardinality(v_ids) = 0 then
    return 0;
  end if;
  update holdfast.job j
  set follow = false, blocked = j.waits is not null,
      lane_seq = case when j.lane is not null and j.run_at <= at and j.waits is null then nextval('holdfast.pos') end,
      pos = case when j.run_at <= at and j.waits is null then nextval('holdfast.pos') end
  from unnest(v_ids) u(id)
  where j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.follow
    and not exists (
      select from holdfast.job h
      where h.part = unfollow.part and h.queue = j.queue and h.kind = j.kind and h.key = j.key and not h.follow);
  get diagnostics v_ready = row_count;
  if v_ready > 0 then
    perform holdfast.wake(queues, v_ready);
  end if;
  return v_ready;
end
$$;

-- lane_part: the part in which a lane is.
create or replace function holdfast.lane_part(queue text, lane text)
returns smallint
language sql stable
as $$
  select holdfast.home(lane_part.queue, holdfast.fanout_of(lane_part.queue), lane_part.lane, null, null)
$$;

-- lane_set: change the settings of a lane; null restores the queue's setting.
-- settings: limit, on_failure (skip, retry, halt), rate_limit, rate_period (seconds), halted (false resumes).
create or replace function holdfast.lane_set(queue text, lane text, settings jsonb, actor text default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_field  text;
  v_part   smallint;
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.named('lane', lane);
  if settings is distinct from '{"halted": false}' then   -- jobs that were left here when the queue moved go on here
    perform holdfast.refuse_other_node(queue);
  end if;
  if settings is null or jsonb_typeof(settings) <> 'object' then
    perform holdfast.refuse('HF221', 'settings must be a JSON object', null, 'For example {"limit": 2}.');
  end if;
  select k into v_field from jsonb_object_keys(settings) k
  where not k = any('{limit,on_failure,rate_limit,rate_period,halted}') limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF221', format('lane setting %L is unknown', v_field), null,
      'Settings are: limit, on_failure, rate_limit, rate_period, halted.');
  end if;
  lock table holdfast.job in row exclusive mode;   -- from here on the queue's fanout does not change
  v_part := holdfast.lane_part(queue, lane);
  insert into holdfast.lane (part, queue, name) values (v_part, lane_set.queue, lane_set.lane) on conflict do nothing;
  begin
    update holdfast.lane l
    set lane_limit  = case when settings ? 'limit' then (settings ->> 'limit')::integer else l.lane_limit end,
        on_failure  = case when settings ? 'on_failure' then settings ->> 'on_failure' else l.on_failure end,
        rate_limit  = case when settings ? 'rate_limit' then (settings ->> 'rate_limit')::integer else l.rate_limit end,
        rate_period = case when settings ? 'rate_period'
        then make_interval(secs => (settings ->> 'rate_period')::double precision) else l.rate_period end,
        halted_by   = case when settings -> 'halted' = 'false' then null else l.halted_by end
    where l.part = v_part and l.queue = lane_set.queue and l.name = lane_set.lane;
  exception when check_violation or invalid_text_representation or numeric_value_out_of_range
    or datetime_field_overflow then
    perform holdfast.refuse('HF221', format('settings %s are not valid for a lane', settings), sqlerrm,
      'limit is at least 1; on_failure is skip, retry or halt; rate_limit and rate_period go together.');
  end;
  perform holdfast.note('lane_set', actor, null, queue, jsonb_build_object('lane', lane, 'settings', settings));
  perform holdfast.unblock(v_part, array[queue], array[lane], holdfast.clock());
end
$$;

-- lane_release: unblock a lane that is stuck. A halted lane is resumed; a job that holds the lane counts as expired
-- if it was claimed more than a minute ago by a worker that was not seen for a minute, and no external system has
-- time left to settle it. A cancelled job that keeps the lane is treated the same, except that it does not wait for
-- an external system, which cannot be notified. outcome: released, resumed, alive (nothing changed), free (no job
-- holds it), unknown (there is no such lane).
create or replace function holdfast.lane_release(queue text, lane text, actor text default null)
returns table (outcome text, job uuid, worker text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_part smallint;
  v_halt uuid;
  held   record;
begin
  select l.part into v_part from holdfast.lane l
  where l.part = holdfast.lane_part(lane_release.queue, lane_release.lane) and l.queue = lane_release.queue
    and l.name = lane_release.lane;
  if not found then
    return query select 'unknown', null::uuid, null::text;
    return;
  end if;
  loop
    select j.id, j.token, j.worker, life.alive into held
    from holdfast.job j
    cross join lateral (
      select exists (select from holdfast.worker w where w.name = j.worker and w.seen_at > v_now - interval '1 minute')
        or exists (
          select from holdfast.lease l
          where l.part = j.part and l.token = j.token
            and (l.claimed_at > v_now - interval '1 minute' or l.outside and j.lease_until > v_now)) as alive
    ) life
    where j.part = v_part and j.queue = lane_release.queue and j.lane = lane_release.lane and j.held
    order by life.alive, j.lane_seq
    limit 1;
    exit when not found;
    if held.alive then
      return query select 'alive', held.id, held.worker;
      return;
    end if;
    -- The job before the lane, as everybody does; who held it meanwhile may be somebody else.
    perform from holdfast.job j where j.part = v_part and j.id = held.id and j.token = held.token for update;
    if found then
      perform holdfast.note('lane_released', actor, null, queue,
        jsonb_build_object('lane', lane, 'job', held.id, 'worker', held.worker));
      perform holdfast.expire(v_part, array[held.id], array[held.token], v_now);
      return query select 'released', held.id, held.worker;
      return;
    end if;
  end loop;
  select g.id, g.token, g.worker, life.alive into held
  from holdfast.leaving g
  cross join lateral (
    select not coalesce(l.outside, false) and (
             coalesce(l.claimed_at > v_now - interval '1 minute', false)
             or exists (select from holdfast.worker w where w.name = g.worker
               and w.seen_at > v_now - interval '1 minute')) as alive
    from (select 1) one
    left join holdfast.lease l on l.part = g.part and l.token = g.token
    limit 1
  ) life
  where g.part = v_part and g.queue = lane_release.queue and g.lane = lane_release.lane
  order by life.alive, g.lane_seq
  limit 1;
  if found and held.alive then
    return query select 'alive', held.id, held.worker;
    return;
  elsif found then
    perform holdfast.note('lane_released', actor, null, queue,
      jsonb_build_object('lane', lane, 'job', held.id, 'worker', held.worker));
    perform holdfast.let_go(array[held.id], array[held.token], v_now);
    return query select 'released', held.id, held.worker;
    return;
  end if;
  select l.halted_by into v_halt from holdfast.lane l
  where l.part = v_part and l.queue = lane_release.queue and l.name = lane_release.lane;
  if v_halt is not null then
    perform holdfast.lane_set(queue, lane, '{"halted": false}', actor);
    return query select 'resumed', v_halt, null::text;
  else
    return query select 'free', null::uuid, null::text;
  end if;
end
$$;

-- place_of: what a job that ends or moves leaves free: its key, and its place in a lane.
create or replace function holdfast.place_of(part smallint, queue text, kind text, key text, lane text)
returns jsonb
language sql stable parallel safe
as $$ select jsonb_build_array(part, queue, kind, key, lane) $$;

-- let_next_in: places are free, an array of place_of: the follow-ups of these keys become ready, and the next jobs of
-- these lanes.
create or replace function holdfast.let_next_in(places jsonb, at timestamptz)
returns void
language plpgsql
as $$
begin
  perform holdfast.unfollow((p -> 0)::smallint, array_agg(p ->> 1), array_agg(p ->> 2), array_agg(p ->> 3), at)
  from jsonb_array_elements(places) p
  where p ->> 3 is not null
  group by p -> 0;
  perform holdfast.unblock((p -> 0)::smallint, array_agg(p ->> 1), array_agg(p ->> 4), at)
  from jsonb_array_elements(places) p
  where p ->> 4 is not null
  group by p -> 0;
end
$$;
