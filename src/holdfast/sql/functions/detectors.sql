-- The detectors: one function each, named detect_ and its code, that returns the problems at a time. Each reads a
-- limited number of rows: counters, the head of a queue, the newest attempts and leases, catalogues.

-- waiting_most: the queues with waiting jobs, at most the 500 with the most.
create or replace function holdfast.waiting_most()
returns table (queue text, queued bigint, leased bigint)
language sql stable
as $$
  select c.queue, sum(c.queued)::bigint, sum(c.leased)::bigint
  from (
    select t.queue, t.queued, t.leased from holdfast.total t where (t.queued, t.leased) <> (0, 0)
    union all
    select t.queue, t.queued, t.leased from holdfast.tally t
  ) c
  group by c.queue
  having sum(c.queued) > 0
  order by 2 desc, 1
  limit 500
$$;

-- waiting_kinds: the kinds at the head of each queue that has jobs and is not paused. Jobs that are handled leave the
-- head, so that those without a worker collect there.
create or replace function holdfast.waiting_kinds(at timestamptz)
returns table (queue text, kind text, since timestamptz, waiting bigint)
language sql stable
as $$
  select d.queue, h.kind, min(h.run_at), max(d.queued)
  from (
    select c.queue, c.kind, sum(c.queued)::bigint as queued
    from (
      select t.queue, t.kind, t.queued from holdfast.total t where t.queued <> 0
      union all
      select t.queue, t.kind, t.queued from holdfast.tally t
    ) c
    join holdfast.waiting_most() m on m.queue = c.queue
    group by c.queue, c.kind
    having sum(c.queued) > 0
  ) d
  join holdfast.queue q on q.name = d.queue and (q.paused_at is null or q.paused_until <= at)
  cross join lateral generate_series(0, q.fanout - 1) step
  cross join lateral (select ((holdfast.queue_part(q.name) + step) % 64)::smallint as part) p
  cross join lateral unnest(coalesce((
    select f.floors from holdfast.floor f
    where f.part = p.part and f.queue = q.name
    order by f.gen desc limit 1), '{0,0,0,0,0,0,0,0,0,0}'::bigint[])) with ordinality as l(floor, nth)
  cross join lateral (
    select j.kind, j.run_at
    from holdfast.job j
    where j.part = p.part and j.queue = q.name and j.priority = (10 - l.nth)::smallint and j.pos >= l.floor
      and j.token is null
    order by j.pos
    limit 200
  ) h
  where h.kind = d.kind
  group by d.queue, h.kind
$$;

-- newest_leases: the claims of the last moments, from the end of the ledger.
create or replace function holdfast.newest_leases(most integer default 2000)
returns setof holdfast.lease
language sql stable
as $$
  select l.* from holdfast.lease l where l.open order by l.until desc limit most
$$;

-- is_handled: whether a running worker reports that it handles this kind of this queue, or a worker without
-- heartbeats claims from the queue.
create or replace function holdfast.is_handled(queue text, kind text, at timestamptz)
returns boolean
language sql stable
as $$
  select kind like 'holdfast.%'
    or exists (
      select from holdfast.worker w
      where w.seen_at > at - interval '1 minute'
        and (w.queues = '{}' or is_handled.queue = any(w.queues))
          and (w.kinds = '{}' or is_handled.kind = any(w.kinds)))
    or exists (
      select from holdfast.newest_leases() l
      where l.queue = is_handled.queue and l.claimed_at > at - interval '1 minute'
        and not exists (select from holdfast.worker w where w.name = l.worker))
$$;

create or replace function holdfast.detect_no_worker(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select k.queue, k.kind, 'critical', k.since,
         format('No worker for %s', k.kind),
         format('%s in queue %s, the first for %s. No running worker handles this kind there (%s running).',
           case k.waiting when 1 then '1 job waits' else k.waiting || ' jobs wait' end, k.queue,
           holdfast.span_text(at - k.since),
           (select count(*) from holdfast.worker w where w.seen_at > at - interval '1 minute')),
         'holdfast worker list', jsonb_build_object('queue', k.queue, 'kind', k.kind, 'waiting', k.waiting)
  from holdfast.waiting_kinds(at) k
  cross join lateral (select holdfast.thresholds_of('no_worker', k.queue) as t) w
  where at - k.since > holdfast.secs(w.t -> 'seconds')
    and not holdfast.is_handled(k.queue, k.kind, at)
$$;

create or replace function holdfast.detect_unreadable(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select k.queue, k.kind, 'critical', k.since,
         format('No worker can read %s', k.kind),
         format('%s in queue %s, for %s: %s. No attempt is counted; it runs as soon as a worker can read it.',
           case k.waiting when 1 then '1 job waits' else k.waiting || ' jobs wait' end, k.queue,
           holdfast.span_text(at - k.since), rtrim(k.problem, '.')),
         format('holdfast job explain %s', k.id),
         jsonb_build_object('queue', k.queue, 'kind', k.kind, 'waiting', k.waiting, 'problem', k.problem, 'job', k.id)
  from (
    select n.queue, n.kind, min(n.since) as since, count(*) as waiting, min(n.problem) as problem,
           (array_agg(n.id order by n.since, n.id))[1] as id
    from (select u.part, u.id from holdfast.unreadable u limit 10000) u
    join holdfast.job j on j.part = u.part and j.id = u.id
    cross join lateral holdfast.unread_now(j) n
    where not holdfast.may_read(n.queue, n.kind, n.shapes, at)
    group by n.queue, n.kind
  ) k
  cross join lateral (select holdfast.thresholds_of('unreadable', k.queue) as t) w
  where at - k.since > holdfast.secs(w.t -> 'seconds')
$$;

create or replace function holdfast.detect_late(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select q.queue, '', case when q.oldest > 10 * holdfast.secs(w.t -> 'seconds') then 'critical' else 'warning' end,
         at - q.oldest,
         format('%s is %s behind', q.queue, holdfast.span_text(q.oldest)),
         format('The oldest ready job has waited for %s, the target is %s; %s waiting, %s running%s.',
           holdfast.span_text(q.oldest),
           holdfast.span_text(holdfast.secs(w.t -> 'seconds')), q.queued, q.leased,
             coalesce(' of ' || q."limit" || ' allowed', '')),
         format('holdfast queue forecast %s', holdfast.shell(q.queue)),
         jsonb_build_object('oldest', extract(epoch from q.oldest), 'target', w.t -> 'seconds', 'queued', q.queued,
           'leased', q.leased)
  from (
    select m.queue, m.queued, m.leased, x.lease_limit as "limit", at - o.since as oldest
    from holdfast.waiting_most() m
    left join holdfast.queue x on x.name = m.queue
    cross join lateral holdfast.oldest_of(m.queue) o
    where (x.paused_at is null or x.paused_until <= at) and o.since < at - (select min(s.span)
      from holdfast.spans('late') s)
    offset 0
  ) q
  cross join lateral (select holdfast.thresholds_of('late', q.queue) as t) w
  where q.oldest > holdfast.secs(w.t -> 'seconds')
$$;

create or replace function holdfast.detect_failure_jump(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select q.name, '', case when x.share >= 0.5 then 'critical' else 'warning' end, at - holdfast.secs(w.t -> 'seconds'),
         format('%s: %s %% of attempts fail', q.name, round((100 * x.share)::numeric)),
         format('%s of %s attempts of the last %s failed; in the previous day it was %s %%.', r.failed + r.expired,
           x.ended,
           holdfast.span_text(holdfast.secs(w.t -> 'seconds')), round((100 * x.usual)::numeric, 1)),
         format('holdfast dead groups'),
         jsonb_build_object('share', x.share, 'usual', x.usual, 'failed', r.failed + r.expired, 'done', r.done)
  from holdfast.read_since(at - (select max(s.span) from holdfast.spans('failure_jump') s), (
    select min((s.thresholds ->> 'attempts')::numeric) from (
      select d.thresholds from holdfast.detector_catalogue d where d.code = 'failure_jump'
      union all
      select d.thresholds from holdfast.detector_setting d where d.code = 'failure_jump'
             and d.thresholds ? 'attempts') s)) q(name)
  cross join lateral (select holdfast.thresholds_of('failure_jump', q.name) as t) w
  cross join lateral holdfast.rates(q.name, holdfast.secs(w.t -> 'seconds'), at) r
  cross join lateral holdfast.rates(q.name, interval '1 day', at) d
  cross join lateral (
    select r.done + r.failed + r.expired as ended,
           (r.failed + r.expired)::double precision / nullif(r.done + r.failed + r.expired, 0) as share,
           coalesce(greatest(d.failed + d.expired - r.failed - r.expired, 0)::double precision
             / nullif(greatest(d.done + d.failed + d.expired - r.done - r.failed - r.expired, 0), 0), 0) as usual
  ) x
  where w.t is not null and x.ended >= (w.t ->> 'attempts')::numeric and x.share >= (w.t ->> 'share')::numeric
    and x.share >= x.usual * (w.t ->> 'times')::numeric
$$;

-- spans: how far back a detector looks, anywhere.
create or replace function holdfast.spans(code text)
returns table (span interval)
language sql stable
as $$
  select holdfast.secs(d.thresholds -> 'seconds') from holdfast.detector_catalogue d where d.code = spans.code
  union all
  select holdfast.secs(d.thresholds -> 'seconds') from holdfast.detector_setting d
    where d.code = spans.code and d.thresholds ? 'seconds'
$$;

-- read_since: queues whose counters changed since then, and with at least this many ended attempts in total.
create or replace function holdfast.read_since(since timestamptz, attempts numeric)
returns setof text
language sql stable
as $$
  select r.queue from holdfast.reading r where r.at > read_since.since
  group by r.queue
  having max(r.done + r.failed + r.expired) >= attempts
$$;

-- newest_attempts: the newest attempts that failed within span, with their jobs if they are still known.
create or replace function holdfast.newest_attempts(at timestamptz, span interval)
returns table (
  part smallint, id uuid, attempt smallint, outcome text, worker text, ended_at timestamptz, message text, live boolean,
  queue text, kind text, job_attempt smallint, max_attempts smallint)
language sql stable
as $$
  select a.part, a.id, a.attempt, a.outcome, a.worker, a.ended_at, left(concat_ws(': ', a.error_kind, a.message), 200),
         j.queue is not null,
         coalesce(j.queue, d.queue), coalesce(j.kind, d.kind), coalesce(j.attempt, d.attempt),
           coalesce(j.max_attempts, d.max_attempts)
  from (
    select x.part, x.id, x.attempt, x.outcome, x.worker, x.ended_at, x.error_kind, x.message
    from holdfast.attempt x
    where x.ended_at > at - span and x.ended_at <= at and x.outcome in ('failed', 'expired')
    order by x.ended_at desc
    limit 1000
  ) a
  left join lateral (
    select x.queue, x.kind, x.attempt, x.max_attempts from holdfast.job x where x.part = a.part and x.id = a.id
      limit 1) j on true
  left join lateral (
    select x.queue, x.kind, x.attempt, x.max_attempts from holdfast.ended x
    where j.queue is null and x.part = a.part and x.id = a.id limit 1) d on true
$$;

create or replace function holdfast.detect_lease_lost_burst(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select a.queue, '', 'warning', min(a.ended_at), format('%s: %s leases expired', a.queue, count(*)),
         format('In the last %s; of %s.', holdfast.span_text(holdfast.secs(s.said::jsonb -> 'seconds')),
           string_agg(distinct a.worker, ', ')),
         'holdfast worker list',
         jsonb_build_object('leases', count(*), 'workers', jsonb_agg(distinct a.worker), 'jobs',
           (array_agg(a.id::text))[1:5])
  from holdfast.newest_attempts(at, interval '1 hour') a
  cross join lateral (select holdfast.thresholds_of('lease_lost_burst', a.queue)::text as said) s
  cross join lateral (select s.said::jsonb as t) w
  where a.outcome = 'expired' and a.ended_at > at - holdfast.secs(w.t -> 'seconds')
  group by a.queue, s.said
  having count(*) >= (s.said::jsonb ->> 'leases')::numeric
$$;

create or replace function holdfast.detect_lease_stolen(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select a.queue, a.worker, 'critical', min(a.ended_at), format('%s lost a lease but is running', a.worker),
         format('%s of kind %s reclaimed, but the worker was seen after that: a handler did not renew its lease, or '
           'the process was frozen. The jobs may have run twice.',
           case count(*) when 1 then '1 job was' else count(*) || ' jobs were' end, string_agg(distinct a.kind, ', ')),
         format('holdfast job explain %s', (array_agg(a.id order by a.ended_at desc))[1]),
         jsonb_build_object('worker', a.worker, 'jobs', (array_agg(distinct a.id::text))[1:5], 'leases', count(*))
  from holdfast.newest_attempts(at, interval '1 hour') a
  join holdfast.worker k on k.name = a.worker and k.seen_at >= a.ended_at
  cross join lateral (select holdfast.thresholds_of('lease_stolen', a.queue) as t) w
  where a.outcome = 'expired' and a.ended_at > at - holdfast.secs(w.t -> 'seconds')
  group by a.queue, a.worker
$$;

create or replace function holdfast.detect_flapping_job(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select x.queue, x.id::text, 'warning', x.since, format('%s failed %s of %s attempts', x.kind, x.attempt,
         x.max_attempts),
         format('Job %s in queue %s: %s', x.id, x.queue, x.message), format('holdfast job show %s', x.id),
         jsonb_build_object('job', x.id, 'kind', x.kind, 'attempt', x.attempt, 'max_attempts', x.max_attempts)
  from (
    select a.queue, a.id, a.kind, max(a.job_attempt) as attempt, max(a.max_attempts) as max_attempts,
           min(a.ended_at) as since,
           (array_agg(a.message order by a.ended_at desc))[1] as message
    from holdfast.newest_attempts(at, interval '1 day') a
    where a.live
    group by a.queue, a.id, a.kind
  ) x
  cross join lateral (select holdfast.thresholds_of('flapping_job', x.queue) as t) w
  where x.attempt >= (w.t ->> 'attempts')::numeric and x.attempt >= (w.t ->> 'share')::numeric * x.max_attempts
  order by x.since
  limit 20
$$;

create or replace function holdfast.detect_last_attempt(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select x.queue, x.kind, 'info', min(x.ended_at), format('%s: %s close to dying', x.kind, case count(distinct x.id)
         when 1 then '1 job is' else count(distinct x.id) || ' jobs are' end),
         format('In queue %s; the last error: %s', x.queue, (array_agg(x.message order by x.ended_at desc))[1]),
         'holdfast job list '
         || holdfast.shell(format('queue:%s kind:%s state:queued attempt:>0', holdfast.filter_word(x.queue),
         holdfast.filter_word(x.kind))),
         jsonb_build_object('jobs', (array_agg(distinct x.id::text))[1:5], 'count', count(distinct x.id))
  from holdfast.newest_attempts(at, interval '1 hour') x
  cross join lateral (select holdfast.thresholds_of('last_attempt', x.queue) as t) w
  where x.live and x.max_attempts > 1 and x.max_attempts - x.job_attempt <= (w.t ->> 'left')::numeric
    and x.ended_at > at - holdfast.secs(w.t -> 'seconds')
  group by x.queue, x.kind
$$;

create or replace function holdfast.detect_job_died(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select d.queue, d.kind, 'warning', min(d.ended_at), format('%s %s died', count(*), d.kind),
         format('In queue %s in the last %s; the last error: %s', d.queue,
           holdfast.span_text(holdfast.secs(d.said::jsonb -> 'seconds')),
           left((array_agg(d.error order by d.ended_at desc))[1], 300)),
         format('holdfast dead groups'),
         jsonb_build_object('jobs', (array_agg(d.id::text order by d.ended_at desc))[1:5], 'count', count(*))
  from (
    select x.queue, x.kind, x.id, x.ended_at, x.error, w.said
    from (
      select y.queue, y.kind, y.id, y.ended_at, y.error
      from holdfast.dead y
      where y.ended_at > at - interval '1 hour' and y.ended_at <= at
      order by y.ended_at desc
      limit 5000
    ) x
    cross join lateral (select holdfast.thresholds_of('job_died', x.queue)::text as said) w
    where x.ended_at > at - holdfast.secs(w.said::jsonb -> 'seconds')
  ) d
  group by d.queue, d.kind, d.said
  having count(*) >= (d.said::jsonb ->> 'jobs')::numeric
$$;

create or replace function holdfast.detect_zombie_job(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select j.queue, j.id::text, 'critical', j.lease_until, format('%s is held by %s, whose lease has expired', j.kind,
         j.worker),
         case when h.problem is null then
           format('Job %s in queue %s: its lease expired %s ago and was not reclaimed. Is upkeep running?', j.id,
             j.queue,
             holdfast.span_text(at - j.lease_until))
         else format('Job %s in queue %s: its lease expired %s ago and cannot be reclaimed: %s', j.id, j.queue,
         holdfast.span_text(at - j.lease_until), h.problem) end,
         case when h.problem is null then 'holdfast upkeep --once' else format('holdfast job cancel %s', j.id) end,
         jsonb_strip_nulls(jsonb_build_object('job', j.id, 'worker', j.worker, 'lease_until', j.lease_until, 'problem',
           h.problem))
  from (
    select l.part, l.token, l.length, i.id, l.problem
    from (
      (select x.part, x.token, x.length, x.ids, x.problem from holdfast.lease x
       where x.open and x.until < at and x.asked_at is null and x.problem is null order by x.until limit 500)
      union all
      (select x.part, x.token, x.length, x.ids, x.problem from holdfast.lease x
       where x.open and x.problem is not null order by x.until limit 500)
    ) l
    cross join lateral unnest(l.ids) i(id)
    limit 5000
  ) h
  cross join lateral (
    select x.* from holdfast.job x where x.part = h.part and x.id = h.id and x.token = h.token limit 1) j
  cross join lateral (select holdfast.thresholds_of('zombie_job', j.queue) as t) w
  where j.lease_until <= at and w.t is not null
    and (h.problem is not null or at - j.lease_until >= h.length * ((w.t ->> 'times')::numeric - 1)::double precision)
  order by j.lease_until
  limit 20
$$;

create or replace function holdfast.detect_retry_storm(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select q.name, '', 'warning', at, format('%s: %s failed jobs are due at once', q.name, case when n.due > 5000
         then 'more than 5000' else n.due::text end),
         format('Within %s; the queue finishes about %s in that time.', holdfast.span_text(s.span),
         round((coalesce(r.done, 0) / greatest(r.seconds, 1) * extract(epoch from s.span))::numeric)),
         format('holdfast queue pause --for 10m --reason ''retry storm'' %s', holdfast.shell(q.name)),
         jsonb_build_object('due', n.due, 'seconds', w.t -> 'seconds')
  from (
    -- as many as are due must wait
    select c.queue as name, holdfast.fanout_of(c.queue) as fanout
    from (
      select t.queue, t.queued from holdfast.total t where t.queued <> 0
      union all
      select t.queue, t.queued from holdfast.tally t where t.queued <> 0
    ) c
    group by c.queue
    having sum(c.queued) >= (select min((s.thresholds ->> 'jobs')::numeric) from (
      select d.thresholds from holdfast.detector_catalogue d where d.code = 'retry_storm'
      union all
      select d.thresholds from holdfast.detector_setting d where d.code = 'retry_storm' and d.thresholds ? 'jobs') s)
    offset 0
  ) q
  cross join lateral (select holdfast.thresholds_of('retry_storm', q.name) as t) w
  cross join lateral (select holdfast.secs(w.t -> 'seconds') as span) s
  cross join lateral (
    select count(*) as due
    from (
      select from generate_series(0, q.fanout - 1) step
      cross join lateral (
        select j.error from holdfast.job j
        where j.part = ((holdfast.queue_part(q.name) + step) % 64)::smallint and j.queue = q.name
          and j.pos is null and not j.blocked and j.run_at <= at + s.span and j.token is null
        limit 20000
      ) j
      where j.error is not null
      limit 5001
    ) x
  ) n
  left join lateral holdfast.rates(q.name, interval '5 minutes', at) r on true
  where w.t is not null and n.due >= (w.t ->> 'jobs')::numeric
    and n.due > coalesce(r.done, 0) / greatest(r.seconds, 1) * extract(epoch from s.span)
$$;

create or replace function holdfast.detect_lane_held(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select h.queue, h.lane, 'warning', c.claimed_at, format('Lane %s has been held for %s', h.lane,
         holdfast.span_text(at - c.claimed_at)),
         format('Job %s runs on %s, its lease ends at %s; %s behind it in queue %s.', h.id, h.worker,
           to_char(h.lease_until, 'HH24:MI:SS TZ'),
           case n.waiting when 1 then '1 job waits' else case
             when n.waiting > 1000 then 'more than 1000' else n.waiting::text end || ' jobs wait' end, h.queue),
         format('holdfast job cancel %s --reason ''held its lane too long''', h.id),
         jsonb_build_object('job', h.id, 'worker', h.worker, 'lease_until', h.lease_until, 'waiting', n.waiting)
  from (
    select j.part, j.queue, j.lane, j.id, j.token, j.worker, j.lease_until
    from holdfast.job j where j.held and j.lane is not null limit 2000
  ) h
  cross join lateral (
    select l.claimed_at from holdfast.lease l where l.token = h.token and l.part = h.part order by l.claimed_at
      limit 1) c
  cross join lateral (select holdfast.thresholds_of('lane_held', h.queue) as t) w
  cross join lateral (
    select count(*) as waiting from (
      select from holdfast.job x
      where x.part = h.part and x.queue = h.queue and x.lane = h.lane and x.lane_seq is not null and x.token is null
        limit 1001) y) n
  where at - c.claimed_at > holdfast.secs(w.t -> 'seconds') and n.waiting > 0
  limit 50
$$;

create or replace function holdfast.detect_lane_halted(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select l.queue, l.name, 'critical', coalesce(d.ended_at, at), format('Lane %s is halted', l.name),
         format('Job %s died in it (%s); %s behind it in queue %s.', l.halted_by,
           coalesce(left(d.error, 200), 'no error was given'),
           case n.waiting when 1 then '1 job waits' else n.waiting || ' jobs wait' end, l.queue),
         format('holdfast job retry %s', l.halted_by), jsonb_build_object('job', l.halted_by, 'waiting', n.waiting)
  from (select x.* from holdfast.lane x where x.halted_by is not null limit 200) l
  cross join lateral (
    select count(*) as waiting from (
      select from holdfast.job x
      where x.part = l.part and x.queue = l.queue and x.lane = l.name and x.lane_seq is not null and x.token is null
        limit 1001) y) n
  left join lateral (select x.ended_at, x.error from holdfast.dead x where x.part = l.part and x.id = l.halted_by
    limit 1) d on true
  where n.waiting > 0 and holdfast.thresholds_of('lane_halted', l.queue) is not null
  limit 50
$$;

create or replace function holdfast.detect_schedule_missed(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select s.queue, s.name, 'critical',
         case when isfinite(s.next_at) and s.next_at < at then s.next_at else coalesce(s.last_at, s.updated_at) end,
         format('Schedule %s %s', s.name, case when s.problem is not null then 'cannot fire'
         else 'missed its slot' end),
         coalesce(s.problem, format('Its slot of %s is due and was not fired. Is upkeep running?',
         to_char(s.next_at, 'YYYY-MM-DD HH24:MI:SS TZ'))),
         format('holdfast schedule show %s', holdfast.shell(s.name)),
           jsonb_build_object('schedule', s.name, 'kind', s.kind, 'problem', s.problem)
  from holdfast.schedule s
  cross join lateral (select holdfast.thresholds_of('schedule_missed', s.queue) as t) w
  where s.paused_at is null and s.withdrawn_at is null and w.t is not null
    and (s.problem is not null
      or s.next_at > '-infinity' and s.next_at < at - holdfast.secs(w.t -> 'seconds')
      or s.next_at = '-infinity' and s.updated_at < at - holdfast.secs(w.t -> 'seconds'))
  limit 50
$$;

create or replace function holdfast.detect_schedule_overlap(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select s.queue, s.name, 'warning', x.since, format('Schedule %s overlaps itself', s.name),
         case when x.live > 1 then format('%s of its jobs are queued or running at once.', x.live)
           else format('%s of its slots in the last %s were skipped, because the previous job had not ended.',
             x.skipped,
             holdfast.span_text(holdfast.secs(w.t -> 'seconds'))) end,
         format('holdfast schedule show %s', holdfast.shell(s.name)),
           jsonb_build_object('schedule', s.name, 'live', x.live, 'skipped', x.skipped)
  from holdfast.schedule s
  cross join lateral (select holdfast.thresholds_of('schedule_overlap', s.queue) as t) w
  cross join lateral (
    select count(j.id) as live, count(*) filter (where l.outcome = 'skipped'
           and l.at > detect_schedule_overlap.at - holdfast.secs(w.t -> 'seconds')) as skipped,
           min(l.slot) filter (where j.id is not null or l.outcome = 'skipped') as since
    from (
      select y.slot, y.outcome, y.job, y.at from holdfast.schedule_slot y where y.name = s.name order by y.slot desc
        limit 10) l
    left join lateral (
      select z.id from holdfast.job z where z.part = holdfast.part_of(l.job) and z.id = l.job limit 1) j on true
  ) x
  where s.withdrawn_at is null and w.t is not null and (x.live > 1 or x.skipped > 0)
  limit 50
$$;

create or replace function holdfast.detect_upkeep_failing(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select nullif(f.queue, ''), f.step, 'critical', f.since, format('Upkeep fails: %s', f.step),
         format('%s times since %s%s: %s. Other steps and queues are not affected; each upkeep tries again.',
           f.times,
           to_char(f.since, 'HH24:MI:SS TZ'), case when f.queue <> '' then format(', in queue %s', f.queue) else '' end,
             f.problem),
         'holdfast upkeep --once', jsonb_build_object('step', f.step, 'times', f.times, 'problem', f.problem)
  from holdfast.failing f
  cross join lateral (select holdfast.thresholds_of('upkeep_failing', f.queue) as t) w
  where f.times >= (w.t ->> 'times')::numeric and f.at > detect_upkeep_failing.at - interval '5 minutes'
  order by f.since
  limit 50
$$;

create or replace function holdfast.detect_worker_lost(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, k.name, 'warning', k.seen_at, format('%s is silent', k.name),
         format('On host %s, process %s; it ran %s when it was last seen, %s ago. They are queued again when their '
           'leases expire.', coalesce(k.host, '?'),
           coalesce(k.pid::text, '?'), case k.busy when 1 then '1 job' else k.busy || ' jobs' end,
             holdfast.span_text(at - k.seen_at)),
         'holdfast worker list', jsonb_build_object('worker', k.name, 'host', k.host, 'pid', k.pid, 'busy', k.busy)
  from holdfast.worker k
  cross join lateral (select holdfast.thresholds_of('worker_lost', '') as t) w
  where k.busy > 0 and k.seen_at < at - holdfast.secs(w.t -> 'seconds') and k.seen_at > at - interval '1 hour'
  order by k.seen_at desc
  limit 50
$$;

create or replace function holdfast.detect_version_skew(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, '', 'info', x.since, format('Workers run %s versions', cardinality(x.versions)),
         format('%s. This is normal during a deploy, but not for long.', array_to_string(x.versions, ', ')),
         'holdfast worker list',
         jsonb_build_object('versions', x.versions)
  from (
    select array_agg(distinct k.version order by k.version) as versions, max(k.started_at) as since
    from holdfast.worker k
    where k.seen_at > at - interval '1 minute' and k.pid is not null and k.version is not null
  ) x
  cross join lateral (select holdfast.thresholds_of('version_skew', '') as t) w
  where cardinality(x.versions) > 1 and x.since < at - holdfast.secs(w.t -> 'seconds')
$$;

create or replace function holdfast.detect_clock_skew(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, k.name, case when abs(k.skew) > 60 then 'critical' else 'warning' end, k.seen_at,
         format('The clock of %s is %s %s', coalesce(k.host, k.name),
         holdfast.span_text(make_interval(secs => abs(k.skew))), case when k.skew > 0 then 'ahead' else 'behind' end),
         'Leases are safe, because they use the clock of the database; its log times and the run_at it sets are wrong.',
         'timedatectl status', jsonb_build_object('worker', k.name, 'host', k.host, 'skew', k.skew)
  from holdfast.worker k
  cross join lateral (select holdfast.thresholds_of('clock_skew', '') as t) w
  where k.seen_at > at - interval '1 minute' and abs(k.skew) > (w.t ->> 'seconds')::double precision
  limit 50
$$;

create or replace function holdfast.detect_listen_down(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, k.name, 'info', k.started_at, format('%s receives no notifications', k.name),
         'It polls instead: jobs start up to a second later. A pooler does not deliver notifications.',
         'export HOLDFAST_LISTEN_URL=postgresql://…   # a direct address',
           jsonb_build_object('worker', k.name, 'host', k.host)
  from holdfast.worker k
  where k.seen_at > at - interval '1 minute' and k.listens = false and k.started_at < at - interval '30 seconds'
    and holdfast.thresholds_of('listen_down', '') is not null
  limit 50
$$;

create or replace function holdfast.detect_notify_backlog(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, '', 'critical', at, format('The notification queue is %s %% full', round((100 * u.used)::numeric)),
         'When it is full, commits that notify fail. A session that listens and stays in a transaction keeps it full.',
         'select pid, application_name, state, xact_start from pg_stat_activity where state like ''idle in%'' order '
         'by xact_start;',
         jsonb_build_object('share', u.used)
  from (select pg_notification_queue_usage() as used) u
  cross join lateral (select holdfast.thresholds_of('notify_backlog', '') as t) w
  where u.used >= (w.t ->> 'share')::double precision
$$;

-- pinned_by: what keeps vacuum from removing ended jobs, oldest first. Without the right to read
-- statistics of other roles, pg_read_all_stats, the owner of these functions sees its own sessions only.
create or replace function holdfast.pinned_by()
returns table (sort text, name text, application text, usename text, state text, since timestamptz, held interval,
  transactions bigint, query text, suggestion text)
language sql volatile
as $$
  with read as materialized (
    select clock_timestamp() as at
  )
  select 'session', a.pid::text, a.application_name, a.usename::text, a.state, a.xact_start, read.at - a.xact_start,
         age(x.oldest)::bigint, left(a.query, 200), format('select pg_terminate_backend(%s);', a.pid)
  from read
  cross join pg_stat_activity a
  cross join lateral (
    select case when a.backend_xmin is null or age(a.backend_xid) > age(a.backend_xmin)
      then coalesce(a.backend_xid, a.backend_xmin)
      else a.backend_xmin end as oldest) x
  where x.oldest is not null and a.pid <> pg_backend_pid() and (a.datname = current_database() or a.datname is null)
    and a.backend_type is distinct from 'autovacuum worker'
  union all
  select 'prepared transaction', p.gid, null, p.owner::text, 'prepared', p.prepared, read.at - p.prepared,
         age(p.transaction)::bigint, null,
         format('rollback prepared %L;', p.gid)
  from read
  cross join pg_prepared_xacts p
  where p.database = current_database()
  union all
  select 'replication slot', s.slot_name::text, s.plugin::text, null, case
         when s.active then 'active' else 'inactive' end, null, null,
         age(coalesce(s.xmin, s.catalog_xmin))::bigint, null,
           format('select pg_drop_replication_slot(%L);', s.slot_name)
  from pg_replication_slots s
  where coalesce(s.xmin, s.catalog_xmin) is not null
  order by 8 desc
$$;

create or replace function holdfast.detect_horizon_pinned(at timestamptz)
returns setof holdfast.finding
language sql volatile
as $$
  select null, p.sort || ' ' || p.name, case when p.held > 10 * holdfast.secs(w.t -> 'seconds') then 'critical'
         else 'warning' end,
         coalesce(p.since, at),
         case p.sort when 'session' then format('Process %s (%s) has pinned the vacuum horizon for %s', p.name,
           coalesce(nullif(p.application, ''), 'no application name'), holdfast.span_text(p.held))
           when 'prepared transaction' then format('Prepared transaction %s has pinned the vacuum horizon for %s',
             p.name,
             holdfast.span_text(p.held))
           else format('Replication slot %s pins the vacuum horizon, %s transactions back', p.name, p.transactions) end,
         format('Vacuum cannot remove jobs that ended since, and tables grow. %s',
         concat_ws(', ', 'User ' || p.usename, p.state, 'last: ' || nullif(p.query, ''))),
         p.suggestion,
         jsonb_build_object('sort', p.sort, 'pid', case when p.sort = 'session' then p.name::integer end, 'application',
           p.application, 'user', p.usename,
           'state', p.state, 'seconds', round(extract(epoch from p.held)), 'transactions', p.transactions)
  from holdfast.pinned_by() p
  cross join lateral (select holdfast.thresholds_of('horizon_pinned', '') as t) w
  where p.held > holdfast.secs(w.t -> 'seconds') or p.held is null
    and p.transactions > (w.t ->> 'transactions')::numeric
  limit 10
$$;

create or replace function holdfast.detect_bloat(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select null, s.relname::text, 'warning', coalesce(greatest(s.last_autovacuum, s.last_vacuum), at),
         format('holdfast.%s has %s dead rows', s.relname, s.n_dead_tup),
         format('And %s live rows, in %s; last vacuumed: %s. An old transaction keeps them, or autovacuum does '
           'not run.', s.n_live_tup,
           pg_size_pretty(pg_total_relation_size(s.relid)),
             coalesce(to_char(greatest(s.last_autovacuum, s.last_vacuum), 'YYYY-MM-DD HH24:MI:SS TZ'), 'never')),
         format('vacuum (verbose) holdfast.%s;', s.relname),
         jsonb_build_object('table', s.relname, 'dead', s.n_dead_tup, 'live', s.n_live_tup, 'bytes',
           pg_total_relation_size(s.relid))
  from pg_stat_all_tables s
  cross join lateral (select holdfast.thresholds_of('bloat', '') as t) w
  where s.schemaname = 'holdfast' and s.n_dead_tup >= (w.t ->> 'rows')::numeric
    and s.n_dead_tup >= (w.t ->> 'share')::numeric * (s.n_dead_tup + s.n_live_tup)
  limit 20
$$;

-- detect_counters_drift: counters below zero; also counts the jobs of one small part after the other.
create or replace function holdfast.detect_counters_drift(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  with counters as materialized (
    select c.part, c.queue, sum(c.queued) as queued, sum(c.leased) as leased, sum(c.dead) as dead
    from (
      select t.part, t.queue, t.queued, t.leased, t.dead from holdfast.total t
      union all
      select t.part, t.queue, t.queued, t.leased, t.dead from holdfast.tally t
    ) c
    group by c.part, c.queue
  ), parts as (
    select p.part, row_number() over (order by p.part) - 1 as nth, count(*) over () as parts
    from (select distinct c.part from counters c where c.part < 64) p   -- triggers count the rows of adopted tables
  ), looked as (
    select p.part
    from parts p
    cross join lateral (select holdfast.thresholds_of('counters_drift', '') as t) w
    where (p.nth = (extract(epoch from at) / 30)::bigint % p.parts
        or p.part in (
          select c.part from holdfast.anomaly a join counters c on c.queue = a.queue
          where a.code = 'counters_drift' and a.resolved_at is null))
      and (select sum(abs(c.queued + c.leased)) from counters c where c.part = p.part) <= (w.t ->> 'rows')::numeric
  ), rows as (
    select l.part, j.queue, count(*) filter (where j.token is null) as queued,
           count(*) filter (where j.token is not null) as leased
    from looked l
    cross join lateral (select x.queue, x.token from holdfast.job x where x.part = l.part limit 50000) j
    group by l.part, j.queue
  )
  select c.queue, '', 'warning', at, format('Counters of %s are wrong', c.queue),
         format('They show %s queued and %s leased%s.', c.queued, c.leased,
           case when l.part is null then '' else format(', but there are %s and %s', coalesce(r.queued, 0),
             coalesce(r.leased, 0)) end),
         'select * from holdfast.recount();',
         jsonb_build_object('counted', jsonb_build_object('queued', c.queued, 'leased', c.leased, 'dead', c.dead),
           'rows', case when l.part is not null then jsonb_build_object('queued', coalesce(r.queued, 0), 'leased',
             coalesce(r.leased, 0)) end)
  from counters c
  left join looked l on l.part = c.part
  left join rows r on r.part = c.part and r.queue = c.queue
  where c.queued < 0 or c.leased < 0 or c.dead < 0
     or l.part is not null and (c.queued, c.leased) is distinct from (coalesce(r.queued, 0)::numeric,
       coalesce(r.leased, 0)::numeric)
  limit 50
$$;

-- detect_table_broken: adopted tables that are gone or have changed.
create or replace function holdfast.detect_table_broken(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select a.queue, '', 'critical', at, format('Queue %s cannot use its table', a.queue),
         split_part(p.problem, '. ', 1) || '.',
         substr(p.problem, length(split_part(p.problem, '. ', 1)) + 3), jsonb_build_object('table', a.relation)
  from holdfast.adopted a
  cross join lateral (select holdfast.adopted_problem(a) as problem) p
  where a.live and p.problem is not null
  order by a.part
  limit 50
$$;

-- detect_row_refused: rows of adopted tables that refused a change.
create or replace function holdfast.detect_row_refused(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select a.queue, '', 'warning', f.since, format('%s of %s cannot be written', case f.jobs when 1 then '1 row'
         else f.jobs || ' rows' end, a.relation),
         format('The last %s failed: %s (SQLSTATE %s).', f.verb, f.message, f.code),
         format('holdfast job retry ''queue:%s state:dead''   # after you have fixed the row or its table', a.queue),
         jsonb_build_object('table', a.relation, 'jobs', f.jobs, 'job', f.id, 'code', f.code)
  from (
    select x.part, count(*) as jobs, min(x.at) as since, (array_agg(x.verb order by x.at desc))[1] as verb,
           (array_agg(x.message order by x.at desc))[1] as message, (array_agg(x.code order by x.at desc))[1] as code,
           (array_agg(x.id order by x.at desc))[1] as id
    from holdfast.adopted_fault x
    group by x.part
  ) f
  join holdfast.adopted a on a.part = f.part
  order by a.part
  limit 50
$$;

create or replace function holdfast.detect_paused_long(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select q.queue, '', 'info', q.paused_at, format('%s has been paused for %s', q.queue,
           holdfast.span_text(at - q.paused_at)),
         format('%s%s%s.', case q.queued when 1 then '1 job waits' else q.queued || ' jobs wait' end,
         coalesce(', paused by ' || q.paused_by, ''), coalesce(': ' || q.paused_reason, '')),
         format('holdfast queue resume %s', holdfast.shell(q.queue)),
           jsonb_build_object('queued', q.queued, 'by', q.paused_by, 'reason', q.paused_reason)
  from (
    select x.name as queue, x.paused_at, x.paused_by, x.paused_reason, n.queued
    from holdfast.queue x
    cross join lateral (
      select sum(c.queued)::bigint as queued
      from (
        select t.queued from holdfast.totals_of(x.name) t
        union all
        select t.queued from holdfast.tally t where t.queue = x.name) c
    ) n
    where x.paused_at < at and (x.paused_until is null or x.paused_until > at)
    offset 0
  ) q
  cross join lateral (select holdfast.thresholds_of('paused_long', q.queue) as t) w
  where q.paused_at < at - holdfast.secs(w.t -> 'seconds') and q.queued > 0
  limit 50
$$;

-- newest_payloads: the sizes of the newest jobs of each part, enqueued in the last ten minutes.
create or replace function holdfast.newest_payloads(at timestamptz)
returns table (id uuid, queue text, kind text, created_at timestamptz, bytes integer)
language sql stable
as $$
  select j.id, j.queue, j.kind, j.created_at, j.bytes
  from (select distinct t.part from holdfast.total t where t.queued + t.leased > 0) p
  cross join lateral (
    select x.id, x.queue, x.kind, x.created_at, octet_length(x.payload::text) as bytes
    from holdfast.job x
    where x.part = p.part
    order by x.id desc
    limit 200
  ) j
  where j.created_at > at - interval '10 minutes'
$$;

create or replace function holdfast.detect_payload_near_limit(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select j.queue, j.kind, 'warning', min(j.created_at), format('%s: payloads near the limit of %s', j.kind, j.queue),
         format('Up to %s of %s bytes allowed. A larger one is refused.', max(j.bytes), max(q.payload_limit)),
         format('holdfast queue set %s payload_limit=%s', holdfast.shell(j.queue), 2 * max(q.payload_limit)),
         jsonb_build_object('bytes', max(j.bytes), 'limit', max(q.payload_limit), 'jobs', (array_agg(j.id::text))[1:5])
  from (
    select x.*, y.payload_limit
    from holdfast.newest_payloads(at) x
    join holdfast.queue y on y.name = x.queue
    where x.bytes >= y.payload_limit * (
      select min((s.thresholds ->> 'share')::numeric) from (
        select d.thresholds from holdfast.detector_catalogue d where d.code = 'payload_near_limit'
        union all
        select d.thresholds from holdfast.detector_setting d
          where d.code = 'payload_near_limit' and d.thresholds ? 'share') s)
    offset 0
  ) j
  cross join lateral (select holdfast.thresholds_of('payload_near_limit', j.queue) as t, j.payload_limit) q
  where j.bytes >= (q.t ->> 'share')::numeric * q.payload_limit
  group by j.queue, j.kind
$$;

create or replace function holdfast.detect_large_payload(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select j.queue, j.kind, 'info', min(j.created_at), format('%s: payloads of up to %s bytes', j.kind, max(j.bytes)),
         'Each is written and read several times; store the data elsewhere and pass a reference.',
         format('holdfast job show %s', (array_agg(j.id order by j.bytes desc))[1]),
         jsonb_build_object('bytes', max(j.bytes), 'jobs', (array_agg(j.id::text))[1:5])
  from holdfast.newest_payloads(at) j
  cross join lateral (select holdfast.thresholds_of('large_payload', j.queue) as t) w
  where j.bytes > (w.t ->> 'bytes')::numeric
  group by j.queue, j.kind
$$;

create or replace function holdfast.detect_long_running(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select j.queue, j.kind, 'info', min(l.claimed_at), format('%s has been running for %s', j.kind,
         holdfast.span_text(at - min(l.claimed_at))),
         format('%s of this kind have been running longer than %s in queue %s.', count(*),
         holdfast.span_text(holdfast.secs(j.said::jsonb -> 'seconds')), j.queue),
         format('holdfast job explain %s', (array_agg(j.id order by l.claimed_at))[1]),
         jsonb_build_object('jobs', (array_agg(j.id::text order by l.claimed_at))[1:5], 'count', count(*))
  from (
    select x.part, x.token, x.claimed_at, x.ids from holdfast.lease x
      where x.open and x.claimed_at < at - interval '1 second' order by x.until desc limit 2000
  ) l
  cross join lateral (select i.id from unnest(l.ids) i(id) limit 200) i
  cross join lateral (
    select x.id, x.queue, x.kind, holdfast.thresholds_of('long_running', x.queue)::text as said
    from holdfast.job x where x.part = l.part and x.id = i.id and x.token = l.token limit 1) j
  where at - l.claimed_at > holdfast.secs(j.said::jsonb -> 'seconds')
  group by j.queue, j.kind, j.said
$$;

create or replace function holdfast.detect_flash_job(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select l.queue, l.worker, 'info', min(l.claimed_at), format('%s acks jobs instantly', l.worker),
         format('%s in queue %s within %s of the claim. Did the handler do anything?', case count(*)
           when 1 then '1 job' else count(*) || ' jobs' end, l.queue,
           holdfast.span_text(holdfast.secs(l.said::jsonb -> 'seconds'))),
         'holdfast job list state:done', jsonb_build_object('jobs', (array_agg(i.id::text))[1:5], 'count', count(*))
  from (
    select x.part, x.token, x.queue, x.worker, x.claimed_at, x.ids, x.taken,
           holdfast.thresholds_of('flash_job', x.queue)::text as said
    from holdfast.newest_leases(500) x where x.claimed_at > at - interval '1 minute'
  ) l
  cross join lateral (select y.id from unnest(l.ids) y(id) limit 100) i
  left join lateral (
    select e.ended_at from holdfast.history e where e.part = l.part and e.id = i.id and e.state = 'done'
      limit 1) e on true
  where l.said is not null and holdfast.how_taken(l.taken, i.id) is null
    and not exists (select from holdfast.job j where j.part = l.part and j.id = i.id)
    and coalesce(e.ended_at, at) - l.claimed_at < holdfast.secs(l.said::jsonb -> 'seconds')
  group by l.queue, l.worker, l.said
$$;

create or replace function holdfast.detect_burst_claims(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select l.queue, l.worker, 'info', min(l.claimed_at), format('%s claimed %s jobs at once', l.worker,
         sum(cardinality(l.ids))),
         format('In queue %s within %s.', l.queue, holdfast.span_text(holdfast.secs(l.said::jsonb -> 'seconds'))),
         'holdfast worker list',
         jsonb_build_object('worker', l.worker, 'jobs', sum(cardinality(l.ids)))
  from (
    select x.queue, x.worker, x.claimed_at, x.ids, holdfast.thresholds_of('burst_claims', x.queue)::text as said
      from holdfast.newest_leases() x
  ) l
  where l.claimed_at > at - holdfast.secs(l.said::jsonb -> 'seconds')
  group by l.queue, l.worker, l.said
  having sum(cardinality(l.ids)) >= (l.said::jsonb ->> 'jobs')::numeric
$$;

-- bulk_findings: of calls of one sort that changed many jobs.
create or replace function holdfast.bulk_findings(code text, sort text, told text, at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select b.queue, '', d.severity, min(b.at), format('%s: %s jobs were %s', b.queue, sum(b.jobs), told),
         format('By %s in the last %s, the largest of %s.', case sum(b.calls)
           when 1 then '1 call' else sum(b.calls) || ' calls' end,
           holdfast.span_text(holdfast.secs(b.said::jsonb -> 'seconds')), max(b.largest)),
         'holdfast op list', jsonb_build_object('jobs', sum(b.jobs), 'calls', sum(b.calls), 'largest', max(b.largest))
  from (
    select x.queue, x.at, x.calls, x.jobs, x.largest, holdfast.thresholds_of(bulk_findings.code, x.queue)::text as said
    from holdfast.bulk x
    where x.at > bulk_findings.at - interval '1 hour' and x.at <= bulk_findings.at and x.sort = bulk_findings.sort
  ) b
  join holdfast.detector_catalogue d on d.code = bulk_findings.code
  where b.at > bulk_findings.at - holdfast.secs(b.said::jsonb -> 'seconds')
    and b.largest >= (b.said::jsonb ->> 'jobs')::numeric
  group by b.queue, b.said, d.severity
$$;

create or replace function holdfast.detect_bulk_enqueue(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$ select holdfast.bulk_findings('bulk_enqueue', 'enqueued', 'enqueued at once', at) $$;

create or replace function holdfast.detect_bulk_delete(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$ select holdfast.bulk_findings('bulk_delete', 'deleted', 'deleted at once', at) $$;

create or replace function holdfast.detect_bulk_move(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$ select holdfast.bulk_findings('bulk_move', 'moved', 'moved here at once', at) $$;

create or replace function holdfast.detect_queue_cleared(at timestamptz)
returns setof holdfast.finding
language sql stable
as $$
  select b.queue, '', 'warning', min(b.at), format('%s was cleared', b.queue),
         format('%s jobs were deleted or cancelled at once, and none is left waiting.', sum(b.jobs)),
         'holdfast job list ' || holdfast.shell(format('queue:%s state:cancelled', holdfast.filter_word(b.queue))),
         jsonb_build_object('jobs', sum(b.jobs))
  from (
    select x.queue, x.at, x.jobs, x.largest, holdfast.thresholds_of('queue_cleared', x.queue)::text as said
    from holdfast.bulk x
    where x.at > detect_queue_cleared.at - interval '1 hour' and x.at <= detect_queue_cleared.at
      and x.sort in ('deleted', 'cancelled')
  ) b
  where b.at > detect_queue_cleared.at - holdfast.secs(b.said::jsonb -> 'seconds')
    and b.largest >= (b.said::jsonb ->> 'jobs')::numeric
    and not exists (select from holdfast.queues q where q.queue = b.queue and q.queued > 0)
  group by b.queue
$$;

create or replace function holdfast.secs(seconds jsonb)
returns interval
language sql immutable parallel safe
as $$ select make_interval(secs => (seconds #>> '{}')::double precision) $$;

-- span_text: a span in short form: 3.2 s, 41 m, 2 h, 3 d.
create or replace function holdfast.span_text(span interval)
returns text
language sql immutable parallel safe
as $$
  select case
    when s >= 172800 then round(s / 86400) || ' d' when s >= 7200 then round(s / 3600) || ' h'
      when s >= 120 then round(s / 60) || ' m'
    when s >= 10 then round(s) || ' s' else trim_scale(round(s, 1)) || ' s' end
  from (select greatest(extract(epoch from span), 0)::numeric as s) x
$$;
