-- Numbers over time. fold adds counts to the current sample; take_samples records how many jobs wait, and what
-- workers measured; roll_samples adds samples up to coarser ones and deletes the fine ones: 10 seconds for 3 hours, a
-- minute for 2 days, 10 minutes for 14 days, an hour for 400 days.

-- series: one metric over time, a value per step from since to until: of queues, null for all, and one kind, null for
-- all. enqueued, done and failed are per second, oldest and the quantiles are seconds. There is no row for times
-- without samples; a quantile is null if nothing was measured. Values per second appear when their ten seconds are
-- over: earlier, they would look too low.
create or replace function holdfast.series(
  metric text, queues text[] default null, kind text default null, since timestamptz default null,
  until timestamptz default null, step interval default '1 minute')
returns table (at timestamptz, value double precision)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_step  double precision := extract(epoch from step);
  v_since timestamptz := coalesce(since, v_now - interval '1 hour');
  v_fine  integer;
  v_share double precision := case split_part(metric, '_p', 2) when '50' then 0.5 when '95' then 0.95
    when '99' then 0.99 end;
begin
  if not coalesce(metric = any('{enqueued,done,failed,queued,leased,dead,oldest,pickup_p50,pickup_p95,pickup_p99,'
    'run_p50,run_p95,run_p99}'), false) then
    perform holdfast.refuse('HF229', format('metric %L is unknown', metric), null,
      'Metrics are: enqueued, done, failed, queued, leased, dead, oldest, and p50, p95, p99 of pickup and run, as in '
      'run_p95.');
  end if;
  if not coalesce(v_step between 1 and 86400 * 31, false) then
    perform holdfast.refuse('HF204', format('step %s is out of range', step), null, 'It is 1 second to 31 days.');
  end if;
  v_fine := case
    when v_since >= v_now - interval '3 hours' and v_step < 60 then 10
    when v_since >= v_now - interval '2 days' and v_step < 600 then 60
    when v_since >= v_now - interval '14 days' and v_step < 3600 then 600
    else 3600
  end;
  v_step := greatest(v_step, v_fine);
  v_since := greatest(v_since, v_now - make_interval(secs => 10000 * v_step));
  return query
    with fine as materialized (
      select s.*, to_timestamp(floor(extract(epoch from s.at)::double precision / v_step) * v_step) as cell
      from holdfast.sample s
      where s.step = v_fine and s.at >= v_since and (until is null or s.at < until)
        and (s.at < holdfast.sample_at() or not metric = any('{enqueued,done,failed}'))
    ), looked as (
      select f.cell, count(*) as times from fine f where f.queue = '' and f.kind = '' group by f.cell
    ), mine as (
      select f.*
      from fine f
      where (queues is null or f.queue = any(queues)) and (series.kind is null or f.kind = series.kind
        or metric = 'oldest' and f.kind = '')
    ), summed as (
      select m.cell, sum(m.enqueued) as enqueued, sum(m.done) as done, sum(m.failed) as failed,
             sum(m.queued) as queued, sum(m.leased) as leased, sum(m.dead) as dead, max(m.oldest) as oldest
      from mine m
      group by m.cell
    ), spread as (
      select p.cell, array_agg(p.jobs order by p.nth) as counts
      from (
        select m.cell, u.nth, sum(u.jobs)::bigint as jobs
        from mine m
        cross join lateral unnest(case when metric like 'pickup%' then m.pickup else m.run end) with ordinality u(jobs,
          nth)
        where v_share is not null
        group by m.cell, u.nth
      ) p
      group by p.cell
    )
    select l.cell, case
      when v_share is not null then holdfast.quantile(c.counts, v_share)
      when metric = 'oldest' then coalesce(s.oldest, 0)
      when metric = any('{queued,leased,dead}') then
        coalesce(case metric when 'queued' then s.queued when 'leased' then s.leased else s.dead end, 0) / l.times
      else coalesce(case metric when 'enqueued' then s.enqueued
        when 'done' then s.done else s.failed end, 0) / (l.times * v_fine)
    end
    from looked l
    left join summed s on s.cell = l.cell
    left join spread c on c.cell = l.cell
    order by l.cell;
end
$$;

-- success: for each queue and kind, how many attempts succeeded and failed in the last span, and the share that
-- succeeded; a row without a kind is for the whole queue. An expired attempt counts as failed; released and cancelled
-- ones do not count. Up to the last fold; coarse samples are used if there are some.
create or replace function holdfast.success(only_queue text default null, span interval default '1 hour')
returns table (queue text, kind text, done bigint, failed bigint, rate double precision)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_since constant timestamptz := holdfast.now() - span;
  v_tens  timestamptz;   -- from here on the next finer samples have to do
  v_ones  timestamptz;
begin
  if not coalesce(span between interval '10 seconds' and interval '14 days', false) then
    perform holdfast.refuse('HF204', format('span %s is out of range', coalesce(span::text, 'null')), null,
      'It is 10 seconds to 14 days.');
  end if;
  v_tens := case when span > interval '3 hours'
    then (select max(s.at) + interval '600 seconds' from holdfast.sample s where s.step = 600 and s.at >= v_since) end;
  v_tens := coalesce(v_tens, v_since);
  v_ones := coalesce((select max(s.at) + interval '60 seconds' from holdfast.sample s
    where s.step = 60 and s.at >= v_tens), v_tens);
  return query
    select s.queue, s.kind, sum(s.done)::bigint, sum(s.failed)::bigint,
           sum(s.done)::double precision / sum(s.done + s.failed)
    from holdfast.sample s
    where (s.step = 600 and s.at >= v_since and s.at < v_tens or s.step = 60 and s.at >= v_tens and s.at < v_ones
           or s.step = 10 and s.at >= v_ones)
      and s.queue <> '' and (only_queue is null or s.queue = only_queue) and s.done + s.failed > 0
    group by grouping sets ((s.queue), (s.queue, s.kind))
    order by s.queue, grouping(s.kind) desc, s.kind;
end
$$;

-- quantile: the value below which a share of the times lies, in seconds. counts are of times below 1, 2, 4, 8 …
-- milliseconds; within such a span they are assumed to be evenly distributed.
create or replace function holdfast.quantile(counts bigint[], share double precision)
returns double precision
language sql immutable parallel safe
as $$
  with spans as (
    select u.jobs, case when u.nth = 1 then 0 else power(2, u.nth - 2) end as least, power(2, u.nth - 1) as most,
           sum(u.jobs) over (order by u.nth) as upto, sum(u.jobs) over () * share as wanted
    from unnest(counts) with ordinality u(jobs, nth)
  )
  select (s.least + (s.most - s.least) * greatest(s.wanted - (s.upto - s.jobs), 0)::double precision / s.jobs) / 1000
  from spans s
  where s.jobs > 0 and s.upto >= s.wanted
  order by s.upto
  limit 1
$$;

-- take_samples: record how many jobs wait, once every ten seconds, and what workers measured.
create or replace function holdfast.take_samples()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_at     constant timestamptz := holdfast.sample_at();
  v_apart  text[];
  v_rows   integer := 0;
  said     record;
begin
  if not holdfast.take_turn('sample') then
    return 0;
  end if;
  v_apart := holdfast.queues_apart();
  for said in delete from holdfast.measure m returning m.* loop
    insert into holdfast.sample as s (step, at, queue, kind, pickup, run)
    values (10, v_at, case when said.queue = any(v_apart) then said.queue else '' end, said.kind, said.pickup, said.run)
    on conflict (step, at, queue, kind) do update
    set pickup = holdfast.added(s.pickup, excluded.pickup), run = holdfast.added(s.run, excluded.run);
  end loop;
  update holdfast.chore c set at = v_at where c.name = 'sampled' and c.at is distinct from v_at;
  if not found then
    return 0;
  end if;
  insert into holdfast.sample as s (step, at, queue, kind, queued, leased, dead)
  select 10, v_at, d.name, d.kind, greatest(sum(d.queued), 0), greatest(sum(d.leased), 0), greatest(sum(d.dead), 0)
  from (
    select coalesce(a.queue, '') as name, t.*
    from (
      select t.queue, t.kind, t.queued, t.leased, t.dead from holdfast.total t
        where (t.queued, t.leased, t.dead) <> (0, 0, 0)
      union all
      select t.queue, t.kind, t.queued, t.leased, t.dead from holdfast.tally t
    ) t
    left join holdfast.sampled a on a.queue = t.queue
  ) d
  group by d.name, d.kind
  having (sum(d.queued), sum(d.leased), sum(d.dead)) is distinct from (0, 0, 0)
  on conflict (step, at, queue, kind) do update
  set queued = excluded.queued, leased = excluded.leased, dead = excluded.dead;
  get diagnostics v_rows = row_count;
  -- of those in the sum, the 20 in which most waits stand for the others
  insert into holdfast.sample as s (step, at, queue, kind, oldest)
  select 10, v_at, coalesce(a.queue, ''), '', max(extract(epoch from holdfast.now() - o.since))
  from (
    select w.queue, row_number() over (partition by x.queue is null order by w.queued desc, w.queue) as nth
    from (
      select t.queue, sum(t.queued) as queued
      from (
        select x.queue, x.queued from holdfast.total x where x.queued <> 0
        union all
        select x.queue, x.queued from holdfast.tally x) t
      group by t.queue
      having sum(t.queued) > 0
    ) w
    left join holdfast.sampled x on x.queue = w.queue
  ) q
  join lateral holdfast.oldest_of(q.queue) o on true
  left join holdfast.sampled a on a.queue = q.queue
  where q.nth <= case when a.queue is null then 20 else 200 end and o.since < holdfast.now()
  group by 3
  on conflict (step, at, queue, kind) do update set oldest = excluded.oldest;
  -- a row of no queue and no kind says that somebody looked
  insert into holdfast.sample (step, at, queue, kind) values (10, v_at, '', '') on conflict do nothing;
  return v_rows;
end
$$;

-- roll_samples: add samples up to coarser ones, once a minute, and delete those that are too old.
create or replace function holdfast.roll_samples()
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.now();
  v_done integer := 0;
  v_rows integer;
  these  record;
begin
  if not holdfast.take_turn('sample') then
    return 0;
  end if;
  update holdfast.chore c set at = v_now
  where c.name = 'rolled' and (c.at <= v_now - interval '1 minute' or c.at > v_now);
  if not found then
    return 0;
  end if;
  perform holdfast.choose_apart();
  for these in
    select * from (values (10, 60, interval '3 hours'), (60, 600, '2 days'), (600, 3600, '14 days')) s(fine, coarse,
           keep)
  loop
    -- The newest coarse one is made once more: it may have been made of less.
    insert into holdfast.sample as s (step, at, queue, kind, enqueued, done, failed, queued, leased, dead, oldest,
      pickup, run)
    select these.coarse, c.cell, c.queue, c.kind, sum(c.enqueued), sum(c.done), sum(c.failed),
           sum(c.queued) * these.fine / these.coarse, sum(c.leased) * these.fine / these.coarse,
           sum(c.dead) * these.fine / these.coarse,
           max(c.oldest), holdfast.added_all(jsonb_agg(c.pickup) filter (where c.pickup is not null)),
           holdfast.added_all(jsonb_agg(c.run) filter (where c.run is not null))
    from (
      select x.*, to_timestamp(floor(extract(epoch from x.at)::double precision / these.coarse) * these.coarse) as cell
      from holdfast.sample x
      where x.step = these.fine
        and x.at >= coalesce((select max(y.at) from holdfast.sample y where y.step = these.coarse), '-infinity')
        and x.at < to_timestamp(floor(extract(epoch from v_now)::double precision / these.coarse) * these.coarse)
    ) c
    group by c.cell, c.queue, c.kind
    on conflict (step, at, queue, kind) do update
    set enqueued = excluded.enqueued, done = excluded.done, failed = excluded.failed, queued = excluded.queued,
        leased = excluded.leased, dead = excluded.dead, oldest = excluded.oldest, pickup = excluded.pickup,
          run = excluded.run;
    get diagnostics v_rows = row_count;
    v_done := v_done + v_rows;
    delete from holdfast.sample x where x.step = these.fine and x.at < v_now - these.keep;
  end loop;
  delete from holdfast.sample x where x.step = 3600 and x.at < v_now - interval '400 days';
  return v_done;
end
$$;

-- queues_apart: queues that are sampled individually, up to 200; all others are in one sum, as queue ''. So samples
-- do not grow without limit with the number of queue names. New names are added while there is room.
create or replace function holdfast.queues_apart()
returns text[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_apart text[] := array(select s.queue from holdfast.sampled s);
begin
  if cardinality(v_apart) < 200 then
    with room as (
      insert into holdfast.sampled (queue)
      select distinct t.queue
      from (select x.queue from holdfast.tally x limit 20000) t
      where not t.queue = any(v_apart) and t.queue <> ''
      order by t.queue
      limit 200 - cardinality(v_apart)
      on conflict do nothing
      returning queue
    )
    select v_apart || array(select r.queue from room r) into v_apart;
  end if;
  return v_apart;
end
$$;

-- choose_apart: sample the queues with the most enqueued jobs individually. Only a queue that changed can have become
-- larger than those.
create or replace function holdfast.choose_apart()
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  if (select count(*) from holdfast.sampled) < 200
     or not exists (select from holdfast.stir s where not exists (select from holdfast.sampled a
       where a.queue = s.queue)) then
    return;
  end if;
  with largest as materialized (
    select t.queue from holdfast.total t where t.queue <> '' group by t.queue order by sum(t.enqueued) desc, t.queue
      limit 200
  ), gone as (
    delete from holdfast.sampled s where not exists (select from largest l where l.queue = s.queue)
  )
  insert into holdfast.sampled (queue) select l.queue from largest l on conflict do nothing;
end
$$;

-- sample_at: the sample of now.
create or replace function holdfast.sample_at()
returns timestamptz
language sql stable
as $$ select to_timestamp(floor(extract(epoch from holdfast.now())::double precision / 10) * 10) $$;

-- added: two rows of counts as one; added_all: many, in JSON.
create or replace function holdfast.added(one bigint[], other bigint[])
returns bigint[]
language sql immutable parallel safe
as $$
  select case
    when one is null then other
    when other is null then one
    else array(select coalesce(u.one, 0) + coalesce(u.other, 0)
      from unnest(one, other) with ordinality u(one, other, nth) order by u.nth)
  end
$$;

create or replace function holdfast.added_all(rows jsonb)
returns bigint[]
language sql immutable parallel safe
as $$
  select array_agg(s.jobs order by s.nth)
  from (
    select u.nth, sum(u.jobs::bigint)::bigint as jobs
    from jsonb_array_elements(rows) r(one)
    cross join lateral jsonb_array_elements_text(r.one) with ordinality u(jobs, nth)
    group by u.nth
  ) s
$$;

-- take_measures: store what a worker measured since its last beat: times by queue and kind, and some successful
-- attempts. Invalid values are refused.
create or replace function holdfast.take_measures(worker text, measured jsonb)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  insert into holdfast.measure (queue, kind, pickup, run)
  select t.said ->> 'queue', t.said ->> 'kind', holdfast.added_all(jsonb_build_array(t.said -> 'pickup')),
         holdfast.added_all(jsonb_build_array(t.said -> 'run'))
  from jsonb_array_elements(measured -> 'times') t(said)
  where length(t.said ->> 'queue') between 1 and 120 and length(t.said ->> 'kind') between 1 and 200
  limit 1000;
  insert into holdfast.attempt (part, id, attempt, token, outcome, worker, started_at, ended_at, host, version, log)
  select holdfast.part_of(a.id), a.id, a.attempt, a.token, 'done', take_measures.worker, a.started_at, a.ended_at,
         w.host, w.version,
         left(a.log, 20000)
  from jsonb_to_recordset(measured -> 'attempts') a(
    id uuid, attempt smallint, token uuid, started_at timestamptz, ended_at timestamptz, log text)
  left join holdfast.worker w on w.name = take_measures.worker
  where a.id is not null and a.ended_at is not null
  limit 200;
exception when data_exception or not_null_violation or invalid_text_representation then
  perform holdfast.refuse('HF221', format('the measurements of worker %L are not valid', worker), sqlerrm,
    'For example {"times": [{"queue": "mail", "kind": "send", "pickup": [9, 1], "run": [0, 10]}]}.');
end
$$;
