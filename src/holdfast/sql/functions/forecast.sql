-- Forecasts: how many jobs arrive and finish, and when a queue will be empty.

-- take_readings: record the counters of queues that changed, at most every ten seconds.
create or replace function holdfast.take_readings(at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_since timestamptz;
  v_names text[];
  v_taken integer;
begin
  select c.at into v_since from holdfast.chore c where c.name = 'read';
  if v_since > at - interval '10 seconds' and v_since <= at then
    return 0;
  end if;
  update holdfast.chore c set at = take_readings.at where c.name = 'read';
  -- Only where something changed since the last look, with a minute for a fold that was under way then.
  v_names := array(
    select s.queue from holdfast.stir s where v_since > take_readings.at or s.at > v_since - interval '1 minute'
    union
    select t.queue from (select x.queue from holdfast.tally x limit 20000) t);
  with counters as (
    select c.queue, sum(c.queued) as queued, sum(c.leased) as leased, sum(c.dead) as dead, sum(c.done) as done,
           sum(c.cancelled) as cancelled, sum(c.archived) as archived
    from (
      select t.queue, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived
      from unnest(v_names) n(name)
      cross join lateral holdfast.totals_of(n.name) t
      union all
      select t.queue, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.tally t
    ) c
    group by c.queue
  ), ended as (
    -- an attempt does not say its queue: the job does, live or dead
    select coalesce(j.queue, d.queue) as queue, count(*) filter (where a.outcome = 'failed') as failed,
           count(*) filter (where a.outcome = 'expired') as expired
    from (
      select x.part, x.id, x.outcome
      from holdfast.attempt x
      where x.ended_at > greatest(v_since, take_readings.at - interval '1 hour') and x.ended_at <= take_readings.at
        and x.outcome in ('failed', 'expired')
      limit 20000
    ) a
    left join lateral (select x.queue from holdfast.job x where x.part = a.part and x.id = a.id limit 1) j on true
    left join lateral (select x.queue from holdfast.ended x where j.queue is null and x.part = a.part and x.id = a.id
      limit 1) d on true
    group by 1
  )
  insert into holdfast.reading (queue, at, queued, leased, dead, done, cancelled, archived, failed, expired)
  select c.queue, take_readings.at, c.queued, c.leased, c.dead, c.done, c.cancelled, c.archived,
         coalesce(l.failed, 0) + coalesce(e.failed, 0), coalesce(l.expired, 0) + coalesce(e.expired, 0)
  from counters c
  left join ended e on e.queue = c.queue
  left join lateral (
    select r.* from holdfast.reading r where r.queue = c.queue order by r.at desc limit 1) l on true
  where l.queue is null or e.queue is not null
     or (l.queued, l.leased, l.dead, l.done, l.cancelled, l.archived) is distinct from
        (c.queued, c.leased, c.dead, c.done, c.cancelled, c.archived)
  on conflict do nothing;
  get diagnostics v_taken = row_count;
  return v_taken;
end
$$;

-- totals_of: the folded counters of one queue, without reading those of the others.
create or replace function holdfast.totals_of(queue text)
returns setof holdfast.total
language sql stable
as $$
  select t.*
  from (
    select ((holdfast.queue_part(totals_of.queue) + step) % 64)::smallint as part
    from generate_series(0, holdfast.fanout_of(totals_of.queue) - 1) step
    union
    select q.adopted from holdfast.queue q where q.name = totals_of.queue and q.adopted is not null
  ) p
  join holdfast.total t on t.part = p.part and t.queue = totals_of.queue
$$;

-- rates: how many jobs arrived in a queue and left it within span before at, from readings; seconds is how much of
-- the span is known. leased is how many were running, on average.
create or replace function holdfast.rates(
  queue text, span interval, at timestamptz,
  out seconds double precision, out arrived bigint, out done bigint, out failed bigint, out expired bigint,
  out died bigint,
  out leased double precision)
language sql stable
as $$
  with first as (
    select r.*
    from (
      (select x.* from holdfast.reading x where x.queue = rates.queue and x.at <= rates.at - span order by x.at desc
        limit 1)
      union all
      (select x.* from holdfast.reading x where x.queue = rates.queue and x.at > rates.at - span order by x.at limit 1)
    ) r
    order by r.at
    limit 1
  ), last as (
    select x.* from holdfast.reading x where x.queue = rates.queue and x.at <= rates.at order by x.at desc limit 1
  )
  select least(extract(epoch from rates.at - f.at), extract(epoch from span))::double precision,
         greatest((l.queued + l.leased + l.dead + l.done + l.cancelled + l.archived)
           - (f.queued + f.leased + f.dead + f.done + f.cancelled + f.archived), 0),
         greatest(l.done - f.done, 0), greatest(l.failed - f.failed, 0), greatest(l.expired - f.expired, 0),
         greatest(l.dead - f.dead, 0),
         (select avg(x.leased) from holdfast.reading x where x.queue = rates.queue and x.at between f.at
           and l.at)::double precision
  from first f, last l
$$;

-- forecast: for each queue, or one, how many jobs arrive and finish per second, when it will be empty at this pace
-- (null: never), and how many busy slots would empty it within target, or keep up.
create or replace function holdfast.forecast(only_queue text default null, target interval default null,
  span interval default '5 minutes')
returns table (
  queue text, waiting bigint, leased bigint, arriving double precision, finishing double precision,
  drained_at timestamptz,
  slots_needed integer, seconds double precision, sentence text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.now();
  v_each double precision;
  v_left double precision;
  q      record;
begin
  perform holdfast.check_length('span', span, '1 day');
  if target is not null then
    perform holdfast.check_length('target', target, '30 days');
  end if;
  for q in
    select v.queue as name, v.queued, v.leased, v.paused_at, r.seconds, r.arrived, r.done + r.died as finished,
           r.leased as busy
    from holdfast.queues v
    left join lateral holdfast.rates(v.queue, span, v_now) r on true
    where only_queue is null or v.queue = only_queue
    order by v.queue
  loop
    queue := q.name;
    waiting := q.queued;
    leased := q.leased;
    seconds := coalesce(q.seconds, 0);
    arriving := null;
    finishing := null;
    drained_at := null;
    slots_needed := null;
    if seconds >= 1 then
      arriving := round((q.arrived / seconds)::numeric, 3);
      finishing := round((q.finished / seconds)::numeric, 3);
    end if;
    if waiting = 0 then
      drained_at := v_now;
      sentence := format('Queue %s is empty.', queue);
    elsif finishing is null then
      sentence := format('No forecast for queue %s yet: upkeep records its numbers every ten seconds.', queue);
    elsif finishing > arriving and q.paused_at is null then
      v_left := waiting / (finishing - arriving);
      drained_at := v_now + make_interval(secs => least(v_left, 315360000));
      sentence := format('Queue %s will be empty at %s, in %s: %s jobs arrive and %s finish per second.', queue,
        to_char(drained_at, case when v_left < 43200 then 'HH24:MI' else 'YYYY-MM-DD HH24:MI' end || ' TZ'),
        date_trunc('second', make_interval(secs => least(v_left, 315360000))), trim_scale(round(arriving::numeric, 1)),
          trim_scale(round(finishing::numeric, 1)));
    else
      sentence := format('Queue %s will never be empty%s: %s jobs arrive and %s finish per second.', queue,
        case when q.paused_at is not null then ' while it is paused'
          else ' at this pace' end, trim_scale(round(arriving::numeric, 1)), trim_scale(round(finishing::numeric, 1)));
    end if;
    -- what one slot does in a second is only known where some were at work
    if finishing > 0 and q.busy > 0 then
      v_each := finishing / q.busy;
      slots_needed := ceil((coalesce(waiting / extract(epoch from target)::double precision, 0) + arriving) / v_each);
      if waiting > 0 and slots_needed > 0 then
        sentence := sentence || format(' %s', case
          when target is null then format('%s would keep up.', case slots_needed
            when 1 then '1 busy slot' else slots_needed || ' busy slots' end)
          else format('%s would empty it in %s.', case slots_needed
            when 1 then '1 busy slot' else slots_needed || ' busy slots' end, target) end);
      end if;
    end if;
    return next;
  end loop;
end
$$;
