-- Upkeep: idempotent steps that any process may run, at any time, also several at once.

-- reap: reclaim expired leases, of one queue or of all. Each counts as a failed attempt: the job is queued again or,
-- without attempts left, dead. If the kind has a check and a worker that can run it is alive, the job is left to that
-- worker for ten minutes.
create or replace function holdfast.reap(max_jobs integer default 1000, only_queue text default null)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$ select r.id, r.queue, r.kind, r.worker, r.outcome
  from holdfast.reap_at(max_jobs, only_queue, holdfast.clock()) r $$;

-- reap_at: the same, for leases that had expired at a time. A claim reclaims those that had expired when it began, so
-- that it cannot reclaim a very short lease that it gave itself. near: a hint about where to look is good enough.
create or replace function holdfast.reap_at(
  max_jobs integer, only_queue text, at timestamptz, near boolean default false)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := reap_at.at;
  v_asked  constant text[] := holdfast.asked_kinds(v_now);
  v_cut    timestamptz;
  v_back   timestamptz;
  v_rows   tid[];      -- the receipts that it has locked: a claim has one for each part
  v_tokens uuid[];
  v_adopted uuid[];    -- claims of adopted tables
  v_busy   uuid[] := '{}';   -- claims whose jobs are being settled at this moment: those behind them have their turn
  v_part   smallint;
  v_ids    uuid[];
  v_cuts   timestamptz[];
  v_ends   boolean := false;
  v_left   integer := max_jobs;
  v_failed integer;
  v_from   timestamptz := '-infinity';
  expired  record;
begin
  select e.cut, e.back into v_cut, v_back from holdfast.expired_before(v_now) e;
  if near then
    v_from := holdfast.first_lease(v_now);
  end if;
  perform holdfast.let_go_expired(v_cut, v_now, only_queue);
  -- Most claims that come up short find nothing here, and should not have to plan what comes now.
  if near and not holdfast.lease_due(only_queue, v_from, v_now) then
    return;
  end if;
  -- Most claims that are due were acked long ago: go on until enough is found, within reason.
  for turn in 1 .. 100 loop
    exit when v_left <= 0 or v_ends;
    select array_agg(c.place) filter (where c.part < 64), array_agg(c.token) filter (where c.part >= 64)
    into v_rows, v_adopted
    from (
      select l.token, l.part, l.ctid as place
      from holdfast.lease l
      where l.open and l.until >= v_from and l.until <= v_now and (l.until <= v_cut or l.claimed_at >= v_back)
        and (only_queue is null or l.queue = only_queue) and l.token <> all(v_busy)
      order by l.until
      limit 200
      for update skip locked
    ) c;
    if v_adopted is not null then
      return query select a.id, a.queue, a.kind, a.worker, a.outcome
        from holdfast.reap_adopted(v_adopted, v_now, v_cut, v_back) a;
      get diagnostics v_failed = row_count;
      v_left := v_left - v_failed;
      continue when v_rows is null;
    end if;
    exit when v_rows is null;

    with held as materialized (
      select l.token, l.ctid as place, l.part, i.id, c.cut, j.lease_until, j.lease_until <= c.cut as expired,
             j.lease_until <= c.cut and j.kind = any(v_asked)
             and coalesce(l.asked_at > v_now - interval '10 minutes', true) as asked
      from holdfast.lease l
      cross join lateral (select case when l.claimed_at >= v_back then v_now else v_cut end as cut) c
      cross join lateral unnest(l.ids) i(id)
      left join lateral (
        select x.lease_until, x.kind from holdfast.job x
        where x.part = l.part and x.id = i.id and x.token = l.token
        limit 1) j on true
      where l.ctid = any(v_rows) and l.open
    ), closed as (
      -- A claim that holds nothing any more stays a while as the receipt of its acks. One that is left to
      -- others is looked at again soon: they may be gone.
      update holdfast.lease l
      set open = h.until is not null, until = coalesce(h.until, v_now + interval '5 minutes'),
          asked_at = case when h.asked then coalesce(l.asked_at, v_now) end
      from (
        select x.place, bool_or(x.asked) as asked, bool_or(x.expired and not x.asked) as expired,
               min(case when x.asked then v_now + interval '5 seconds' else x.lease_until end) as until
        from held x
        group by x.place
      ) h
      where l.ctid = h.place and h.expired is not true
      returning 1
    )
    select (select count(*) from closed) as closed,
           jsonb_agg(jsonb_build_array(h.part, h.id, h.token, h.cut)) filter (where h.expired and not h.asked) as jobs
    into expired
    from held h;
    v_failed := 0;
    v_busy := v_busy || array(select distinct (e ->> 2)::uuid from jsonb_array_elements(expired.jobs) e);
    select l.jobs, l.ends into expired.jobs, v_ends from holdfast.lock_ends(expired.jobs, v_left) l;
    for v_part, v_ids, v_tokens, v_cuts in
      select (e -> 0)::smallint, array_agg((e ->> 1)::uuid), array_agg((e ->> 2)::uuid),
             array_agg((e ->> 3)::timestamptz)
      from jsonb_array_elements(expired.jobs) with ordinality as x(e, nth)
      where x.nth <= v_left
      group by e -> 0
    loop
      -- locked and judged in one statement: an ack or touch that is under way is left alone
      select array_agg(j.id), array_agg(j.token) into v_ids, v_tokens
      from unnest(v_ids, v_tokens, v_cuts) u(id, token, cut)
      cross join lateral (
        select x.id, x.token from holdfast.job x
        where x.part = v_part and x.id = u.id and x.token = u.token and x.lease_until <= u.cut
        for update skip locked
      ) j;
      continue when v_ids is null;
      v_failed := v_failed + cardinality(v_ids);
      v_busy := array(select b from unnest(v_busy) b where b <> all(v_tokens));
      return query
        select e.id, e.queue, e.kind, e.worker, e.outcome
        from holdfast.take_back_expired(v_part, v_ids, v_tokens, v_now) e;
    end loop;
    v_left := v_left - v_failed;
  end loop;
  perform holdfast.note_first_lease(v_now) where only_queue is null;
end
$$;

-- lease_due: whether an open lease of this queue ends in this span, so that it may have to be reclaimed.
create or replace function holdfast.lease_due(queue text, since timestamptz, at timestamptz)
returns boolean
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  return exists (
    select from holdfast.lease l
    where l.open and l.until >= lease_due.since and l.until <= lease_due.at and l.queue = lease_due.queue);
end
$$;

-- first_lease: where a claim starts to look for expired leases. While nothing can be vacuumed, the entries of closed
-- leases stay before the open ones, and every idle claim would walk over all of them. It is only a hint, valid for a
-- minute: a lease before it, from a long transaction, is found by the reap of all queues, which looks everywhere and
-- records the place again. If no process does that, claims look everywhere.
create or replace function holdfast.first_lease(at timestamptz)
returns timestamptz
language sql stable
as $$
  select coalesce((
    select c.cursor[1]::timestamptz
    from holdfast.chore c
    where c.name = 'leases' and c.at > first_lease.at - interval '1 minute' and c.at <= first_lease.at
  ), '-infinity')
$$;

-- note_first_lease: record that no open lease ends before here, as far as can be seen; every five seconds. It does
-- not wait for another process that does the same.
create or replace function holdfast.note_first_lease(at timestamptz)
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  update holdfast.chore c
  set at = note_first_lease.at,
      cursor = array[least(note_first_lease.at,
        (select l.until from holdfast.lease l where l.open order by l.until limit 1))::text]
  where c.ctid = any(array(
    select x.ctid from holdfast.chore x
    where x.name = 'leases' and (x.at <= note_first_lease.at - interval '5 seconds' or x.at > note_first_lease.at)
    for update skip locked));
end
$$;

-- take_back_expired: expire jobs of one part; one that fails, for whatever reason, does not stop the others: its
-- claim records the problem and is tried again in a minute. The caller has locked the rows.
create or replace function holdfast.take_back_expired(part smallint, ids uuid[], tokens uuid[], at timestamptz)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ids     uuid[] := ids;
  v_problem text;
begin
  begin
    if exists (select from unnest(ids) i where holdfast.part_of(i) <> take_back_expired.part) then
      v_ids := holdfast.mend_ids(part, ids, at);
    end if;
    return query
      select e.id, e.queue, e.kind, e.worker, e.outcome
      from holdfast.expire(take_back_expired.part, v_ids, tokens, at) e;
    return;
  exception when others then
    -- a server that is read-only or going away fails whatever comes next: its caller must know
    if sqlstate like any ('{25%,57%,53%,40%,55%}') then
      raise;
    end if;
    v_problem := format('%s: %s', sqlstate, sqlerrm);
  end;
  if cardinality(ids) > 1 then
    for nth in 1 .. cardinality(ids) loop
      return query
        select e.id, e.queue, e.kind, e.worker, e.outcome
        from holdfast.take_back_expired(take_back_expired.part, ids[nth : nth], tokens[nth : nth], at) e;
    end loop;
  else
    update holdfast.lease l set until = take_back_expired.at + interval '1 minute', problem = left(v_problem, 1000)
    where l.token = tokens[1] and l.part = take_back_expired.part and l.open;
  end if;
end
$$;

-- mend_ids: fix the ids of jobs that do not contain their part; returns the new ids, in the same order.
create or replace function holdfast.mend_ids(part smallint, ids uuid[], at timestamptz)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_new uuid;
begin
  for nth in 1 .. cardinality(ids) loop
    continue when holdfast.part_of(ids[nth]) = part;
    v_new := holdfast.stamp(ids[nth], part);
    if exists (select from holdfast.job j where j.part = mend_ids.part and j.id = v_new) then
      v_new := holdfast.id_in(part);
    end if;
    update holdfast.job j set id = v_new where j.part = mend_ids.part and j.id = ids[nth];
    perform holdfast.rename_jobs(ids[nth : nth], array[v_new], array[j.queue])
    from holdfast.job j where j.part = mend_ids.part and j.id = v_new;
    perform holdfast.note_jobs('mended', part, array[v_new], array[j.queue], array[j.kind], 'leased', 'upkeep',
      format('its id %s contained part %s, but it is stored in part %s', ids[nth],
        holdfast.part_of(ids[nth]), mend_ids.part),
        at,
      array[jsonb_build_object('was', ids[nth])])
    from holdfast.job j where j.part = mend_ids.part and j.id = v_new;
    ids[nth] := v_new;
  end loop;
  return ids;
end
$$;

-- expired_before: leases that ended before cut are expired. During an outage of the database, workers could not
-- renew; leases are extended by that time, or all running jobs would run twice. Leases claimed after the outage are
-- not extended.
create or replace function holdfast.expired_before(at timestamptz, out cut timestamptz, out back timestamptz)
language plpgsql
as $$
declare
  last       holdfast.pulse;
  v_writes   boolean;
  v_timeline text;
begin
  select p.* into last from holdfast.pulse p for update skip locked;
  v_writes := found;
  if not v_writes then
    -- Another's turn has begun: it may be the first after an outage, and its credit is not committed yet.
    select p.* into last from holdfast.pulse p;
  end if;
  -- also if the clock was set back
  if at - last.reaped_at > interval '1 second' or at < last.reaped_at - interval '1 second' then
    v_timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    if at - last.reaped_at > interval '3 seconds'
       and (pg_postmaster_start_time() > last.reaped_at or last.timeline <> v_timeline) then
      last.credit := least(at - last.reaped_at, interval '2 minutes');
      last.credit_until := at + last.credit;
    end if;
    if v_writes then
      update holdfast.pulse
      set reaped_at = at, timeline = v_timeline, credit = last.credit, credit_until = last.credit_until;
    end if;
  end if;
  cut := case when at < last.credit_until then at - last.credit else at end;
  back := case when at < last.credit_until then last.credit_until - last.credit else '-infinity' end;
end
$$;

-- promote: add due jobs to the ready order, in the order in which they became due; of one queue, or of all, each up
-- to max_jobs. For all, a call checks a thousand queues, and the next call continues there. A queue that cannot be
-- written does not stop the others.
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
  c_most  constant integer := 1000;
  v_now   constant timestamptz := holdfast.clock();
  v_from  text[];
  v_to    text[] := '{}';
  v_all   integer := 0;
  these   record;
begin
  if only_queue is not null then
    for these in
      select ((holdfast.queue_part(only_queue) + step) % 64)::smallint as part
      from generate_series(0, coalesce((select q.fanout from holdfast.queue q where q.name = only_queue), 1) - 1) step
    loop
      v_all := v_all + holdfast.promote_queue(these.part, only_queue, max_jobs, v_now);
    end loop;
    return v_all;
  end if;

  select c.cursor into v_from from holdfast.chore c where c.name = 'due';
  for these in
    -- a loose scan: one probe to the next queue that has jobs waiting for their time, one to see whether it has come
    with recursive waiting as (
      (select j.part, j.queue, 1 as nth
       from holdfast.job j
       where j.pos is null and not j.blocked and (j.part, j.queue) > (coalesce(v_from[1]::smallint, -1::smallint),
         coalesce(v_from[2], ''))
       order by j.part, j.queue
       limit 1)
      union all
      select n.part, n.queue, w.nth + 1
      from waiting w
      cross join lateral (
        select j.part, j.queue
        from holdfast.job j
        where j.pos is null and not j.blocked and (j.part, j.queue) > (w.part, w.queue)
        order by j.part, j.queue
        limit 1
      ) n
      where w.nth < c_most
    )
    select w.part, w.queue, w.nth, coalesce(d.due, false) as due
    from waiting w
    left join lateral (
      select true as due
      from holdfast.job j
      where j.part = w.part and j.queue = w.queue and j.pos is null and not j.blocked and j.run_at <= v_now
      limit 1
    ) d on true
    where d.due or w.nth = c_most
  loop
    if these.due then
      v_all := v_all + holdfast.promote_queue(these.part, these.queue, max_jobs, v_now);
    end if;
    if these.nth = c_most then
      v_to := array[these.part::text, these.queue];
    end if;
  end loop;
  perform holdfast.keep_cursor('due', v_from, v_to);
  return v_all;
end
$$;

-- promote_queue: the same for one part of one queue. If a row cannot be written, the others are moved one by one.
create or replace function holdfast.promote_queue(part smallint, queue text, max_jobs integer, at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_moved integer := 0;
  v_one   integer;
  v_ids   uuid[];
  v_id    uuid;
begin
  if not exists (
    select from holdfast.job j
    where j.part = promote_queue.part and j.queue = promote_queue.queue and j.pos is null and not j.blocked
      and j.run_at <= at) then
    return 0;
  end if;
  begin
    v_moved := holdfast.promote_some(part, queue, null, max_jobs, at);
  exception when others then
    if holdfast.is_hopeless(sqlstate) then
      raise;
    end if;
    perform holdfast.note_failing('promoted', queue, sqlstate, sqlerrm);
    -- any of those that are due: always the first ones would be always the same ones
    v_ids := array(
      select d.id
      from (
        select j.id
        from holdfast.job j
        where j.part = promote_queue.part and j.queue = promote_queue.queue and j.pos is null and not j.blocked
          and j.run_at <= at
        order by j.run_at
        limit 10000
      ) d
      order by random()
      limit least(max_jobs, 200));
    foreach v_id in array v_ids loop
      begin
        v_one := holdfast.promote_some(part, queue, v_id, 1, at);
        v_moved := v_moved + v_one;
      exception when others then
        if holdfast.is_hopeless(sqlstate) then
          raise;
        end if;
      end;
    end loop;
  end;
  if v_moved > 0 then
    perform holdfast.wake(array[promote_queue.queue], v_moved);
  end if;
  return v_moved;
end
$$;

create or replace function holdfast.promote_some(
  part smallint, queue text, only_id uuid, max_jobs integer, at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_moved integer;
begin
  with due as materialized (
    select j.ctid, j.run_at
    from holdfast.job j
    where j.part = promote_some.part and j.queue = promote_some.queue and j.pos is null and not j.blocked
      and j.token is null
      and j.run_at <= promote_some.at and (only_id is null or j.id = only_id)
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
    where j.ctid = p.ctid and j.part + 0 = promote_some.part
    returning 1
  )
  select count(*) into v_moved from moved m;
  return v_moved;
end
$$;

-- keep_cursor: store where a chore continues. If the row is locked, another process does the same chore and stores it.
create or replace function holdfast.keep_cursor(chore text, was text[], is_now text[])
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  if was is distinct from is_now then
    update holdfast.chore c
    set cursor = is_now
    where c.ctid = any(array(select x.ctid from holdfast.chore x where x.name = keep_cursor.chore
      for update skip locked));
  end if;
end
$$;

-- sweep: repair what settling could not see: follow-ups whose job ended while they were being written, lanes with a
-- free slot and no ready job, rows written with old settings. Checks all lanes in turn, max_lanes per call.
create or replace function holdfast.sweep(max_lanes integer default 200)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_woken integer;
begin
  perform holdfast.refuse_old_snapshot('sweep');
  v_woken := holdfast.sweep_follows() + holdfast.sweep_lanes(max_lanes);
  perform holdfast.redo_settings(), holdfast.forget_starts(), holdfast.forget_lanes(max_lanes);
  return v_woken;
end
$$;

-- sweep_follows: follow-ups whose job is gone take its place. It does not wait for a transaction that is about to
-- take the key, because it already holds the follow-up; the next call tries again.
create or replace function holdfast.sweep_follows()
returns integer
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
set lock_timeout = '10ms'
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_woken  integer := 0;
  v_one    integer;
  v_alone  boolean;
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
    v_alone := false;
    begin
      v_one := holdfast.unfollow(these.part, these.queues, these.kinds, these.keys, v_now);
      v_woken := v_woken + v_one;
    exception when unique_violation or lock_not_available then
      v_alone := true;   -- a new job with one of the keys came first, or is coming
    end;
    continue when not v_alone;
    for nth in 1 .. cardinality(these.keys) loop
      begin
        v_one := holdfast.unfollow(these.part, these.queues[nth : nth], these.kinds[nth : nth], these.keys[nth : nth],
          v_now);
        v_woken := v_woken + v_one;
      exception when unique_violation or lock_not_available then
        null;   -- the follow-up waits for that one
      end;
    end loop;
  end loop;
  return v_woken;
end
$$;

-- sweep_lanes: unblock jobs of lanes with a free slot. A lane that fails does not stop the others.
create or replace function holdfast.sweep_lanes(max_lanes integer)
returns integer
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_cursor text[];
  v_woken  integer := 0;
  v_one    integer;
  v_seen   integer := 0;
  these    record;
begin
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
    begin
      v_one := holdfast.unblock(these.part, array[these.queue], array[these.lane], v_now);
      v_woken := v_woken + v_one;
    exception when others then
      if holdfast.is_hopeless(sqlstate) then
        raise;
      end if;
      perform holdfast.note_failing('unblocked', these.queue, sqlstate, sqlerrm);
    end;
    v_cursor := array[these.part::text, these.queue, these.lane];
    v_seen := v_seen + 1;
    exit when v_seen >= max_lanes;
  end loop;
  update holdfast.pulse set lane_cursor = v_cursor where lane_cursor <> v_cursor;
  return v_woken;
end
$$;

-- forget_starts: delete starts that no rate counts any more.
create or replace function holdfast.forget_starts()
returns integer
language plpgsql
as $$
declare
  v_gone integer;
begin
  delete from holdfast.rate_use u
  where u.at < holdfast.now() - greatest(
    (select max(q.rate_period) from holdfast.queue q where q.rate_period is not null),
    (select max(l.rate_period) from holdfast.lane l where l.rate_period is not null), interval '1 minute');
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;

-- forget_lanes: delete rows of lanes without settings and jobs.
create or replace function holdfast.forget_lanes(max_lanes integer)
returns integer
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_cursor text[];
  v_gone   integer;
  these    record;
begin
  select p.idle_cursor into v_cursor from holdfast.pulse p for update skip locked;
  if not found then
    return 0;
  end if;
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
  using (
    select x.ctid as place, x.part
    from unnest(these.parts, these.queues, these.names) u(part, queue, name)
    cross join lateral (
      select y.ctid, y.part
      from holdfast.lane y
      where y.part = u.part and y.queue = u.queue and y.name = u.name
        and y.lane_limit is null and y.on_failure is null and y.rate_limit is null and y.halted_by is null
        and not exists (
          select from holdfast.job j
          where j.part = u.part and j.queue = u.queue and j.lane = u.name and j.lane_seq is not null)
      for update skip locked
    ) x
  ) unused
  where l.ctid = unused.place and l.part + 0 = unused.part;
  get diagnostics v_gone = row_count;
  v_cursor := case when these.lanes = max_lanes then array[these.last[1][1], these.last[1][2], these.last[1][3]]
    else '{}' end;
  update holdfast.pulse set idle_cursor = v_cursor where idle_cursor <> v_cursor;
  return v_gone;
end
$$;

-- redo_settings: apply changed settings to the rows again, when all transactions that may have used the old ones have
-- ended. A queue that fails is tried again, and does not stop the others. It waits for no job, since the caller may
-- hold others: what somebody is at is left to the next turn.
create or replace function holdfast.redo_settings()
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_active text[];
  v_done   integer := 0;
  again    record;
begin
  for again in select r.ctid, r.queue, r.waits from holdfast.redo r for update skip locked loop
    v_active := holdfast.writers();
    if again.waits is null then
      update holdfast.redo r set waits = v_active where r.ctid = again.ctid;
    elsif not again.waits && v_active then
      begin
        if holdfast.apply_settings(again.queue, wait => false) then
          delete from holdfast.redo r where r.ctid = again.ctid;
          v_done := v_done + 1;
        end if;
      exception when others then
        if holdfast.is_hopeless(sqlstate) then
          raise;
        end if;
        perform holdfast.note_failing('settings', again.queue, sqlstate, sqlerrm);
      end;
    end if;
  end loop;
  return v_done;
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
    and l.relation = 'holdfast.job'::regclass and l.mode = 'RowExclusiveLock'
      and l.pid is distinct from pg_backend_pid()
$$;

-- take_turn: whether this transaction does something that one at a time does, until it ends. A row is locked, since
-- any role that connects could take an advisory lock.
create or replace function holdfast.take_turn(name text)
returns boolean
language plpgsql
as $$
begin
  perform from holdfast.turn t where t.name = take_turn.name for update skip locked;
  return found;
end
$$;

-- stop_releases: hold back all releases until the transaction ends, if there is none under way.
create or replace function holdfast.stop_releases()
returns boolean
language plpgsql
as $$
begin
  lock table holdfast.releases in exclusive mode nowait;
  return true;
exception when lock_not_available then
  return false;
end
$$;

-- raise_floors: let claims start after finished jobs. A floor never passes a position below which an open transaction
-- could still commit: the sequence is read first, then the open writers; the floor rises to that position at a later
-- call, when all of these have ended. After patience it rises anyway, and the next sweep of strays moves what a slow
-- writer left below to the end.
create or replace function holdfast.raise_floors(patience interval default '10 seconds', max_queues integer default 200)
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
  v_one    integer;
  v_from   text[];
  v_to     text[];
  v_names  text[];
  v_fresh  text[];
  v_strayed boolean;
  last     holdfast.pulse;
  these     record;
begin
  perform holdfast.refuse_old_snapshot('raise_floors');
  if not holdfast.stop_releases() then
    return 0;   -- a released job is returning to its place, or another is at it
  end if;
  select p.* into last from holdfast.pulse p for update skip locked;
  if not found then
    return 0;
  end if;

  v_pos := coalesce(pg_sequence_last_value('holdfast.pos'), 0);   -- first the place, then the writers
  v_active := holdfast.writers();
  if v_pos < last.probe_pos or last.swept_at < v_now - interval '1 minute' and v_pos < holdfast.highest_floor() then
    v_pos := holdfast.catch_up();
    last.swept_at := '-infinity';
    last.passed := last.passed || v_active;   -- they may have drawn places from where it was
  end if;

  v_wait := array(select w from unnest(last.probe_wait) w where w = any(v_active));
  if cardinality(v_wait) > 0 and last.probe_at > v_now - patience then
    return 0;
  end if;

  -- Only where something changed: what nobody touched since its floor was raised stands where it stood.
  select c.cursor into v_from from holdfast.chore c where c.name = 'floors';
  v_names := array(
    select s.queue from holdfast.stir s
    where not s.raised and s.queue > coalesce(v_from[1], '')
    order by s.queue
    limit max_queues);
  v_fresh := array(   -- not folded yet
    select distinct t.queue from (select x.queue from holdfast.tally x limit 20000) t);
  for these in
    select n.name, ((holdfast.queue_part(n.name) + step) % 64)::smallint as part
    from (select u.name from unnest(v_names) u(name) union select u.name from unnest(v_fresh) u(name)) n
    left join holdfast.queue q on q.name = n.name
    cross join generate_series(0, coalesce(q.fanout, 1) - 1) step
    where q.adopted is null
    limit 2 * max_queues
  loop
    begin
      v_one := holdfast.raise_floor(these.part, these.name, last.probe_pos);
      v_raised := v_raised + v_one;
    exception when others then
      if holdfast.is_hopeless(sqlstate) then
        raise;
      end if;
      perform holdfast.note_failing('floors', these.name, sqlstate, sqlerrm);
    end;
  end loop;
  update holdfast.stir s set raised = true
  from unnest(v_names) u(name)
  where s.queue = u.name and s.clock < last.probe_at and not s.raised;
  perform holdfast.keep_cursor('floors', v_from,
    case when cardinality(v_names) = max_queues then v_names[max_queues:] else '{}' end);

  -- Writers that were passed may leave strays; look once they are gone, where something changed, and now and then
  -- at some of the rest.
  v_strayed := exists (select from unnest(last.passed) w where not w = any(v_active));
  if v_strayed or last.swept_at < v_now - interval '1 minute' then
    select c.cursor into v_from from holdfast.chore c where c.name = 'strays';
    select array_agg(f.queue), case when count(*) = max_queues
           then (array_agg(array[f.part::text, f.queue]))[max_queues:] else '{}' end
    into v_names, v_to
    from (
      select x.part, x.queue
      from holdfast.floor x
      where (x.part, x.queue) > (coalesce(v_from[1]::smallint, -1::smallint), coalesce(v_from[2], ''))
      order by x.part, x.queue
      limit max_queues
    ) f;
    perform holdfast.keep_cursor('strays', v_from, array(select unnest(v_to)));
    perform holdfast.lift_strays(v_names || v_fresh
      || case when v_strayed then array(select s.queue from holdfast.stir s) end);
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
set plan_cache_mode = force_generic_plan
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

-- lift_strays: move jobs that are below a floor to the end of the ready order; of some queues, or of all.
create or replace function holdfast.lift_strays(queues text[] default null)
returns integer
language plpgsql
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  v_moved integer;
begin
  with floors as (
    select distinct on (f.part, f.queue) f.part, f.queue, f.floors
    from holdfast.floor f
    where queues is null
    order by f.part, f.queue, f.gen desc
  ), named as (
    select * from floors
    union all
    select p.part, n.name, f.floors
    from (select distinct u.name from unnest(queues) u(name)) n
    left join holdfast.queue q on q.name = n.name
    cross join lateral (
      select ((holdfast.queue_part(n.name) + step) % 64)::smallint as part
      from generate_series(0, coalesce(q.fanout, 1) - 1) step) p
    cross join lateral (
      select x.floors from holdfast.floor x where x.part = p.part and x.queue = n.name order by x.gen desc limit 1) f
  ), strays as (
    select s.part, s.id
    from named f
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

-- fold: add counter deltas to the totals, 20,000 per call, record their queues, and register queues that were only
-- enqueued into. A delta is visible once its transaction has committed. If jobs came or leases ended, jobs are ready
-- and a worker waits, then perhaps no worker waited when the jobs were stored, or a slot of a limit became free that
-- its last holder did not use. In that case one worker is notified now, and passes the notification on if there are
-- more jobs.
create or replace function holdfast.fold()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now    constant timestamptz := holdfast.now();
  v_at     constant timestamptz := holdfast.sample_at();
  v_apart  text[];
  v_folded integer;
  v_ready  text[];
begin
  if not exists (select from holdfast.tally) or not holdfast.take_turn('fold') then
    return 0;
  end if;
  v_apart := holdfast.queues_apart();
  with gone as (
    delete from holdfast.tally t
    where t.ctid = any(array(select x.ctid from holdfast.tally x limit 20000))
    returning t.*, t.xmin::text as call
  ), nets as (
    -- one call, one transaction: what it took from one queue and gave to another it moved
    select n.queue, n.net, n.cancelled, min(n.net) over w as least, max(n.net) over w as most
    from (
      select g.call, g.queue, sum(g.queued + g.leased + g.dead + g.done + g.cancelled + g.archived) as net,
             sum(g.cancelled) as cancelled
      from gone g
      group by g.call, g.queue
      having abs(sum(g.queued + g.leased + g.dead + g.done + g.cancelled + g.archived)) >= 5 or sum(g.cancelled) >= 5
    ) n
    window w as (partition by n.call)
  ), noted as (
    insert into holdfast.bulk (at, queue, sort, calls, jobs, largest)
    select v_now, b.queue, b.sort, count(*), sum(b.jobs), max(b.jobs)
    from (
      select n.queue, abs(case when n.net = 0 then n.cancelled else n.net end) as jobs,
             case when n.net > 0 and n.least < 0 then 'moved' when n.net > 0 then 'enqueued'
               when n.net < 0 and n.most > 0 then null
               when n.net < 0 then 'deleted'
               when n.cancelled > 0 then 'cancelled'
             end as sort
      from nets n
    ) b
    where b.sort is not null
    group by b.queue, b.sort
  ), sums as (
    select g.part, g.queue, g.kind, sum(g.queued) as queued, sum(g.leased) as leased, sum(g.dead) as dead,
           sum(g.done) as done, sum(g.cancelled) as cancelled, sum(g.archived) as archived,
           sum(g.reconciled) as reconciled, sum(g.enqueued) as enqueued, sum(g.failed) as failed, count(*) as deltas,
           sum(greatest(g.queued, 0) + greatest(-g.leased, 0)) as came
    from gone g
    group by g.part, g.queue, g.kind
  ), added as (
    insert into holdfast.total as t (part, queue, kind, queued, leased, dead, done, cancelled, archived, reconciled,
      enqueued, failed, at)
    select s.part, s.queue, s.kind, s.queued, s.leased, s.dead, s.done, s.cancelled, s.archived, s.reconciled,
           s.enqueued, s.failed, v_now
    from sums s
    on conflict (part, queue, kind) do update
    set queued = t.queued + excluded.queued, leased = t.leased + excluded.leased, dead = t.dead + excluded.dead,
        done = t.done + excluded.done, cancelled = t.cancelled + excluded.cancelled,
          archived = t.archived + excluded.archived,
        reconciled = t.reconciled + excluded.reconciled, enqueued = t.enqueued + excluded.enqueued,
          failed = t.failed + excluded.failed,
        at = excluded.at
  ), sampled as (
    insert into holdfast.sample as m (step, at, queue, kind, enqueued, done, failed)
    select 10, v_at, case when s.queue = any(v_apart) then s.queue else '' end, s.kind, sum(s.enqueued), sum(s.done),
           sum(s.failed)
    from sums s
    group by 3, 4
    having (sum(s.enqueued), sum(s.done), sum(s.failed)) is distinct from (0, 0, 0)
    on conflict (step, at, queue, kind) do update
    set enqueued = m.enqueued + excluded.enqueued, done = m.done + excluded.done, failed = m.failed + excluded.failed
  ), stirred as (
    insert into holdfast.stir as r (queue, at, clock)
    select s.queue, v_now, clock_timestamp() from (select distinct x.queue from sums x) s
    on conflict (queue) do update set at = excluded.at, clock = excluded.clock, raised = false
  ), known as (
    insert into holdfast.queue
    select d.*
    from (
      select distinct x.queue
      from sums x
      where length(x.queue) between 1 and 120 and not exists (select from holdfast.queue q where q.name = x.queue)
    ) s
    cross join lateral holdfast.unset_queue(s.queue) d
    on conflict do nothing
  )
  select coalesce(sum(s.deltas), 0), array_agg(s.queue) filter (where s.waited) into v_folded, v_ready
  from (
    select x.queue, sum(x.deltas) as deltas,
           sum(x.came) > 0 and exists (select from holdfast.waiter w where w.queue = x.queue
             and w.until > v_now) as waited
    from sums x
    group by x.queue
  ) s;
  perform holdfast.wake_for_ready(r, 1) from unnest(v_ready) r;
  return v_folded;
end
$$;

-- recount: compare the counters with the rows, in one snapshot, and write the difference as a delta. Two calls at
-- once run one after the other.
create or replace function holdfast.recount()
returns table (queue text, kind text, queued bigint, leased bigint, dead bigint, cancelled bigint, archived bigint)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- one after the other: the second sees what the first corrected
  select from holdfast.turn t where t.name = 'recount' for update;
  select holdfast.recount_dead();
  with counters as (
    select c.part, c.queue, c.kind, c.queued, c.leased, c.dead, c.cancelled, c.archived from holdfast.total c
    where c.part < 64
    union all
    select t.part, t.queue, t.kind, t.queued, t.leased, t.dead, t.cancelled, t.archived from holdfast.tally t
    where t.part < 64
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
    having (sum(d.queued), sum(d.leased), sum(d.dead), sum(d.cancelled), sum(d.archived)) 
      is distinct from (0, 0, 0, 0, 0)
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

-- turn_pages: create partitions for the coming days and drop old ones. Never for a day that has begun: a row on its
-- way to the default partition would be refused. Rows in the default partition are deleted in slices, by calls that
-- take no lock that would block writers; another call creates and drops partitions.
create or replace function holdfast.turn_pages(max_rows integer default 5000)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Pages can wait; workers cannot, and some may wait for jobs that this transaction holds.
set lock_timeout = '10ms'
as $$
declare
  v_today  constant date := (holdfast.now() at time zone 'UTC')::date;
  v_recent constant date := v_today - 1;   -- those of yesterday stay: each is kept for a day at least
  v_page   text;
  v_rows   integer;
  v_done   integer := 0;
  book     record;
  page     record;
begin
  if not holdfast.take_turn('turn pages') then
    return 0;
  end if;
  v_done := holdfast.mend_row_check();
  for book in select b.name, b.keep from holdfast.books() b loop
    execute format('delete from holdfast.%1$I where ctid = any(array(
      select x.ctid from holdfast.%1$I x where x.ended_at < $1 limit $2 for update skip locked))', book.name || '_rest')
    using ((v_today - book.keep)::timestamp at time zone 'UTC'), max_rows;
    get diagnostics v_rows = row_count;
    v_done := v_done + v_rows;
  end loop;
  delete from holdfast.history_rest r where r.ctid = any(array(
    select x.ctid from holdfast.history_rest x where x.recent and x.ended_at < v_recent::timestamp at time zone 'UTC'
    limit max_rows for update skip locked));
  get diagnostics v_rows = row_count;
  v_done := v_done + v_rows;
  -- tomorrow's page is not put off, however much there is to delete
  if v_done > 0 and to_regclass(format('holdfast.history_%s', to_char(v_today + 1, 'YYYYMMDD'))) is not null then
    return v_done;
  end if;
  for book in select b.name, b.keep from holdfast.books() b loop
    for ahead in 1 .. 3 loop
      v_page := format('%s_%s', book.name, to_char(v_today + ahead, 'YYYYMMDD'));
      continue when to_regclass(format('holdfast.%I', v_page)) is not null;
      begin
        execute format('create table holdfast.%I (like holdfast.%I including defaults including constraints)', v_page,
          book.name) || case when book.name = 'history' then ' partition by list (recent)' else '' end;
        if book.name = 'history' then   -- recent jobs go sooner, by dropping what they are in
          execute format('create table holdfast.%I partition of holdfast.%I for values in (true)', v_page || '_recent',
            v_page);
          execute format('create table holdfast.%I partition of holdfast.%I default', v_page || '_kept', v_page);
        end if;
        execute format('alter table holdfast.%I attach partition holdfast.%I for values from (%L) to (%L)',
          book.name, v_page, (v_today + ahead)::text || ' 00:00+00', (v_today + ahead + 1)::text || ' 00:00+00');
        v_done := v_done + 1;
      exception
        when check_violation or duplicate_table then
          null;
        when lock_not_available then
          return v_done;   -- busy, and there is time till tomorrow: what is locked by now must not be held any longer
      end;
    end loop;
    -- Compared as texts: other tables do not end in a date, and may be looked at before their names are.
    for page in
      select c.relname
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
      where i.inhparent = format('holdfast.%I', book.name)::regclass and c.relname ~ '_[0-9]{8}$'
        and right(c.relname, 8) < to_char(v_today - book.keep, 'YYYYMMDD')
      union all
      select h.relname
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
      join pg_inherits x on x.inhparent = c.oid
      join pg_class h on h.oid = x.inhrelid
      where i.inhparent = format('holdfast.%I', book.name)::regclass and h.relname ~ '_[0-9]{8}_recent$'
        and right(c.relname, 8) < to_char(v_recent, 'YYYYMMDD')
        and right(c.relname, 8) >= to_char(v_today - book.keep, 'YYYYMMDD')
    loop
      begin
        execute format('drop table holdfast.%I', page.relname);
        v_done := v_done + 1;
      exception when lock_not_available then
        return v_done;
      end;
    end loop;
  end loop;
  return v_done;
end
$$;

-- mend_row_check: make the trigger that checks rows of producers accept those of Holdfast's own functions, after a
-- change of owner. The trigger names the owner, because that is cheapest; after a restore it may be another role, and
-- then jobs of Holdfast itself were refused.
create or replace function holdfast.mend_row_check()
returns integer
language plpgsql
as $$
declare
  v_owner constant text := (select r.rolname from pg_class c join pg_roles r on r.oid = c.relowner
    where c.oid = 'holdfast.job'::regclass);
begin
  if exists (
    select from pg_trigger t
    where t.tgrelid = 'holdfast.job'::regclass and t.tgname = 'rows of producers are checked'
      and position(quote_literal(v_owner) || '::name' in pg_get_triggerdef(t.oid)) > 0) then
    return 0;
  end if;
  execute format('create or replace trigger "rows of producers are checked" after insert on holdfast.job for each row
    when (current_user <> %L::name) execute function holdfast.check_row()', v_owner);
  return 1;
exception when lock_not_available then
  return 0;   -- busy: there is another turn
end
$$;

-- books: what is kept by days, and for how many. Limited, so that no setting leads to an invalid date.
create or replace function holdfast.books()
returns table (name text, keep integer)
language sql stable
as $$
  select 'history', ceil(extract(epoch from least(interval '100 years', greatest(interval '7 days',
    (select max(q.keep_done) from holdfast.queue q where q.keep_done > '0'),
    -- what is to be archived is not dropped before there was a day for it
    (select max(q.archive_done) from holdfast.queue q
      where q.archive_done is not null) + interval '1 day'))) / 86400)::integer
  union all
  select 'attempt', 30
$$;

-- upkeep: every step once, or those named, for a cron job or an idle client. Each does a limited amount: more means
-- that there is more to do at once. Floors and pages come last, because they hold locks that others need. A step that
-- fails does not stop the others: failed has the step and the error.
create or replace function holdfast.upkeep(steps text[] default null)
returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_done   jsonb := '{}';
  v_failed jsonb := '{}';
  v_more   boolean := false;
  v_amount bigint;
  step     record;
begin
  perform holdfast.refuse_old_snapshot('upkeep');
  select u.name into step from unnest(steps) u(name)
  where not exists (select from holdfast.upkeep_steps() s where s.name = u.name) limit 1;
  if found then
    perform holdfast.refuse('HF221', format('no step of upkeep is called %L', step.name), null,
      'Steps are: ' || (select string_agg(s.name, ', ') from holdfast.upkeep_steps() s) || '.');
  end if;
  for step in
    select s.name, s.part_of, s.most from holdfast.upkeep_steps() s where steps is null or s.name = any(steps)
    order by s.nth
  loop
    begin
      v_amount := holdfast.upkeep_step(step.name);
      v_done := v_done || jsonb_build_object(step.part_of, coalesce((v_done ->> step.part_of)::bigint, 0) + v_amount);
      v_more := v_more or coalesce(v_amount >= step.most, false);
      perform holdfast.note_working(step.name);
    exception when others then
      -- a server that is read-only or going away fails whatever comes next: its caller must know
      if holdfast.is_hopeless(sqlstate) then
        raise;
      end if;
      v_failed := v_failed || jsonb_build_object(step.name, format('%s: %s', sqlstate, sqlerrm));
      perform holdfast.note_failing(step.name, '', sqlstate, sqlerrm);
    end;
  end loop;
  return v_done - 'forgotten' - array(select jsonb_object_keys(v_failed))
    || case when v_failed = '{}' then '{}' else jsonb_build_object('failed', v_failed) end
    || case when v_more then '{"more": true}' else jsonb '{}' end;
end
$$;

-- refuse_old_snapshot: refuse to work on rows that the caller's snapshot cannot see. It would see which transactions
-- still write, but not what they wrote: floors would pass it, and settings would not reach it.
create or replace function holdfast.refuse_old_snapshot(verb text)
returns void
language plpgsql
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.refuse('HF209', format('%s was called at isolation level %s', verb,
      current_setting('transaction_isolation')), null,
      'It needs the newest rows: call it at read committed.');
  end if;
end
$$;

-- upkeep_steps: the steps of upkeep in order, the name of their count, and the count at which there may be more.
create or replace function holdfast.upkeep_steps()
returns table (nth bigint, name text, part_of text, most integer)
language sql immutable
as $$
  select row_number() over (), s.name, s.part_of, s.most
  from (values
    ('forgotten', 'forgotten', 5000), ('operations', 'forgotten', null), ('notes', 'forgotten', null),
      ('unused', 'forgotten', null), ('unreadable', 'forgotten', null), ('links', 'forgotten', null),
      ('workflows', 'forgotten', null), ('lines', 'forgotten', null),
    ('reaped', 'reaped', 1000), ('rescued', 'reaped', 1000), ('promoted', 'promoted', 1000),
      ('unstruck', 'unstruck', 1000), ('expired', 'expired', null), ('strays', 'promoted', 1000),
    ('follows', 'unblocked', 1000), ('settings', 'unblocked', null), ('starts', 'forgotten', null),
    ('unblocked', 'unblocked', null), ('lanes', 'forgotten', null), ('folded', 'folded', 20000),
      ('dead', 'folded', null),
    ('sampled', 'sampled', null), ('rolled', 'sampled', null), ('archived', 'archived', 500),
      ('activity', 'pages', null), ('floors', 'floors', 200),
    ('raised', 'floors', 200), ('pages', 'pages', 5000)
  ) s(name, part_of, most)
$$;

create or replace function holdfast.upkeep_step(step text)
returns bigint
language plpgsql
as $$
declare
  v_now  constant timestamptz := holdfast.now();
  v_gone bigint;
begin
  case step
    when 'forgotten' then
      return holdfast.forget_old(5000);
    when 'operations' then
      with old as (
        update holdfast.operation o set undoable = 0
        where o.undoable > 0 and coalesce(o.ended_at, o.started_at) < v_now - interval '7 days' and o.state <> 'running'
        returning o.id)
      delete from holdfast.operation_chunk c using old where c.operation = old.id;
      delete from holdfast.awaited a where a.until < v_now;
      if holdfast.chore_due('listening', '10 minutes') then
        perform holdfast.stop_listening();
      end if;
      delete from holdfast.operation o where o.state = 'previewed' and o.created_at < v_now - interval '1 hour';
      return 0;
    when 'notes' then
      perform holdfast.fold_notes();
      return 0;
    when 'unused' then
      return case when holdfast.chore_due(step, '1 minute') then holdfast.forget_unused() else 0 end;
    when 'unreadable' then
      return case when holdfast.chore_due(step, '1 minute') then holdfast.forget_unreadable() else 0 end;
    when 'links' then
      -- A walk that has begun goes on soon: jobs that are kept for a while leave as many behind as they had.
      return case
        when holdfast.chore_due(step, (
          select case when c.cursor = '{}' then interval '1 minute' else '2 seconds' end
          from holdfast.chore c where c.name = 'links')) then holdfast.forget_links()
        else 0 end;
    when 'lines' then
      return case when holdfast.chore_due(step, '10 seconds') then holdfast.forget_lines() else 0 end;
    when 'workflows' then
      return case when holdfast.chore_due(step, '1 second') then 0 * holdfast.tend_workflows() else 0 end;
    when 'reaped' then
      return (select count(*) from holdfast.reap(1000));
    when 'rescued' then
      return holdfast.rescue(1000);
    when 'promoted' then
      return holdfast.promote(1000) + holdfast.ring_kept() + holdfast.hand_out_rest();
    when 'unstruck' then
      return holdfast.unstrike(1000);
    when 'expired' then
      return case when holdfast.chore_due(step, '5 seconds') then holdfast.end_all_expired() else 0 end;
    when 'strays' then
      return holdfast.send_strays(1000);
    when 'follows' then
      return holdfast.sweep_follows();
    when 'settings' then
      return 0 * holdfast.redo_settings();
    when 'starts' then
      return holdfast.forget_starts();
    when 'unblocked' then
      return holdfast.sweep_lanes(200);
    when 'lanes' then
      return holdfast.forget_lanes(200);
    when 'folded' then
      return holdfast.fold();
    when 'dead' then
      return holdfast.fold_dead();
    when 'sampled' then
      return holdfast.take_samples();
    when 'rolled' then
      return holdfast.roll_samples();
    when 'archived' then
      return holdfast.archive_old();
    when 'activity' then
      return case when holdfast.chore_due('activity', '1 minute') then holdfast.forget_activity() else 0 end;
    when 'floors' then
      return holdfast.raise_floors();
    when 'raised' then
      -- once more: floors follow one call behind
      return case when exists (select from holdfast.stir s where not s.raised) then holdfast.raise_floors() else 0 end;
    when 'pages' then
      return case when holdfast.chore_due('paged', '1 minute') then holdfast.turn_pages() else 0 end;
  end case;
end
$$;

-- end_all_expired: end waiting jobs that have expired and that nobody claims: of paused queues, of queues without
-- workers, not due yet, or behind others. Looks at up to 50,000 jobs, in batches; returns how many it ended.
create or replace function holdfast.end_all_expired()
returns bigint
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_done bigint := 0;
  v_rows tid[];
  v_part smallint;
  v_ids  uuid[];
begin
  for turn in 1 .. 10 loop
    v_rows := array(
      select x.ctid from holdfast.expiry x where x.look_at <= v_now order by x.look_at limit 5000
      for update skip locked);
    exit when cardinality(v_rows) = 0;
    lock table holdfast.job in row exclusive mode;
    for v_part, v_ids in
      with late as materialized (
        select j.part, j.id
        from holdfast.expiry x
        join holdfast.job j on j.part = any(array[x.part]) and j.id = x.id
        where x.ctid = any(v_rows) and j.expires_at <= v_now and j.token is null and j.link is null
        for update of j skip locked
      )
      select l.part, array_agg(distinct l.id) from late l group by l.part
    loop
      perform holdfast.end_expired(v_part, v_ids, v_now);
      v_done := v_done + cardinality(v_ids);
    end loop;
    v_done := v_done + holdfast.end_linked_expired(array(
      select j.id
      from holdfast.expiry x
      join holdfast.job j on j.part = any(array[x.part]) and j.id = x.id
      where x.ctid = any(v_rows) and j.expires_at <= v_now and j.token is null and j.link is not null), v_now);
    -- One that runs may have to wait again, and one that will expire may be gone before: looked at ever more rarely.
    with there as materialized (
      select x.ctid as place, j.expires_at
      from holdfast.expiry x
      join holdfast.job j on j.part = any(array[x.part]) and j.id = x.id
      where x.ctid = any(v_rows) and j.expires_at is not null
    ), kept as (
      update holdfast.expiry x
      set look_at = case when t.expires_at <= v_now then v_now + interval '1 minute'
                         else least(t.expires_at, v_now + greatest(v_now - x.noted_at, interval '1 hour')) end
      from there t
      where x.ctid = t.place
    )
    delete from holdfast.expiry x
    where x.ctid = any(v_rows) and (x.ctid in (select t.place from there t)) is not true;
    exit when cardinality(v_rows) < 5000;
  end loop;
  return v_done;
end
$$;

-- end_linked_expired: end those of these jobs that have expired. Others follow them, or they follow others: they are
-- locked in the order of all who end such jobs, not as they are found. It waits for nobody: what somebody else has
-- locked, or what follows it, is looked at again later. Returns how many.
create or replace function holdfast.end_linked_expired(ids uuid[], at timestamptz)
returns bigint
language plpgsql
set lock_timeout = '10ms'
as $$
#variable_conflict use_column
declare
  v_done  bigint := 0;
  v_ended bigint;
  v_stuck bigint := 0;
  v_links uuid[] := '{}';
  v_one   uuid;
  v_part  smallint;
  v_ids   uuid[];
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  begin
    ids := (holdfast.lock_to_end(ids)).locked;
    for v_part, v_ids in
      select j.part, array_agg(j.id)
      from unnest(ids) u(id)
      join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
      where j.expires_at <= end_linked_expired.at and j.token is null
      group by j.part
      order by j.part
    loop
      v_done := v_done + cardinality(v_ids);
      v_links := v_links || array(
        select c.link
        from holdfast.end_cancelled(v_part, v_ids, array_fill(null::uuid, array[cardinality(v_ids)]),
          array_fill('expired'::text, array[cardinality(v_ids)]), 'cancelled', at, 'expiry', alone => true) c
        where c.link is not null);
    end loop;
    perform holdfast.end_links(v_links, 'cancelled', at);
    return v_done;
  exception when lock_not_available then
    if cardinality(ids) = 1 then
      return 0;
    end if;
  end;
  -- one by one, so that one of them holds up no other
  v_done := 0;
  foreach v_one in array ids loop
    v_ended := holdfast.end_linked_expired(array[v_one], at);
    v_done := v_done + v_ended;
    v_stuck := v_stuck + 1 - v_ended;
    exit when v_stuck = 20;
  end loop;
  return v_done;
end
$$;

-- note_expiry: jobs that expire, for upkeep to look at.
create or replace function holdfast.note_expiry(ids uuid[], at timestamptz)
returns void
language sql
set enable_seqscan = off
as $$
  insert into holdfast.expiry (look_at, part, id, noted_at)
  select least(j.expires_at, note_expiry.at + interval '1 hour'), j.part, j.id, note_expiry.at
  from unnest(ids) u(id)
  join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
  where j.expires_at is not null
$$;

-- chore_due: true for one caller in each span of every; if another caller is at it, false.
create or replace function holdfast.chore_due(chore text, every interval)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.now();
begin
  update holdfast.chore c
  set at = v_now
  where c.ctid = any(array(
    select x.ctid from holdfast.chore x
    where x.name = chore_due.chore and (x.at <= v_now - every or x.at > v_now) for update skip locked));
  return found;
end
$$;

-- archive_old: archive jobs that have been dead or done for as long as their queue's setting: at most about this many
-- jobs, of a hundred queues per call; the next call continues there. A dead job that halts its lane is left to an
-- operator. Done jobs have no order by queue: their part is read in windows of the order of ids, and again a minute
-- after its end.
create or replace function holdfast.archive_old(most integer default 500, max_rows integer default 2000)
returns bigint
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.now();
  v_from   text;
  v_last   text;
  v_names  integer := 0;
  v_done   bigint := 0;
  v_ids    uuid[];
  q        record;
  sweep    record;
  seen     record;
begin
  if not exists (select from holdfast.queue x where x.archive_dead is not null or x.archive_done is not null)
     or not holdfast.take_turn('archive') then
    return 0;
  end if;
  select c.cursor[1] into v_from from holdfast.chore c where c.name = 'archived';
  for q in
    select x.name, x.archive_dead, x.archive_done, x.fanout
    from holdfast.queue x
    where x.archive_dead is not null or x.archive_done is not null
    order by x.name <= coalesce(v_from, ''), x.name
    limit 100
  loop
    v_last := q.name;
    v_names := v_names + 1;
    if q.archive_dead is not null then
      v_ids := array(
        select d.id
        from holdfast.dead d
        where d.queue between q.name and q.name and d.ended_at <= v_now - q.archive_dead
          and not exists (select from holdfast.lane l where l.halted_by = d.id)
        order by d.queue, d.ended_at
        limit most - v_done
        for update skip locked);   -- upkeep waits for no operator
      v_done := v_done + cardinality(holdfast.archived(v_ids, format('dead for %s (archive_dead of its queue)',
        justify_hours(q.archive_dead)), 'upkeep', 'dead', v_now - q.archive_dead));
    end if;
    if q.archive_done is not null then
      insert into holdfast.chore (name) values ('archived ' || q.name) on conflict do nothing;
      select c.at, coalesce(c.cursor[1]::integer, 0) as step,
             coalesce(c.cursor[2]::uuid, '00000000-0000-0000-0000-000000000000') as id
      into sweep
      from holdfast.chore c
      where c.name = 'archived ' || q.name and (c.cursor <> '{}' or not c.at between v_now - interval '1 minute'
        and v_now);
      if found then
        select array_agg(w.id) filter (where w.hit) as ids, count(*) as rows,
               (array_agg(w.id order by w.id desc))[1] as last
        into seen
        from (
          select h.id, h.queue = q.name and h.state = 'done' as hit
          from holdfast.history h
          where h.part = ((holdfast.queue_part(q.name) + sweep.step) % 64)::smallint and h.id > sweep.id
            and h.ended_at <= v_now - q.archive_done
          order by h.id
          limit max_rows
        ) w;
        v_ids := array(
          select h.id
          from holdfast.history h
          where h.part = ((holdfast.queue_part(q.name) + sweep.step) % 64)::smallint and h.id = any(seen.ids)
            and h.ended_at <= v_now - q.archive_done
          for update skip locked);
        v_done := v_done + cardinality(holdfast.archived(v_ids, format('done for %s (archive_done of its queue)',
          justify_hours(q.archive_done)), 'upkeep', 'done', v_now - q.archive_done));
        update holdfast.chore c
        set cursor = case
              when seen.rows >= max_rows then array[sweep.step::text, seen.last::text]
              when sweep.step + 1 < q.fanout then array[(sweep.step + 1)::text, '00000000-0000-0000-0000-000000000000']
              else '{}' end,
            at = v_now
        where c.name = 'archived ' || q.name;
      end if;
    end if;
    exit when v_done >= most;
  end loop;
  update holdfast.chore c
  set cursor = case when v_names < 100 and v_done < most then '{}' else array[v_last] end
  where c.name = 'archived' and c.cursor <> case when v_names < 100 and v_done < most then '{}' else array[v_last] end;
  delete from holdfast.chore c
  where c.name like 'archived %' and not exists (
    select from holdfast.queue x where x.name = substr(c.name, 10) and x.archive_done is not null);
  return v_done;
end
$$;

-- forget_old: delete old rows of tables that only grow; at most this many of each.
create or replace function holdfast.forget_old(most integer)
returns bigint
language plpgsql
as $$
declare
  v_now  constant timestamptz := holdfast.now();
  v_gone bigint;
  v_most bigint := 0;
begin
  delete from holdfast.waiter w where w.until < v_now - interval '1 minute';
  delete from holdfast.lease l where l.ctid = any(array(
    select x.ctid from holdfast.lease x where not x.open and x.until < v_now order by x.until limit most
    for update skip locked));
  get diagnostics v_gone = row_count;
  v_most := greatest(v_most, v_gone);
  delete from holdfast.request r where r.ctid = any(array(
    select x.ctid from holdfast.request x where x.at < v_now - interval '1 day' order by x.at limit most
    for update skip locked));
  get diagnostics v_gone = row_count;
  v_most := greatest(v_most, v_gone);
  delete from holdfast.worker w where w.seen_at < v_now - interval '1 day';
  delete from holdfast.api_token t where t.sort <> 'token' and t.expires_at < v_now;
  delete from holdfast.reply_link l where l.ctid = any(array(
    select x.ctid from holdfast.reply_link x where x.expires_at < v_now order by x.expires_at limit most
    for update skip locked));
  delete from holdfast.strike s where s.ended_at < v_now - interval '90 days'
    and not exists (select from holdfast.job j where j.strike = s.number);
  delete from holdfast.adopted_lives l where l.ctid = any(array(
    select x.ctid from holdfast.adopted_lives x where x.at < v_now - interval '90 days' order by x.at limit most
    for update skip locked));
  perform holdfast.forget_aliases();
  delete from holdfast.failing f where f.at < v_now - interval '1 hour' or f.at > v_now;
  delete from holdfast.stir s where s.ctid = any(array(
    select x.ctid from holdfast.stir x where x.raised and x.at < v_now - interval '2 minutes' limit most
    for update skip locked));
  return v_most;
end
$$;

-- forget_unused: delete the counters, floors, readings and gates of queues without settings and jobs, in which
-- nothing happened for longer than their data is kept. Checks this many names per call, and continues there.
create or replace function holdfast.forget_unused(max_names integer default 200)
returns integer
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_cut    constant timestamptz := holdfast.now() - make_interval(days => (select max(b.keep) from holdfast.books() b));
  v_from   text[];
  v_to     text[] := '{}';
  v_gone   integer := 0;
  these    record;
begin
  -- not while a fold is adding to what would be forgotten
  if not holdfast.take_turn('fold') then
    return 0;
  end if;
  select c.cursor into v_from from holdfast.chore c where c.name = 'unused';
  for these in
    with recursive known as (
      (select t.part, t.queue, 1 as nth
       from holdfast.total t
       where (t.part, t.queue) > (coalesce(v_from[1]::smallint, -1::smallint), coalesce(v_from[2], ''))
       order by t.part, t.queue
       limit 1)
      union all
      select n.part, n.queue, k.nth + 1
      from known k
      cross join lateral (
        select t.part, t.queue from holdfast.total t where (t.part, t.queue) > (k.part, k.queue) 
        order by t.part, t.queue limit 1) n
      where k.nth < max_names
    )
    select k.part, k.queue, k.nth,
           (select max(t.at) < v_cut and bool_and((t.queued, t.leased, t.dead, t.archived) = (0, 0, 0, 0))
            from holdfast.total t where t.part = k.part and t.queue = k.queue) as idle
    from known k
  loop
    if these.nth = max_names then
      v_to := array[these.part::text, these.queue];
    end if;
    continue when not these.idle or these.part >= 64
      or exists (select from holdfast.queue q where q.name = these.queue
        and num_nonnulls(q.set_at, q.paused_at, q.adopted) > 0)
      or exists (select from holdfast.tally t where t.queue = these.queue)
      or exists (select from holdfast.job j where j.part = these.part and j.queue = these.queue and j.pos is not null)
      or exists (select from holdfast.job j where j.part = these.part and j.queue = these.queue and j.pos is null
        and not j.blocked);
    delete from holdfast.total t where t.part = these.part and t.queue = these.queue;
    delete from holdfast.floor f where f.part = these.part and f.queue = these.queue;
    delete from holdfast.gate g where g.part = these.part and g.queue = these.queue;
    delete from holdfast.rate_use u where u.part = these.part and u.queue = these.queue;
    delete from holdfast.reading r where r.queue = these.queue;
    delete from holdfast.sampled s where s.queue = these.queue;
    delete from holdfast.stir s where s.queue = these.queue;
    delete from holdfast.queue q where q.name = these.queue and num_nonnulls(q.set_at, q.paused_at, q.adopted) = 0;
    v_gone := v_gone + 1;
  end loop;
  perform holdfast.keep_cursor('unused', v_from, v_to);
  return v_gone;
end
$$;

-- is_hopeless: whether an error concerns the server and not the step: read-only, shutting down, out of space, a
-- cancelled wait.
create or replace function holdfast.is_hopeless(state text)
returns boolean
language sql immutable
as $$ select state like any ('{25%,57%,53%}') $$;

-- note_failing: record that a step of upkeep failed, as a whole or for one queue. Each call tries it again.
create or replace function holdfast.note_failing(step text, queue text, state text, problem text)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  -- whoever else notes something at this moment will do: nobody waits here
  if holdfast.take_turn('failing') then
    insert into holdfast.failing as f (step, queue, since, at, problem)
    values (note_failing.step, note_failing.queue, holdfast.now(), holdfast.now(),
      left(format('%s: %s', note_failing.state, note_failing.problem), 1000))
    on conflict (step, queue) do update set at = excluded.at, times = f.times + 1, problem = excluded.problem;
  end if;
end
$$;

-- note_working: record that a step succeeded for everything it checked.
create or replace function holdfast.note_working(step text)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  if exists (select from holdfast.failing f where f.step = note_working.step and f.queue = '')
    and holdfast.take_turn('failing') then
    delete from holdfast.failing f where f.step = note_working.step and f.queue = '';
  end if;
end
$$;
