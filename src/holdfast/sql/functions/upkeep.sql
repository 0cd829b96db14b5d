-- Upkeep: idempotent steps that anyone may run, at any time, as often as they like, several at once.

-- reap: take back expired leases, of one queue or of all. Each counts as a failed attempt: the job waits
-- again or, out of attempts, is dead. Where the kind can tell whether its work is done and a worker lives
-- that can be asked, the job is left to it, for ten minutes.
create or replace function holdfast.reap(max_jobs integer default 1000, only_queue text default null)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.now();
  v_asked  constant text[] := holdfast.asked_kinds(v_now);
  v_cut    timestamptz;
  v_back   timestamptz;
  v_tokens uuid[];
  v_adopted uuid[];    -- claims of adopted tables
  v_part   smallint;
  v_ids    uuid[];
  v_cuts   timestamptz[];
  v_left   integer := max_jobs;
  v_failed integer;
  expired  record;
begin
  select e.cut, e.back into v_cut, v_back from holdfast.expired_before(v_now) e;
  perform holdfast.let_go_expired(v_cut, v_now, only_queue);
  -- Most claims that are due were acked long ago: go on until enough is found, within reason.
  for turn in 1 .. 100 loop
    exit when v_left <= 0;
    select array_agg(c.token) filter (where c.part < 64), array_agg(c.token) filter (where c.part >= 64)
    into v_tokens, v_adopted
    from (
      select l.token, l.part
      from holdfast.lease l
      where l.open and l.until <= v_now and (l.until <= v_cut or l.claimed_at >= v_back)
        and (only_queue is null or l.queue = only_queue)
      order by l.until
      limit 200
      for update skip locked
    ) c;
    if v_adopted is not null then
      return query select a.id, a.queue, a.kind, a.worker, a.outcome from holdfast.reap_adopted(v_adopted, v_now, v_cut, v_back) a;
      get diagnostics v_failed = row_count;
      v_left := v_left - v_failed;
      continue when v_tokens is null;
    end if;
    exit when v_tokens is null;

    with held as materialized (
      select l.token, l.claimed_at, l.part, i.id, c.cut, j.lease_until, j.lease_until <= c.cut as expired,
             j.lease_until <= c.cut and j.kind = any(v_asked)
             and coalesce(l.asked_at > v_now - interval '10 minutes', true) as asked
      from holdfast.lease l
      cross join lateral (select case when l.claimed_at >= v_back then v_now else v_cut end as cut) c
      cross join lateral unnest(l.ids) i(id)
      left join lateral (
        select x.lease_until, x.kind
        from holdfast.job x
        where x.part = l.part and x.id = i.id and x.token = l.token
        limit 1) j on true
      where l.token = any(v_tokens) and l.open
    ), closed as (
      -- A claim that holds nothing any more stays a while as the receipt of its acks. One that is left to
      -- others is looked at again soon: they may be gone.
      update holdfast.lease l
      set open = h.until is not null, until = coalesce(h.until, v_now + interval '5 minutes'),
          asked_at = case when h.asked then coalesce(l.asked_at, v_now) end
      from (
        select x.token, x.claimed_at, bool_or(x.asked) as asked, bool_or(x.expired and not x.asked) as expired,
               min(case when x.asked then v_now + interval '5 seconds' else x.lease_until end) as until
        from held x
        group by x.token, x.claimed_at
      ) h
      where l.token = h.token and l.claimed_at = h.claimed_at and l.open and h.expired is not true
      returning 1
    )
    select (select count(*) from closed) as closed,
           jsonb_agg(jsonb_build_array(h.part, h.id, h.token, h.cut)) filter (where h.expired and not h.asked) as jobs
    into expired
    from held h;

    v_failed := 0;
    for v_part, v_ids, v_tokens, v_cuts in
      select (e -> 0)::smallint, array_agg((e ->> 1)::uuid), array_agg((e ->> 2)::uuid), array_agg((e ->> 3)::timestamptz)
      from jsonb_array_elements(expired.jobs) with ordinality as x(e, nth)
      where x.nth <= v_left
      group by e -> 0
    loop
      -- locked and judged in one statement: an ack or touch that is under way is left alone
      select array_agg(j.id), array_agg(j.token)
      into v_ids, v_tokens
      from unnest(v_ids, v_tokens, v_cuts) u(id, token, cut)
      cross join lateral (
        select x.id, x.token
        from holdfast.job x
        where x.part = v_part and x.id = u.id and x.token = u.token and x.lease_until <= u.cut
        for update skip locked
      ) j;
      continue when v_ids is null;
      v_failed := v_failed + cardinality(v_ids);
      return query
        select e.id, e.queue, e.kind, e.worker, e.outcome
        from holdfast.expire(v_part, v_ids, v_tokens, v_now) e;
    end loop;
    v_left := v_left - v_failed;
    exit when expired.closed = 0 and v_failed = 0;   -- all that is left is being settled by others
  end loop;
end
$$;

-- expired_before: leases that ended before cut are expired. While the database was away nobody could renew;
-- leases are credited with that time, or all that was in flight would run twice. Leases that were claimed
-- after it was back need no credit: with them it is the time itself.
create or replace function holdfast.expired_before(at timestamptz, out cut timestamptz, out back timestamptz)
language plpgsql
as $$
declare
  last       holdfast.pulse;
  v_timeline text;
begin
  select p.* into last from holdfast.pulse p for update skip locked;
  if not found then
    select p.* into last from holdfast.pulse p;
  elsif at - last.reaped_at > interval '1 second' then
    v_timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    if at - last.reaped_at > interval '3 seconds'
       and (pg_postmaster_start_time() > last.reaped_at or last.timeline <> v_timeline) then
      last.credit := least(at - last.reaped_at, interval '2 minutes');
      last.credit_until := at + last.credit;
    end if;
    update holdfast.pulse
    set reaped_at = at, timeline = v_timeline, credit = last.credit, credit_until = last.credit_until;
  end if;
  cut := case when at < last.credit_until then at - last.credit else at end;
  back := case when at < last.credit_until then last.credit_until - last.credit else '-infinity' end;
end
$$;

-- promote: jobs whose time has come get a place in the ready order, in the order of becoming due; of one
-- queue, or of all, each up to max_jobs.
create or replace function holdfast.promote(max_jobs integer default 1000, only_queue text default null)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_part  smallint := -1;
  v_name  text := '';
  v_moved integer;
  v_all   integer := 0;
begin
  loop
    -- a loose scan: one probe to the next queue that has jobs waiting for their time
    if only_queue is null then
      select j.part, j.queue into v_part, v_name
      from holdfast.job j
      where j.pos is null and not j.blocked and (j.part, j.queue) > (v_part, v_name)
      order by j.part, j.queue
      limit 1;
    else
      select j.part, j.queue into v_part, v_name
      from (
        select ((holdfast.queue_part(only_queue) + step) % 64)::smallint as part
        from generate_series(0, coalesce((select q.fanout from holdfast.queue q where q.name = only_queue), 1) - 1) step
      ) p
      cross join lateral (
        select j.part, j.queue
        from holdfast.job j
        where j.part = p.part and j.queue = only_queue and j.pos is null and not j.blocked
        limit 1
      ) j
      where p.part > v_part
      order by p.part
      limit 1;
    end if;
    exit when not found;

    with due as materialized (
      select j.ctid, j.run_at
      from holdfast.job j
      where j.part = v_part and j.queue = v_name and j.pos is null and not j.blocked and j.token is null and j.run_at <= v_now
      order by j.run_at
      limit max_jobs
      for update skip locked
    ), placed as materialized (
      select d.ctid, nextval('holdfast.pos') as pos from due d
    ), moved as (
      update holdfast.job j
      set pos = p.pos,
          lane_seq = case when j.lane is not null then coalesce(j.lane_seq, nextval('holdfast.pos')) end
      from placed p
      where j.ctid = p.ctid
      returning 1
    )
    select count(*) into v_moved from moved m;
    if v_moved > 0 then
      v_all := v_all + v_moved;
      perform holdfast.wake(array[v_name], v_moved);
    end if;
  end loop;
  return v_all;
end
$$;

-- sweep: repair what no settle could see: follow-ups whose job left while they were being written, lanes
-- with a free slot and nobody ready, rows written under settings that have changed since. Goes round all
-- lanes, max_lanes at each call.
create or replace function holdfast.sweep(max_lanes integer default 200)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.now();
  v_cursor text[];
  v_woken  integer := 0;
  v_seen   integer := 0;
  these    record;
begin
  for these in
    select f.part, array_agg(f.queue) as queues, array_agg(f.kind) as kinds, array_agg(f.key) as keys
    from (
      select j.part, j.queue, j.kind, j.key
      from holdfast.job j
      where j.follow and not exists (
        select from holdfast.job h
        where h.part = j.part and h.queue = j.queue and h.kind = j.kind and h.key = j.key and not h.follow)
      limit 1000
    ) f
    group by f.part
  loop
    begin
      v_woken := v_woken + holdfast.unfollow(these.part, these.queues, these.kinds, these.keys, v_now);
    exception when unique_violation then
      null;   -- a new job with the key came first: the follow-up waits for that one
    end;
  end loop;

  perform holdfast.redo_settings();
  delete from holdfast.rate_use u
  where u.at < v_now - greatest(
    (select max(q.rate_period) from holdfast.queue q), (select max(l.rate_period) from holdfast.lane l), interval '1 minute');

  select p.lane_cursor into v_cursor from holdfast.pulse p for update skip locked;
  if not found then
    return v_woken;
  end if;
  loop
    select j.part, j.queue, j.lane into these
    from holdfast.job j
    where j.lane_seq is not null and j.blocked
      and (cardinality(v_cursor) = 0 or (j.part, j.queue, j.lane) > (v_cursor[1]::smallint, v_cursor[2], v_cursor[3]))
    order by j.part, j.queue, j.lane
    limit 1;
    if not found then
      v_cursor := '{}';
      exit;
    end if;
    v_woken := v_woken + holdfast.unblock(these.part, array[these.queue], array[these.lane], v_now);
    v_cursor := array[these.part::text, these.queue, these.lane];
    v_seen := v_seen + 1;
    exit when v_seen >= max_lanes;
  end loop;
  update holdfast.pulse set lane_cursor = v_cursor where lane_cursor <> v_cursor;

  -- rows of lanes that nobody set up and nobody is in
  select p.idle_cursor into v_cursor from holdfast.pulse p;
  select array_agg(x.queue) as queues, array_agg(x.name) as names, array_agg(x.part) as parts, count(*) as lanes,
         (array_agg(array[x.part::text, x.queue, x.name] order by x.part desc, x.queue desc, x.name desc))[1:1] as last
  into these
  from (
    select l.part, l.queue, l.name
    from holdfast.lane l
    where cardinality(v_cursor) = 0 or (l.part, l.queue, l.name) > (v_cursor[1]::smallint, v_cursor[2], v_cursor[3])
    order by l.part, l.queue, l.name
    limit max_lanes
  ) x;
  delete from holdfast.lane l
  where l.ctid = any(array(
    select x.ctid
    from unnest(these.parts, these.queues, these.names) u(part, queue, name)
    cross join lateral (
      select y.ctid
      from holdfast.lane y
      where y.part = u.part and y.queue = u.queue and y.name = u.name
        and y.lane_limit is null and y.on_failure is null and y.rate_limit is null and y.halted_by is null
        and not exists (
          select from holdfast.job j
          where j.part = u.part and j.queue = u.queue and j.lane = u.name and j.lane_seq is not null)
      for update skip locked
    ) x));
  v_cursor := case when these.lanes = max_lanes then array[these.last[1][1], these.last[1][2], these.last[1][3]] else '{}' end;
  update holdfast.pulse set idle_cursor = v_cursor where idle_cursor <> v_cursor;
  return v_woken;
end
$$;

-- redo_settings: apply changed settings to the rows once more, when all who may have written under the
-- old ones are gone.
create or replace function holdfast.redo_settings()
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_active text[];
  again    record;
begin
  for again in select r.ctid, r.queue, r.waits from holdfast.redo r for update skip locked loop
    v_active := holdfast.writers();
    if again.waits is null then
      update holdfast.redo r set waits = v_active where r.ctid = again.ctid;
    elsif not again.waits && v_active then
      perform holdfast.apply_settings(again.queue);
      delete from holdfast.redo r where r.ctid = again.ctid;
    end if;
  end loop;
end
$$;

-- writers: the transactions that have written to the hot table, or may have, and are still open.
create or replace function holdfast.writers()
returns text[]
language sql volatile
as $$
  select coalesce(array_agg(l.virtualtransaction), '{}')
  from pg_locks l
  where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.relation = 'holdfast.job'::regclass and l.mode = 'RowExclusiveLock' and l.pid is distinct from pg_backend_pid()
$$;

-- raise_floors: let claims start behind what is finished. A floor never passes a place that a writer
-- still under way could commit below: the sequence is read first, then who is writing; the floor rises
-- to that place at a later call, when none of those is left. After patience it rises anyway, and what
-- such a slow writer leaves below is found by the next sweep of strays and moved to the end.
create or replace function holdfast.raise_floors(patience interval default '10 seconds')
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := clock_timestamp();
  v_pos    bigint;
  v_active text[];
  v_wait   text[];
  v_raised integer := 0;
  last     holdfast.pulse;
  these     record;
begin
  if not pg_try_advisory_xact_lock(4915, 1) then
    return 0;   -- a released job is returning to its place, or another is at it
  end if;
  select p.* into last from holdfast.pulse p for update skip locked;
  if not found then
    return 0;
  end if;

  v_pos := coalesce(pg_sequence_last_value('holdfast.pos'), 0);   -- first the place, then the writers
  v_active := holdfast.writers();

  v_wait := array(select w from unnest(last.probe_wait) w where w = any(v_active));
  if cardinality(v_wait) > 0 and last.probe_at > v_now - patience then
    return 0;
  end if;

  for these in
    select q.name, ((holdfast.queue_part(q.name) + step) % 64)::smallint as part
    from holdfast.queue q
    cross join generate_series(0, q.fanout - 1) step
  loop
    v_raised := v_raised + holdfast.raise_floor(these.part, these.name, last.probe_pos);
  end loop;

  -- Writers that were passed may leave strays; look once they are gone, and now and then anyway.
  if last.swept_at < v_now - interval '1 minute'
     or exists (select from unnest(last.passed) w where not w = any(v_active)) then
    perform holdfast.lift_strays();
    last.swept_at := v_now;
    last.passed := array(select w from unnest(last.passed) w where w = any(v_active));
  end if;
  update holdfast.pulse
  set probe_pos = v_pos, probe_at = v_now, probe_wait = v_active,
      passed = (select coalesce(array_agg(distinct w), '{}') from unnest(last.passed || v_wait) w),
      swept_at = last.swept_at;
  return v_raised;
end
$$;

create or replace function holdfast.raise_floor(part smallint, queue text, safe bigint)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_old bigint[];
  v_new bigint[];
  v_gen bigint;
begin
  select f.floors into v_old
  from holdfast.floor f
  where f.part = raise_floor.part and f.queue = raise_floor.queue
  order by f.gen desc
  limit 1;
  v_old := coalesce(v_old, '{0,0,0,0,0,0,0,0,0,0}');
  select array_agg(greatest(f.floor, least(safe, coalesce((
      select j.pos
      from holdfast.job j
      where j.part = raise_floor.part and j.queue = raise_floor.queue and j.priority = (10 - f.nth)::smallint
        and j.pos >= f.floor and j.token is null
      order by j.pos
      limit 1), safe))) order by f.nth)
  into v_new
  from unnest(v_old) with ordinality as f(floor, nth);

  -- A floor keeps some distance from the first waiting job: a released one returns to its old place.
  select array_agg(greatest(x.old, x.new - 500) order by x.nth) into v_new
  from unnest(v_new, v_old) with ordinality as x(new, old, nth);
  -- Small steps are not worth a row.
  if not exists (select from unnest(v_new, v_old) x(new, old) where x.new > x.old + 200) then
    return 0;
  end if;
  insert into holdfast.floor (part, queue, floors)
  values (raise_floor.part, raise_floor.queue, v_new)
  returning gen into v_gen;
  delete from holdfast.floor f
  where f.part = raise_floor.part and f.queue = raise_floor.queue and f.gen < v_gen and f.gen >= v_gen - 50;
  return 1;
end
$$;

-- lift_strays: jobs that came to lie below a floor go to the end of the ready order.
create or replace function holdfast.lift_strays()
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_moved integer;
begin
  with floors as (
    select distinct on (f.part, f.queue) f.part, f.queue, f.floors
    from holdfast.floor f
    order by f.part, f.queue, f.gen desc
  ), strays as (
    select s.part, s.id
    from floors f
    cross join lateral unnest(f.floors) with ordinality as l(floor, nth)
    cross join lateral (
      select j.part, j.id
      from holdfast.job j
      where j.part = f.part and j.queue = f.queue and j.priority = (10 - l.nth)::smallint
        and j.pos < l.floor and j.token is null
      for update skip locked
    ) s
  )
  update holdfast.job j
  set pos = nextval('holdfast.pos')
  from strays s
  where j.part = any(array[s.part]) and j.id = s.id;
  get diagnostics v_moved = row_count;
  return v_moved;
end
$$;

-- fold: add counter deltas to the totals, and register queues that were only ever enqueued into.
create or replace function holdfast.fold()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_at     constant timestamptz := holdfast.sample_at();
  v_others constant text[] := holdfast.queues_in_sum();
  v_folded integer;
begin
  if not pg_try_advisory_xact_lock(4915, 2) then
    return 0;
  end if;
  with gone as (
    delete from holdfast.tally t
    returning t.*, t.xmin::text as call
  ), nets as (
    -- one call, one transaction: what it took from one queue and gave to another it moved
    select n.queue, n.net, n.cancelled, min(n.net) over w as least, max(n.net) over w as most
    from (
      select g.call, g.queue, sum(g.queued + g.leased + g.dead + g.done + g.cancelled + g.archived) as net, sum(g.cancelled) as cancelled
      from gone g
      group by g.call, g.queue
      having abs(sum(g.queued + g.leased + g.dead + g.done + g.cancelled + g.archived)) >= 5 or sum(g.cancelled) >= 5
    ) n
    window w as (partition by n.call)
  ), noted as (
    insert into holdfast.bulk (at, queue, sort, calls, jobs, largest)
    select holdfast.now(), b.queue, b.sort, count(*), sum(b.jobs), max(b.jobs)
    from (
      select n.queue, abs(case when n.net = 0 then n.cancelled else n.net end) as jobs,
             case when n.net > 0 and n.least < 0 then 'moved' when n.net > 0 then 'enqueued'
               when n.net < 0 and n.most > 0 then null when n.net < 0 then 'deleted' when n.cancelled > 0 then 'cancelled' end as sort
      from nets n
    ) b
    where b.sort is not null
    group by b.queue, b.sort
  ), sums as (
    select g.part, g.queue, g.kind, sum(g.queued) as queued, sum(g.leased) as leased, sum(g.dead) as dead,
           sum(g.done) as done, sum(g.cancelled) as cancelled, sum(g.archived) as archived,
           sum(g.reconciled) as reconciled, sum(g.enqueued) as enqueued, sum(g.failed) as failed, count(*) as deltas
    from gone g
    group by g.part, g.queue, g.kind
  ), added as (
    insert into holdfast.total as t (part, queue, kind, queued, leased, dead, done, cancelled, archived, reconciled, enqueued, failed)
    select s.part, s.queue, s.kind, s.queued, s.leased, s.dead, s.done, s.cancelled, s.archived, s.reconciled, s.enqueued, s.failed
    from sums s
    on conflict (part, queue, kind) do update
    set queued = t.queued + excluded.queued, leased = t.leased + excluded.leased, dead = t.dead + excluded.dead,
        done = t.done + excluded.done, cancelled = t.cancelled + excluded.cancelled, archived = t.archived + excluded.archived,
        reconciled = t.reconciled + excluded.reconciled, enqueued = t.enqueued + excluded.enqueued, failed = t.failed + excluded.failed
  ), sampled as (
    insert into holdfast.sample as m (step, at, queue, kind, enqueued, done, failed)
    select 10, v_at, case when s.queue = any(v_others) then '' else s.queue end, s.kind, sum(s.enqueued), sum(s.done), sum(s.failed)
    from sums s
    group by 3, 4
    having (sum(s.enqueued), sum(s.done), sum(s.failed)) is distinct from (0, 0, 0)
    on conflict (step, at, queue, kind) do update
    set enqueued = m.enqueued + excluded.enqueued, done = m.done + excluded.done, failed = m.failed + excluded.failed
  ), known as (
    insert into holdfast.queue (name)
    select distinct s.queue from sums s where length(s.queue) between 1 and 120
    on conflict do nothing
  )
  select coalesce(sum(s.deltas), 0) into v_folded from sums s;
  return v_folded;
end
$$;

-- recount: compare the counters with the rows, in one snapshot, and write the difference as a delta.
create or replace function holdfast.recount()
returns table (queue text, kind text, queued bigint, leased bigint, dead bigint, cancelled bigint, archived bigint)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.recount_dead();
  with counters as (
    select c.part, c.queue, c.kind, c.queued, c.leased, c.dead, c.cancelled, c.archived from holdfast.total c where c.part < 64
    union all
    select t.part, t.queue, t.kind, t.queued, t.leased, t.dead, t.cancelled, t.archived from holdfast.tally t where t.part < 64
  ), differences as (
    select d.part, d.queue, d.kind, sum(d.queued) as queued, sum(d.leased) as leased, sum(d.dead) as dead,
           sum(d.cancelled) as cancelled, sum(d.archived) as archived
    from (
      select j.part, j.queue, j.kind, count(*) filter (where j.token is null) as queued,
             count(*) filter (where j.token is not null) as leased, 0 as dead, 0 as cancelled, 0 as archived
      from holdfast.job j
      group by j.part, j.queue, j.kind
      union all
      select e.part, e.queue, e.kind, 0, 0, count(*) filter (where e.state = 'dead'),
             count(*) filter (where e.state = 'cancelled'), count(*) filter (where e.state = 'archived')
      from holdfast.ended e
      group by e.part, e.queue, e.kind
      union all
      select c.part, c.queue, c.kind, -c.queued, -c.leased, -c.dead, -c.cancelled, -c.archived from counters c
    ) d
    group by d.part, d.queue, d.kind
    having (sum(d.queued), sum(d.leased), sum(d.dead), sum(d.cancelled), sum(d.archived)) is distinct from (0, 0, 0, 0, 0)
  ), corrected as (
    insert into holdfast.tally (part, queue, kind, queued, leased, dead, cancelled, archived)
    select d.part, d.queue, d.kind, d.queued, d.leased, d.dead, d.cancelled, d.archived
    from differences d
  )
  select d.queue, d.kind, d.queued::bigint, d.leased::bigint, d.dead::bigint, d.cancelled::bigint, d.archived::bigint
  from differences d
  union all
  select r.queue, r.kind, r.queued, r.leased, r.dead, r.cancelled, r.archived
  from holdfast.adopted a
  cross join lateral holdfast.recount_adopted(a.part) r
  where a.live;
$$;

-- turn_pages: partitions for the days ahead, and away with those past their keeping. Never one for a day
-- that has begun: a row on its way to the rest would be refused there.
create or replace function holdfast.turn_pages()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'   -- pages can wait; workers cannot
as $$
declare
  v_today constant date := (holdfast.now() at time zone 'UTC')::date;
  v_keep  interval;
  v_page  text;
  v_done  integer := 0;
  book    record;
  page    record;
begin
  if not pg_try_advisory_xact_lock(4915, 3) then
    return 0;
  end if;
  for book in
    select 'history' as name, greatest(interval '7 days', (select max(q.keep_done) from holdfast.queue q)) as keep
    union all
    select 'attempt', interval '30 days'
  loop
    for ahead in 1 .. 3 loop
      v_page := format('%s_%s', book.name, to_char(v_today + ahead, 'YYYYMMDD'));
      continue when to_regclass(format('holdfast.%I', v_page)) is not null;
      begin
        execute format('create table holdfast.%I (like holdfast.%I including defaults including constraints)', v_page, book.name);
        execute format('alter table holdfast.%I attach partition holdfast.%I for values from (%L) to (%L)',
          book.name, v_page, (v_today + ahead)::text || ' 00:00+00', (v_today + ahead + 1)::text || ' 00:00+00');
        v_done := v_done + 1;
      exception when lock_not_available or check_violation or duplicate_table then
        null;   -- busy: there is time till tomorrow
      end;
    end loop;
    for page in
      select c.relname
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
      where i.inhparent = format('holdfast.%I', book.name)::regclass and c.relname ~ '_[0-9]{8}$'
        and to_date(right(c.relname, 8), 'YYYYMMDD') < (v_today - book.keep)::date
    loop
      begin
        execute format('drop table holdfast.%I', page.relname);
        v_done := v_done + 1;
      exception when lock_not_available then
        null;
      end;
    end loop;
    execute format('delete from holdfast.%I where ended_at < $1', book.name || '_rest') using v_today - book.keep;
  end loop;
  return v_done;
end
$$;

-- upkeep: every step once, for a cron job or an idle client; floors before and after, since they follow
-- one call behind. A step that fails does not stop the others: `failed` says which and why.
create or replace function holdfast.upkeep()
returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_done   jsonb := '{}';
  v_failed jsonb := '{}';
  v_step   text;
begin
  foreach v_step in array '{forgotten,floors,reaped,promoted,unstruck,unblocked,folded,sampled,floors,pages}'::text[] loop
    begin
      v_done := v_done || jsonb_build_object(v_step, holdfast.upkeep_step(v_step));
    exception when others then
      -- a server that is read-only or going away fails whatever comes next: its caller must know
      if sqlstate like any ('{25%,57%,53%}') then
        raise;
      end if;
      v_failed := v_failed || jsonb_build_object(v_step, format('%s: %s', sqlstate, sqlerrm));
    end;
  end loop;
  return v_done - 'forgotten' || case when v_failed = '{}' then v_failed else jsonb_build_object('failed', v_failed) end;
end
$$;

create or replace function holdfast.upkeep_step(step text)
returns bigint
language plpgsql
as $$
begin
  case step
    when 'forgotten' then
      delete from holdfast.waiter w where w.until < holdfast.now() - interval '1 minute';
      delete from holdfast.lease l where not l.open and l.until < holdfast.now();
      delete from holdfast.worker w where w.seen_at < holdfast.now() - interval '1 day';
      delete from holdfast.request r where r.at < holdfast.now() - interval '1 day';
      delete from holdfast.api_token t where t.sort <> 'token' and t.expires_at < holdfast.now();
      delete from holdfast.strike s where s.ended_at < holdfast.now() - interval '90 days'
        and not exists (select from holdfast.job j where j.strike = s.number);
      perform holdfast.fold_notes();
      with old as (
        update holdfast.operation o set undoable = 0
        where o.undoable > 0 and coalesce(o.ended_at, o.started_at) < holdfast.now() - interval '7 days' and o.state <> 'running'
        returning o.id)
      delete from holdfast.operation_chunk c using old where c.operation = old.id;
      delete from holdfast.operation o where o.state = 'previewed' and o.created_at < holdfast.now() - interval '1 hour';
      return 0;
    when 'reaped' then
      return (select count(*) from holdfast.reap(1000)) + holdfast.rescue(1000);
    when 'promoted' then
      return holdfast.promote(1000) + holdfast.ring_kept();
    when 'unstruck' then
      return holdfast.unstrike(1000);
    when 'unblocked' then
      return holdfast.sweep(200);
    when 'folded' then
      return holdfast.fold() + holdfast.fold_dead();
    when 'sampled' then
      return holdfast.take_samples() + holdfast.roll_samples();
    when 'floors' then
      return holdfast.raise_floors();
    when 'pages' then
      return holdfast.turn_pages() + holdfast.forget_activity();
  end case;
end
$$;
