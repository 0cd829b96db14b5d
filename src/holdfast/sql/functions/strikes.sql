-- Strikes: rules that keep jobs from running for a while, by queue, kind and payload. They take effect at the claim:
-- no claim after strike_add is committed returns such a job. hold keeps them waiting; skip ends them as cancelled.
-- Jobs in a lane that are held back keep their place, and the lane waits behind them.

-- strike_add: stop matching jobs, until lifted or for expires from now. Running jobs finish.
create or replace function holdfast.strike_add(
  mode text default 'hold', queue text default null, kind text default null, payload jsonb default null,
  reason text default null, expires interval default null, actor text default null)
returns setof holdfast.strikes
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_number bigint;
begin
  if not coalesce(mode in ('hold', 'skip'), false) then
    perform holdfast.refuse('HF228', format('mode %L is not hold or skip', mode), null,
      'hold keeps jobs waiting, skip ends them as cancelled.');
  end if;
  if num_nonnulls(queue, kind, payload) = 0 then
    perform holdfast.refuse('HF228', 'a strike needs a queue, a kind or a payload', null,
      'To stop a whole queue, pause it.');
  end if;
  if queue is not null then
    perform holdfast.named('queue', queue, 120);
  end if;
  if kind is not null then
    perform holdfast.named('kind', kind);
  end if;
  if jsonb_typeof(payload) <> 'object' or payload = '{}' or pg_column_size(payload) > 8192 then
    perform holdfast.refuse('HF228', format('payload %s is not valid for a strike',
      holdfast.told(payload, 200)), null,
      'Give an object with at least one field, such as {"user": 42}.');
  end if;
  if payload is not null and kind is not null then
    perform holdfast.refuse_coded(array[kind], 'payload');
  end if;
  perform holdfast.check_value('payload of the strike', payload, 8192);
  perform holdfast.check_length('expires', expires, '100 years');
  if expires = '0' then
    perform holdfast.refuse('HF228', 'expires must be above 0 (got 0)', null,
      'Leave it out to lift the strike yourself.');
  end if;
  insert into holdfast.strike (mode, queue, kind, payload, reason, actor, created_at, expires_at)
  values (strike_add.mode, strike_add.queue, strike_add.kind, strike_add.payload, strike_add.reason, strike_add.actor,
    holdfast.now(),
    coalesce(holdfast.now() + strike_add.expires, 'infinity'))
  returning number into v_number;
  perform holdfast.note('struck', actor, reason, queue,
    jsonb_build_object('strike', v_number, 'mode', mode, 'payload', payload, 'expires', expires), kind);
  return query select s.* from holdfast.strikes s where s.number = v_number;
end
$$;

-- strike_lift: let the jobs of a strike run again; they go to the end of their priority. No row if there is no such
-- strike; one that has ended does not change.
create or replace function holdfast.strike_lift(number bigint, reason text default null, actor text default null)
returns setof holdfast.strikes
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.strike s
  set ended_at = holdfast.now(), ended_by = strike_lift.actor
  where s.number = strike_lift.number and s.ended_at is null;
  if found then
    perform holdfast.note('strike_lifted', actor, reason, s.queue, jsonb_build_object('strike', s.number), s.kind)
    from holdfast.strike s
    where s.number = strike_lift.number;
    perform holdfast.unstrike(1000);
  end if;
  return query select s.* from holdfast.strikes s where s.number = strike_lift.number;
end
$$;

-- unstrike: return jobs whose strike has ended to the ready order, in the order in which they were due; of one queue,
-- or of all.
create or replace function holdfast.unstrike(max_jobs integer default 1000, only_queue text default null)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  these  record;
begin
  update holdfast.strike s set ended_at = s.expires_at
  where s.ctid = any(array(
    select x.ctid from holdfast.strike x where x.ended_at is null and x.expires_at <= v_now for update skip locked));
  if not exists (select from holdfast.job j where j.strike is not null) then
    return 0;
  end if;
  with freed as materialized (
    select j.ctid, j.part, j.run_at
    from holdfast.strike s
    cross join lateral (
      select x.ctid, x.part, x.run_at
      from holdfast.job x
      where x.strike = s.number and (only_queue is null or x.queue = only_queue)
      limit max_jobs
      for update skip locked
    ) j
    where s.ended_at is not null
    limit max_jobs
  ), placed as materialized (
    select f.ctid, f.part, nextval('holdfast.pos') as pos from (select x.* from freed x order by x.run_at) f
  ), moved as (
    update holdfast.job j
    set strike = null, blocked = false, pos = p.pos
    from placed p
    where j.ctid = p.ctid and j.part + 0 = p.part
    returning j.queue
  )
  select array_agg(distinct m.queue) as queues, count(*)::integer as jobs into these from moved m;
  if these.jobs > 0 then
    perform holdfast.wake(these.queues, these.jobs);
  end if;
  return these.jobs;
end
$$;

-- strike_of: the strike that applies to a job, the oldest if there are several; null if there is none.
create or replace function holdfast.strike_of(queue text, kind text, payload jsonb, at timestamptz)
returns bigint
language sql stable
as $$
  select s.number
  from holdfast.strike s
  where s.ended_at is null and s.expires_at > strike_of.at
    and coalesce(s.queue = strike_of.queue, true) and coalesce(s.kind = strike_of.kind, true)
    and coalesce(strike_of.payload @> s.payload, true)
  order by s.number
  limit 1
$$;

-- held_back: whether the strike that applies to a job keeps it waiting.
create or replace function holdfast.held_back(queue text, kind text, payload jsonb, at timestamptz)
returns boolean
language sql stable
as $$
  select s.mode = 'hold'
  from holdfast.strike s
  where s.number = holdfast.strike_of(held_back.queue, held_back.kind, held_back.payload, held_back.at)
$$;

-- pass_strikes: of the jobs that a claim has chosen and locked, those without a strike. The others leave the ready
-- order, to wait or as cancelled. moved counts them.
create or replace function holdfast.pass_strikes(
  part smallint, rows tid[], at timestamptz, out passed tid[], out moved integer)
language plpgsql
as $$
#variable_conflict use_column
declare
  met record;
begin
  select array_agg(j.ctid) filter (where j.strike is null) as free,
         array_agg(j.ctid) filter (where s.mode = 'hold' and j.lane is null) as held,
         array_agg(j.strike) filter (where s.mode = 'hold' and j.lane is null) as strikes,
         array_agg(j.id) filter (where s.mode = 'skip') as ended,
         array_agg(format('skipped by strike %s%s', s.number,
         ': ' || s.reason)) filter (where s.mode = 'skip') as reasons,
         array_agg(s.number) filter (where s.number is not null and (s.mode = 'skip' or j.lane is null)) as numbers
  into met
  from (
    select x.ctid, x.id, x.lane, holdfast.strike_of(x.queue, x.kind, x.payload, pass_strikes.at) as strike
    from holdfast.job x
    where x.ctid = any(rows) and x.part + 0 = pass_strikes.part
    offset 0
  ) j
  left join holdfast.strike s on s.number = j.strike;
  passed := met.free;
  moved := coalesce(cardinality(met.numbers), 0);
  if met.held is not null then
    update holdfast.job j
    set strike = u.strike, blocked = true, pos = null
    from unnest(met.held, met.strikes) u(place, strike)
    where j.ctid = u.place and j.part + 0 = pass_strikes.part;
  end if;
  if met.ended is not null then
    perform holdfast.end_cancelled(part, met.ended, array_fill(null::uuid, array[cardinality(met.ended)]), met.reasons,
      'cancelled', at, 'strike');
  end if;
end
$$;

-- strike_ahead: remove jobs with a strike from the head of the ready order, so that a claim for one job does not have
-- to skip a million of them one by one.
create or replace function holdfast.strike_ahead(part smallint, queue text, floors bigint[], at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_rows tid[] := array(
    select r.ctid
    from unnest(floors) with ordinality as f(floor, nth)
    cross join lateral (
      select j.ctid, holdfast.strike_of(j.queue, j.kind, j.payload, strike_ahead.at) as strike
      from holdfast.job j
      where j.part = strike_ahead.part and j.queue = strike_ahead.queue and j.priority = (10 - f.nth)::smallint
        and j.pos >= f.floor and j.token is null and j.lane is null
      order by j.pos
      limit 1000
    ) r
    where r.strike is not null
    limit 1000);
begin
  v_rows := array(select j.ctid from holdfast.job j where j.ctid = any(v_rows)
    and j.part + 0 = strike_ahead.part and j.token is null and j.pos is not null for update skip locked);
  return (select p.moved from holdfast.pass_strikes(part, v_rows, at) p);
end
$$;
