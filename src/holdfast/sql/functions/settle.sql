-- The verbs of a lease holder. Each checks the token in the statement that changes the job, never in one before it.
-- Each returns one row per id, in the order given.

-- touch: extend leases; it never shortens one, and detail says so. Without a length, the claim's is used. 'lost'
-- means that the caller no longer holds the job. progress is a JSON array, one object per id, of done, total and
-- note; null keeps the previous progress.
create or replace function holdfast.touch(
  ids uuid[], tokens uuid[], lease interval default null, progress jsonb default null)
returns table (id uuid, outcome text, lease_until timestamptz, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  timestamptz := holdfast.clock();
  v_told constant text[] := array(   -- queues of which every event is noted; the empty name is all of them
    select q.name from holdfast.queue q where q.activity = 'all'
    union all select w.queue from holdfast.watched w where w.until > v_now);
  v_kept constant text := 'the lease already ends later than that, so it was not changed';
  kept   record;
  rows   record;   -- of adopted tables
begin
  perform holdfast.check_length('lease', lease, '1 year');
  tokens := holdfast.paired(ids, tokens);
  if progress is not null then
    perform holdfast.check_progress(progress, cardinality(ids));
  end if;
  -- Twice where it had to wait for somebody's lock on a job: a lease is counted from when it is given.
  for turn in 1 .. 2 loop
    with touched as (
      update holdfast.job j
      set lease_until = greatest(j.lease_until, v_now + coalesce(touch.lease, (
            select case when l.outside then l.length else coalesce(j.lease_for, l.length) end
            from holdfast.lease l
            where l.token = j.token
            limit 1), j.lease_for, (holdfast.settings_of(j.queue)).lease)),
          progress = case
            when u.said is null then j.progress
            else u.said || jsonb_strip_nulls(jsonb_build_object(
              'note', left(u.said ->> 'note', 500), 'attempt', j.attempt, 'at', v_now))
          end
      from (
        select holdfast.part_of(x.id) as part, x.id, x.token, x.nth,
               nullif(touch.progress -> (x.nth - 1)::integer, 'null') as said
        from unnest(ids, tokens) with ordinality x(id, token, nth)
        order by x.id
      ) u
      where j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
      returning j.id, j.token, j.lease_until, u.nth, j.part, j.queue, j.kind, j.attempt, j.worker,
        j.lease_until = v_now + coalesce(touch.lease, (
          select case when l.outside then l.length else coalesce(j.lease_for, l.length) end
          from holdfast.lease l
          where l.token = j.token
          limit 1), j.lease_for, (holdfast.settings_of(j.queue)).lease) as longer
    )
    select array_agg(t.id order by t.nth) as ids, array_agg(t.longer order by t.nth) as longer,
           array_agg(t.token order by t.nth) as tokens, array_agg(t.lease_until order by t.nth) as untils,
           array_agg(holdfast.happened('touched', v_now, t.id, t.queue, t.kind, 'leased', t.attempt, t.worker))
             filter (where t.queue = any(v_told) or '' = any(v_told)) as told
    into kept
    from touched t;
    exit when holdfast.clock() - v_now < interval '1 second';
    v_now := holdfast.clock();
  end loop;
  if kept.told is not null then
    perform holdfast.note_events(kept.told);
  end if;
  if cardinality(kept.ids) is distinct from cardinality(ids) then
    loop
      select array_agg(a.id) as ids, array_agg(a.token) as tokens, array_agg(a.lease_until) as untils,
             array_agg(coalesce(a.lease_until <= v_now + touch.lease, true)) as longer
      into rows
      from holdfast.touch_adopted(ids, tokens, lease, v_now) a;
      exit when rows.ids is null or holdfast.clock() - v_now < interval '1 second';
      v_now := holdfast.clock();   -- it waited: counted from now, as above
    end loop;
    select kept.ids || rows.ids as ids, kept.tokens || rows.tokens as tokens, kept.untils || rows.untils as untils,
           kept.longer || rows.longer as longer
    into kept;
  end if;
  if cardinality(kept.ids) = cardinality(ids) then
    return query
      select k.id, 'leased', k.lease_until, case when not k.longer then v_kept end
      from unnest(kept.ids, kept.untils, kept.longer) k(id, lease_until, longer);
    return;
  end if;
  return query
    select s.id, s.outcome, k.lease_until, case when not k.longer then v_kept else s.detail end
    from holdfast.settled('touch', ids, tokens, kept.ids, kept.tokens, '{leased}') s
    left join unnest(kept.ids, kept.untils, kept.longer) k(id, lease_until, longer)
      on k.id = s.id and s.outcome = 'leased'
    order by s.nth;
end
$$;

-- ack: end leases with success. The job is deleted, or kept in the history if its queue keeps done jobs or the caller
-- passes keep. results is a JSON array, one value per id. recent: so many of the jobs, from the first, are kept for a
-- day if their queues keep recent jobs.
create or replace function holdfast.ack(
  ids uuid[], tokens uuid[], results jsonb default null, keep boolean default false, recent integer default 0)
returns table (id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_keeps boolean;
  v_told  text[];     -- queues of which every event is noted; the empty name is all of them
  gone    record;
begin
  if cardinality(ids) = cardinality(tokens) and array_position(ids, null) is null
     and array_position(tokens, null) is null then
    null;   -- they are pairs: asked here, for a call costs as much as a third statement
  else
    tokens := holdfast.paired(ids, tokens);
  end if;
  if jsonb_typeof(results) <> 'array' or jsonb_array_length(results) <> cardinality(ids) then
    perform holdfast.refuse('HF208', format('results must be a JSON array of %s values, one per id', cardinality(ids)));
  end if;
  if results is not null then
    perform holdfast.check_results(ids, results);
  end if;
  if exists (select from holdfast.queue q where q.keep_done > '0' or q.activity = 'all')
     or exists (select from holdfast.watched w where w.until > v_now) then
    select bool_or(q.keep_done > '0'), array_agg(q.name) filter (where q.activity = 'all')
             || array(select w.queue from holdfast.watched w where w.until > v_now)
    into v_keeps, v_told
    from holdfast.queue q
    where q.keep_done > '0' or q.activity = 'all';
  end if;
  if keep or v_keeps then
    perform holdfast.keep_done(ids, tokens, results, keep, v_now, recent);
  elsif recent > 0 then
    perform holdfast.keep_done(ids[:recent], tokens[:recent], results, false, v_now, recent);
  end if;

  with ended as (
    delete from holdfast.job j
    -- The part is joined, not given, and as the one element of an array: with nothing known about job rows
    -- beforehand, and no equality by which two orders could be merged, one probe of the primary key per pair
    -- is the only plan there is, whatever the planner believes about the table.
    -- In the order of ids, so that two calls that share jobs wait for each other and do not deadlock.
    using (
      select holdfast.part_of(x.id) as part, x.id, x.token from unnest(ids, tokens) x(id, token) order by x.id
    ) u
    where j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
    returning j.part, j.id, j.token, j.queue, j.kind, j.lane, j.key, j.attempt, j.worker, j.steps, j.link
  ), counted as (
    insert into holdfast.tally (part, queue, kind, leased, done)
    select e.part, e.queue, e.kind, -count(*), count(*)
    from ended e
    group by e.part, e.queue, e.kind
  )
  select count(*) as jobs, array_agg(e.id) as ids, array_agg(e.token) as tokens,
         jsonb_agg(holdfast.place_of(e.part, e.queue, e.kind, e.key, e.lane))
           filter (where e.key is not null or e.lane is not null) as places,
         array_agg(array[e.id, e.token, e.link, case when e.steps is not null then e.id end])
           filter (where e.link is not null or e.steps is not null) as more,
         array_agg(holdfast.happened('acked', v_now, e.id, e.queue, e.kind, 'done', e.attempt, e.worker))
           filter (where e.queue = any(v_told) or '' = any(v_told)) as told
  into gone
  from ended e;
  if gone.told is not null then
    perform holdfast.note_events(gone.told);
  end if;
  if holdfast.somebody_waits() then   -- after the rows are gone: see not_ending
    perform holdfast.tell_awaited(gone.ids);
  end if;
  if gone.places is not null then
    perform holdfast.let_next_in(gone.places, v_now);
  end if;
  if gone.more is not null then
    perform holdfast.clear_done(gone.more, ids, tokens, results, keep or v_keeps or recent > 0, v_now);
  end if;
  if gone.jobs = cardinality(ids) then
    if gone.jobs = 1 then   -- without a statement: starting one takes longer than answering
      id := ids[1];
      outcome := 'done';
      return next;
    else
      return query select i, 'done', null::text from unnest(ids) i;
    end if;
    return;
  end if;
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settle_rest('ack', ids, tokens, gone.ids, gone.tokens, '{done}', v_now) s;
end
$$;

-- check_results: refuse results that are too long for the queues of their jobs, or contain a number out of range.
create or replace function holdfast.check_results(ids uuid[], results jsonb)
returns void
language plpgsql
as $$
begin
  perform holdfast.check_value(format('result of job %s', u.id), r.value, coalesce((
    select q.payload_limit
    from holdfast.job j
    join holdfast.queue q on q.name = j.queue
    where j.part = holdfast.part_of(u.id) and j.id = u.id), (holdfast.unset_queue(null)).payload_limit))
  from unnest(ids) with ordinality u(id, nth)
  cross join lateral (select results -> (u.nth - 1)::integer as value) r
  where r.value is not null and (pg_column_size(r.value) > 4000 or octet_length(r.value::text) > 300);
end
$$;

-- keep_done: copy jobs that are about to be done into the history: all, or those whose queues keep done jobs. Of the
-- others, those among the first so many that are small enough to be kept as recent.
create or replace function holdfast.keep_done(
  ids uuid[], tokens uuid[], results jsonb, everything boolean, at timestamptz, recent integer default 0)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_usual constant boolean := recent > 0 and (holdfast.unset_queue(null)).keep_recent;
begin
  insert into holdfast.history
  select e.*
  from (
    select distinct on (x.id, x.token) holdfast.part_of(x.id) as part, x.id, x.token, x.nth
    from unnest(ids, tokens) with ordinality x(id, token, nth)
    order by x.id, x.token, x.nth
  ) u
  join holdfast.job j on j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
  left join holdfast.queue q on q.name = j.queue
  cross join lateral (
    select nullif(results -> (u.nth - 1)::integer, 'null') as result, everything or q.keep_done > '0' as always) k
  cross join lateral holdfast.ended_of(j, 'done', keep_done.at, j.reason, result => k.result,
    recent => case when k.always then null else true end) e
  where k.always
     or u.nth <= keep_done.recent and coalesce(q.keep_recent, v_usual) and holdfast.is_small(j, k.result)
  for update of j;
end
$$;

-- is_small: whether a done job may be kept only because it is recent. Large ones would fill the disk at the pace at
-- which jobs are kept, and so would payloads in a store: those are deleted when no job has their address. A job is kept
-- with the rows of what it waited for: at most twenty, and their results count.
create or replace function holdfast.is_small(j holdfast.job, result jsonb)
returns boolean
language sql stable
as $$
  select pg_column_size(j.payload) + coalesce(pg_column_size(j.headers), 0) + coalesce(pg_column_size(result), 0)
           + coalesce(j.steps, 0) * 1024 + w.size <= 8192 and w.rows <= 20
         and not coalesce(holdfast.is_coded(j.payload) and j.payload #>> '{$holdfast,store}' is not null, false)
  from (
    select count(*) as rows, coalesce(sum(pg_column_size(l.result)), 0) as size
    from (select l.result from holdfast.link l where l.follower = j.link limit 21) l
  ) w
$$;

-- nack: end leases with a failure. The job waits for its next attempt, or is dead if that was the last. delay null:
-- the queue's backoff, doubled with each attempt, with full jitter. final: dead now, even if attempts are left.
create or replace function holdfast.nack(
  ids uuid[], tokens uuid[], error_kind text default null, message text default null,
  traceback text default null, delay interval default null, final boolean default false, log text default null)
returns table (id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  perform holdfast.check_length('delay', delay, '100 years');
  return query
    select f.id, f.outcome, f.detail
    from holdfast.nack_each(ids, holdfast.paired(ids, tokens), array[error_kind], array[message], array[traceback],
      array[delay], array[final], array[log], true) f;
end
$$;

-- release: return jobs without running them: the attempt does not count, and the job gets its place back.
create or replace function holdfast.release(ids uuid[], tokens uuid[], delay interval default null)
returns table (id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_length('delay', delay, '100 years');
  return query
    select r.id, r.outcome, r.detail
    from holdfast.release_each(ids, holdfast.paired(ids, tokens), array_fill(delay, array[cardinality(ids)])) r;
end
$$;

-- settle: end many leases in one call, each with its own verb.
-- items: [{"id", "token", "verb": "ack" | "nack" | "release" | "cancel" | "suspend", "result", "keep", "recent",
--          "error_kind", "message", "traceback", "log", "final", "delay", "reason", "unread",
--          "name", "nth", "until", "event", "key"}]
-- cancel ends the caller's own lease, and the job with it, as cancelled. suspend gives the lease back and has the job
-- sleep, or wait for an event: until a time, or for delay seconds. It is stored as a step with a name.
-- A release with unread, {"shape", "problem"}, says that the caller cannot read the job, and how long it waits is
-- decided here.
create or replace function holdfast.settle(items jsonb)
returns table (ord integer, id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  acks  record;
  keeps record;
  nacks record;
  frees record;
  stops record;
  parks record;
begin
  perform holdfast.check_settlements(items);
  select array_agg(a.id) as ids, array_agg(a.token) as tokens, jsonb_agg(a.result) as results,
         count(*) filter (where a.recent)::integer as recent
  into acks
  from (
    select (i.item ->> 'id')::uuid as id, (i.item ->> 'token')::uuid as token, i.item -> 'result' as result,
           coalesce(i.item -> 'recent' = 'true', false) as recent
    from jsonb_array_elements(items) with ordinality i(item, ord)
    where i.item ->> 'verb' = 'ack' and coalesce(i.item -> 'keep', 'null') <> 'true'
    order by recent desc, i.ord   -- ack counts them from the first
  ) a;
  select array_agg((i.item ->> 'id')::uuid) as ids, array_agg((i.item ->> 'token')::uuid) as tokens,
         jsonb_agg(i.item -> 'result') as results
  into keeps
  from jsonb_array_elements(items) i(item)
  where i.item ->> 'verb' = 'ack' and i.item -> 'keep' = 'true';
  select array_agg((i.item ->> 'id')::uuid) as ids, array_agg((i.item ->> 'token')::uuid) as tokens,
         array_agg(i.item ->> 'error_kind') as kinds, array_agg(i.item ->> 'message') as messages,
         array_agg(i.item ->> 'traceback') as tracebacks, array_agg(i.item ->> 'log') as logs,
         array_agg(make_interval(secs => (i.item ->> 'delay')::double precision)) as delays,
         array_agg(coalesce((nullif(i.item -> 'final', 'null'))::boolean, false)) as finals
  into nacks
  from jsonb_array_elements(items) i(item) where i.item ->> 'verb' = 'nack';
  select array_agg((i.item ->> 'id')::uuid) as ids, array_agg((i.item ->> 'token')::uuid) as tokens,
         array_agg(make_interval(secs => (i.item ->> 'delay')::double precision)) as delays,
         array_agg(nullif(i.item -> 'unread', 'null')) as unread,
         count(nullif(i.item -> 'unread', 'null')) as unreadable
  into frees
  from jsonb_array_elements(items) i(item) where i.item ->> 'verb' = 'release';
  select array_agg((i.item ->> 'id')::uuid) as ids, array_agg((i.item ->> 'token')::uuid) as tokens,
         array_agg(i.item ->> 'reason') as reasons
  into stops
  from jsonb_array_elements(items) i(item) where i.item ->> 'verb' = 'cancel';
  select array_agg((i.item ->> 'id')::uuid) as ids, array_agg((i.item ->> 'token')::uuid) as tokens,
         jsonb_agg(i.item) as items
  into parks
  from jsonb_array_elements(items) i(item) where i.item ->> 'verb' = 'suspend';
  if num_nonnulls(acks.ids, keeps.ids, nacks.ids, frees.ids, stops.ids, parks.ids) > 1 then
    if frees.ids is not null then
      lock table holdfast.releases in row share mode;   -- as a release does, before the jobs
    end if;
    perform holdfast.lock_loose(u.ids), holdfast.lock_adopted(u.ids)
    from (select acks.ids || keeps.ids || nacks.ids || frees.ids || stops.ids || parks.ids as ids) u;
    perform holdfast.lock_ledger(nacks.tokens || frees.tokens || stops.tokens || parks.tokens);
    perform holdfast.lock_counts(acks.ids || keeps.ids, nacks.ids || stops.ids);
  end if;
  if frees.unreadable > 0 then
    frees.delays := holdfast.unread(frees.ids, frees.tokens, frees.unread, frees.delays);
  end if;

  return query
    with settled as (
      select 'ack' as verb, a.nth, a.id, a.outcome, a.detail
      from holdfast.ack(acks.ids, acks.tokens, acks.results, recent => acks.recent)
        with ordinality a(id, outcome, detail, nth)
      where acks.ids is not null
      union all
      select 'keep', k.nth, k.id, k.outcome, k.detail
      from holdfast.ack(keeps.ids, keeps.tokens, keeps.results, true) with ordinality k(id, outcome, detail, nth)
      where keeps.ids is not null
      union all
      select 'nack', n.nth, n.id, n.outcome, n.detail
      from holdfast.nack_each(nacks.ids, nacks.tokens, nacks.kinds, nacks.messages, nacks.tracebacks, nacks.delays,
        nacks.finals, nacks.logs, false)
        with ordinality n(id, outcome, detail, nth)
      where nacks.ids is not null
      union all
      select 'release', r.nth, r.id, r.outcome, r.detail
      from holdfast.release_each(frees.ids, frees.tokens, frees.delays) with ordinality r(id, outcome, detail, nth)
      where frees.ids is not null
      union all
      select 'cancel', c.nth, c.id, c.outcome, c.detail
      from holdfast.cancel_each(stops.ids, stops.tokens, stops.reasons) with ordinality c(id, outcome, detail, nth)
      where stops.ids is not null
      union all
      select 'suspend', p.nth, p.id, p.outcome, p.detail
      from holdfast.suspend_each(parks.items) with ordinality p(id, outcome, detail, nth)
      where parks.ids is not null
    ), asked as (
      select v.ord, v.verb, row_number() over (partition by v.verb order by v.recent desc, v.ord) as nth
      from (
        select i.ord, case when i.item ->> 'verb' = 'ack' and i.item -> 'keep' = 'true' then 'keep'
               else i.item ->> 'verb' end as verb,
               coalesce(i.item ->> 'verb' = 'ack' and coalesce(i.item -> 'keep', 'null') <> 'true'
                 and i.item -> 'recent' = 'true', false) as recent
        from jsonb_array_elements(items) with ordinality i(item, ord)
      ) v
    )
    select a.ord::integer, s.id, s.outcome, s.detail
    from asked a
    join settled s on s.verb = a.verb and s.nth = a.nth
    order by a.ord;
end
$$;

-- check_settlements: refuse what settle cannot take.
create or replace function holdfast.check_settlements(items jsonb)
returns void
language plpgsql
as $$
declare
  v_bad record;
begin
  if items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects');
  end if;
  select i.item, i.ord into v_bad
  from jsonb_array_elements(items) with ordinality i(item, ord)
  where jsonb_typeof(i.item) <> 'object'
     or i.item - case when i.item ->> 'verb' = 'suspend' then '{id,token,verb,name,nth,until,delay,event,key,schema}'
          else '{id,token,verb,result,keep,recent,error_kind,message,traceback,log,final,delay,reason,unread}'
          end::text[] <> '{}'
     or not coalesce(i.item ->> 'verb' in ('ack', 'nack', 'release', 'cancel', 'suspend'), false)
     or i.item ->> 'verb' = 'suspend' and not holdfast.suspend_ok(i.item)
     or not coalesce(jsonb_typeof(i.item -> 'keep'), 'null') in ('boolean', 'null')
     or not coalesce(jsonb_typeof(i.item -> 'recent'), 'null') in ('boolean', 'null')
     or not coalesce(jsonb_typeof(i.item -> 'final'), 'null') in ('boolean', 'null')
     or not holdfast.unread_ok(i.item)
     or not coalesce(holdfast.is_id(i.item ->> 'id') and holdfast.is_id(i.item ->> 'token'), false)
     or i.item -> 'delay' is not null and not holdfast.item_details_ok(jsonb_build_object('delay', i.item -> 'delay'))
  limit 1;
  if found then
    if jsonb_typeof(v_bad.item) = 'object' and v_bad.item ->> 'token' is null then
      perform holdfast.refuse('HF207', format('item %s has no token', v_bad.ord), null,
        'The token of the claim proves the lease.');
    end if;
    perform holdfast.refuse('HF201', format('item %s cannot be settled: %s', v_bad.ord, holdfast.told(v_bad.item, 200)),
      null,
      'An item has id, token and verb (ack, nack, release, cancel or suspend); ack takes result, keep and recent; nack '
        'takes '
        'error_kind, message, traceback, log and final; nack and release take delay in seconds; release takes '
        'unread, with shape and problem; cancel takes reason; '
        'suspend takes name, nth, until or delay, event, key and schema.');
  end if;
end
$$;

-- happened: one event of one job, for note_events. A row of the table, not of the view: an upgrade may make views anew,
-- and a call that is being planned at that moment would not find the one that it knows.
create or replace function holdfast.happened(
  event text, at timestamptz, id uuid, queue text, kind text, state text, attempt integer, worker text)
returns holdfast.event
language sql immutable
as $$
  select row(null, at, null, null, attempt, 1, id, event, state, queue, kind, worker, null, null, null)::holdfast.event
$$;

-- check_length: refuse a duration that is negative, or unreasonably long.
create or replace function holdfast.check_length(field text, value interval, longest interval)
returns void
language plpgsql
as $$
begin
  if value < '0' or value > longest or field in ('lease', 'timeout') and value = '0' then
    perform holdfast.refuse('HF204', format('%s %s is out of range', field, value), null,
      format('It is %s 0 and at most %s.', case when field in ('lease', 'timeout') then 'above' else 'at least' end,
        longest));
  end if;
end
$$;

-- check_progress: refuse what is not one object or null per id, of done, total and note.
create or replace function holdfast.check_progress(progress jsonb, jobs integer)
returns void
language plpgsql
as $$
declare
  v_bad record;
begin
  if jsonb_typeof(progress) <> 'array' or jsonb_array_length(progress) <> jobs then
    perform holdfast.refuse('HF208', format('progress must be a JSON array of %s values, one per id', jobs));
  end if;
  select p.said, p.ord into v_bad
  from jsonb_array_elements(progress) with ordinality p(said, ord)
  where case jsonb_typeof(p.said)
    when 'null' then false
    when 'object' then p.said - '{done,total,note}'::text[] <> '{}'
      or not coalesce(jsonb_typeof(p.said -> 'done'), 'number') = 'number'
      or not coalesce(jsonb_typeof(p.said -> 'total'), 'number') = 'number'
      or not coalesce(jsonb_typeof(p.said -> 'note'), 'string') = 'string'
    else true
  end
  limit 1;
  if found then
    perform holdfast.refuse('HF208', format('progress %s is not valid: %s', v_bad.ord, holdfast.told(v_bad.said, 200)),
      null, 'It must be null, or an object such as {"done": 3, "total": 20, "note": "page 3"}.');
  end if;
  perform holdfast.check_value('progress', p.said - 'note', 2000) from jsonb_array_elements(progress) p(said)
  where jsonb_typeof(p.said) = 'object';
end
$$;

-- paired: tokens, one per id. One token may serve all ids: a claim gives one to all its jobs.
create or replace function holdfast.paired(ids uuid[], tokens uuid[])
returns uuid[]
language plpgsql immutable
as $$
begin
  if ids is null or array_position(ids, null) is not null then
    perform holdfast.refuse('HF208', 'ids must not be null');
  end if;
  if tokens is null or cardinality(tokens) = 0 and cardinality(ids) > 0 or array_position(tokens, null) is not null then
    perform holdfast.refuse('HF207', 'a token is missing', null,
      'The token given to claim proves the lease: pass it with every id.');
  end if;
  if cardinality(tokens) = cardinality(ids) then
    return tokens;
  elsif cardinality(tokens) = 1 then
    return array_fill(tokens[1], array[cardinality(ids)]);
  end if;
  perform holdfast.refuse('HF208', format('%s ids but %s tokens', cardinality(ids), cardinality(tokens)), null,
    'Give one token per id, or one token for all.');
end
$$;

create or replace function holdfast.nack_each(
  ids uuid[], tokens uuid[], error_kinds text[], messages text[], tracebacks text[], delays interval[],
    finals boolean[],
  logs text[], alike boolean)
returns table (id uuid, outcome text, detail text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_parts constant smallint[] := array(select distinct holdfast.part_of(i) from unnest(ids) i);
  v_now   timestamptz;
  v_ids   uuid[] := '{}';
  v_toks  uuid[] := '{}';
  v_outs  text[] := '{}';
  v_part  smallint;
  these   record;
begin
  if cardinality(ids) > 1 then   -- all before one is changed: that holds its key, for which others wait
    perform holdfast.lock_loose(ids);
  end if;
  if cardinality(v_parts) > 1 then   -- else they are locked when they are changed
    perform holdfast.lock_adopted(ids);
    perform holdfast.lock_ledger(tokens);
    perform holdfast.lock_counts('{}', ids);
  end if;
  v_now := holdfast.clock();   -- behind what may wait: delays are counted from now
  foreach v_part in array v_parts loop
    these := holdfast.fail(
      v_part, ids, tokens, error_kinds, messages, tracebacks, delays, finals, 'failed', v_now, logs, alike);
    v_ids := v_ids || these.failed_ids;
    v_toks := v_toks || these.failed_tokens;
    v_outs := v_outs || these.outcomes;
  end loop;
  if v_ids = ids then   -- as always, unless something is lost or the call is strange
    return query select u.id, u.outcome, null::text from unnest(v_ids, v_outs) u(id, outcome);
    return;
  end if;
  if alike then   -- said once for all; a row of an adopted table is told by itself
    error_kinds := array_fill(error_kinds[1], array[cardinality(ids)]);
    messages := array_fill(messages[1], array[cardinality(ids)]);
    tracebacks := array_fill(tracebacks[1], array[cardinality(ids)]);
    delays := array_fill(delays[1], array[cardinality(ids)]);
    finals := array_fill(finals[1], array[cardinality(ids)]);
  end if;
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settle_rest('nack', ids, tokens, v_ids, v_toks, v_outs, v_now,
      error_kinds, messages, tracebacks, delays, finals) s;
end
$$;

create or replace function holdfast.release_each(ids uuid[], tokens uuid[], delays interval[])
returns table (id uuid, outcome text, detail text)
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_told constant text[] := holdfast.told_queues();
  freed  record;
begin
  -- Shared with raise_floors: no floor may pass the place a released job returns to.
  lock table holdfast.releases in row share mode;
  v_now := holdfast.clock();
  if cardinality(ids) > 1 then   -- all before one is changed: that holds its key, for which others wait
    perform holdfast.lock_loose(ids);
    v_now := holdfast.clock();
  end if;
  with released as (
    update holdfast.job j
    set token = null, lease_until = null, worker = null, held = null, progress = null, attempt = j.attempt - 1,
        run_at = v_now + coalesce(u.delay, '0'),
        pos = case when coalesce(u.delay, '0') = '0'
          then greatest(j.pos, holdfast.front(j.part, j.queue, j.priority)) end
    from (
      select distinct on (x.id, x.token) holdfast.part_of(x.id) as part, x.id, x.token, x.delay, x.nth
      from unnest(ids, tokens, delays) with ordinality x(id, token, delay, nth)
      order by x.id, x.token   -- as everybody who waits for jobs
    ) u
    where j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
    returning j.part, j.id, u.token, j.queue, j.kind, j.attempt, u.nth
  ), counted as (
    insert into holdfast.tally (part, queue, kind, leased, queued)
    select r.part, r.queue, r.kind, -count(*), count(*)
    from released r
    group by r.part, r.queue, r.kind
  )
  select array_agg(r.id order by r.nth) as ids, array_agg(r.token order by r.nth) as tokens,
         array_agg(distinct r.queue) as queues,
         array_agg(holdfast.happened('released', v_now, r.id, r.queue, r.kind, 'queued', r.attempt + 1,
             (select l.worker from holdfast.lease l where l.token = r.token and l.part = r.part limit 1)))
           filter (where r.queue = any(v_told) or '' = any(v_told)) as told
  into freed
  from released r;
  if freed.told is not null then
    perform holdfast.note_events(freed.told);
  end if;
  if freed.ids is not null then
    perform holdfast.delay_from_now(freed.ids, v_now);
    perform holdfast.mark_taken(freed.ids, freed.tokens, 'released');
    perform holdfast.wake(freed.queues, cardinality(freed.ids));
  end if;
  if freed.ids = ids then
    return query select i, 'queued', null::text from unnest(ids) i;
    return;
  end if;
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settle_rest('release', ids, tokens, freed.ids, freed.tokens, '{queued}', v_now,
      delays => release_each.delays) s;
end
$$;

create or replace function holdfast.cancel_each(ids uuid[], tokens uuid[], reasons text[])
returns table (id uuid, outcome text, detail text)
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_ids  uuid[] := '{}';
  v_toks uuid[] := '{}';
  v_links uuid[] := '{}';
  v_part smallint;
  these  record;
begin
  perform holdfast.lock_loose(ids), holdfast.lock_adopted(ids);
  if tokens[1] <> any(tokens) then
    perform holdfast.lock_ledger(tokens);
  end if;
  v_now := holdfast.clock();
  for v_part in select distinct holdfast.part_of(i) from unnest(ids) i order by 1 loop
    select array_agg(c.id) as ids, array_agg(c.token) as tokens,
           array_agg(c.link) filter (where c.link is not null) as links
    into these
    from holdfast.end_cancelled(v_part, ids, tokens, reasons, 'cancelled by its holder', v_now, null,
      alone => true) c;
    v_ids := v_ids || these.ids;
    v_toks := v_toks || these.tokens;
    v_links := v_links || these.links;
  end loop;
  perform holdfast.end_links(v_links, 'cancelled', v_now);
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settle_rest('cancel', ids, tokens, v_ids, v_toks, '{cancelled}', v_now, reason => reasons[1]) s;
end
$$;

-- front: the position before all waiting jobs of this queue and priority.
create or replace function holdfast.front(part smallint, queue text, priority smallint)
returns bigint
language sql stable
as $$
  select coalesce((
    select f.floors[10 - front.priority]
    from holdfast.floor f
    where f.part = front.part and f.queue = front.queue
    order by f.gen desc
    limit 1), 0)
$$;

-- fail: end the attempts of jobs as failed or expired: they get another attempt later, or are dead. A job whose token
-- differs is not changed. Results are parallel, in the order of the ids given; queues, kinds and workers only for
-- expired ones. alike: all fail in the same way, the first that is given. Locks the jobs in the order of their ids,
-- unless the caller has.
create or replace function holdfast.fail(
  part smallint, ids uuid[], tokens uuid[], error_kinds text[], messages text[], tracebacks text[],
  delays interval[], finals boolean[], how text, at timestamptz, logs text[], alike boolean,
  out failed_ids uuid[], out failed_tokens uuid[], out queues text[], out kinds text[], out workers text[],
  out outcomes text[])
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_slot constant smallint := holdfast.event_slot(at);
  same   record;    -- what all of them share …
  each   record;    -- … or one of each per job
  v_links uuid[];
  ended  record;
begin
  -- Looked up here and not beside the jobs: what is said of thousands is mostly said once.
  same := holdfast.said_once(error_kinds[1], messages[1], tracebacks[1], logs[1], delays[1], finals[1], alike);
  each := holdfast.holders_of(part, tokens);

  with failed as (
    update holdfast.job j
    -- One that dies stays as it is, which costs little, and goes below.
    set token       = case when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.token end,
        lease_until = case when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.lease_until end,
        worker      = case when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.worker end,
        held        = case when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.held end,
        error       = coalesce(u.error, same.error),
        -- The same backoff is in settle_template (adopted_code.sql): owners of tables may not call this schema.
        run_at      = case when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.run_at
          else fail.at + coalesce(u.delay, make_interval(
            secs => u.chance * least(u.backoff * power(2, least(j.attempt, 40) - 1), u.backoff_cap))) end,
        pos         = case
          when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.pos
          when coalesce(extract(epoch from u.delay), u.backoff) <= 0 then nextval('holdfast.pos')
        end,
        -- skip: the lane goes on, and the job comes back at its end. Otherwise it keeps its place.
        lane_seq    = case
          when j.lane is null then null
          when holdfast.was_last(j.attempt, j.max_attempts, u.final) then j.lane_seq
          when coalesce((
            select l.on_failure from holdfast.lane l where l.part = j.part and l.queue = j.queue and l.name = j.lane),
            u.lane_on_failure, each.lane_on_failure) <> 'skip' then j.lane_seq
          when coalesce(extract(epoch from u.delay), u.backoff) <= 0 then nextval('holdfast.pos')
        end
    from (
      select holdfast.part_of(x.id) as part, x.*, random() as chance,
             coalesce(x.own_delay, same.delay) as delay, coalesce(x.own_final, same.final, false) as final,
             coalesce(x.own_backoff, each.backoff) as backoff, coalesce(x.own_cap, each.backoff_cap) as backoff_cap,
             -- what all share is not carried along
             case when not alike then left(concat_ws(': ', x.error_kind, x.message), 2000) end as error
      from unnest(ids, tokens, error_kinds, messages, tracebacks, delays, finals, logs,
                  case when not alike then holdfast.fingerprints(error_kinds, messages) end, each.workers, each.starts,
                  each.backoffs, each.caps, each.lanes_on_failure, each.tolds, each.hosts, each.versions)
        with ordinality x(id, token, error_kind, message, traceback, own_delay, own_final, log, fingerprint, worker,
                          started_at, own_backoff, own_cap, lane_on_failure, told, host, version, nth)
      where holdfast.part_of(x.id) = fail.part
      order by x.id
    ) u
    where j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
    returning u.id, u.token, u.nth, u.error, u.fingerprint, u.error_kind, u.message, u.traceback, u.log, u.worker,
      u.started_at, u.told, u.host, u.version, j.queue, j.kind, j.attempt, j.lane, j.key, j.token is not null as dies,
      j.pos is not null as ready
  ), noted as (
    insert into holdfast.attempt (
      part, id, attempt, token, outcome, worker, started_at, ended_at, error_kind, message, traceback, fingerprint,
      log, host, version)
    select fail.part, f.id, f.attempt, f.token, fail.how, coalesce(f.worker, each.worker),
           coalesce(f.started_at, each.started_at), fail.at,
           coalesce(same.error_kind, left(f.error_kind, 200)), coalesce(same.message, left(f.message, 10000)),
           coalesce(same.traceback, left(f.traceback, 100000)), coalesce(same.fingerprint, f.fingerprint),
           coalesce(same.log, left(f.log, 20000)), coalesce(f.host, each.host), coalesce(f.version, each.version)
    from failed f
  ), counted as (
    insert into holdfast.tally (part, queue, kind, leased, dead, queued, failed)
    select fail.part, f.queue, f.kind, -count(*), count(*) filter (where f.dies), count(*) filter (where not f.dies),
           count(*)
    from failed f
    group by f.queue, f.kind
  ), told as (
    insert into holdfast.event (at, slot, part, job, event, state, queue, kind, attempt, worker, actor, reason, detail)
    select fail.at, v_slot, fail.part, f.id, case fail.how when 'expired' then 'reaped' else 'nacked' end,
           case when f.dies then 'dead' else 'queued' end, f.queue, f.kind, f.attempt, coalesce(f.worker, each.worker),
           case fail.how when 'expired' then 'upkeep' end, left(coalesce(f.error, same.error), 500),
           coalesce(same.detail, jsonb_build_object('group', f.fingerprint))
    from failed f
    where coalesce(f.told, each.told)
  )
  select array_agg(f.id order by f.nth) as ids, array_agg(f.token order by f.nth) as tokens,
         array_agg(case when f.dies then 'dead' else 'queued' end order by f.nth) as outcomes,
         array_agg(f.queue order by f.nth) filter (where fail.how = 'expired') as queues,
         array_agg(f.kind order by f.nth) filter (where fail.how = 'expired') as kinds,
         array_agg(coalesce(f.worker, each.worker) order by f.nth) filter (where fail.how = 'expired') as workers,
         array_agg(f.id) filter (where f.dies) as dead,
         array_agg(coalesce(f.fingerprint, same.fingerprint)) filter (where f.dies) as groups,
         jsonb_agg(holdfast.place_of(fail.part, f.queue, f.kind, case when f.dies then f.key end, f.lane))
           filter (where f.lane is not null or f.dies and f.key is not null) as places,
         array_agg(f.queue) filter (where not f.dies and f.ready) as ready
  into ended
  from failed f;
  if ended.ids is null then
    return;
  end if;
  if how = 'failed' then
    perform holdfast.delay_from_now(ended.ids, at);
  end if;
  if ended.dead is not null then
    v_links := holdfast.bury(part, ended.dead, ended.groups, at);
  end if;
  perform holdfast.mark_taken(ended.ids, ended.tokens, how);
  if ended.places is not null then
    perform holdfast.let_next_in(ended.places, at);
  end if;
  perform holdfast.wake(ended.ready, cardinality(ended.ready)) where ended.ready is not null;
  perform holdfast.end_links(v_links, 'dead', at) where v_links is not null;
  select ended.ids, ended.tokens, ended.queues, ended.kinds, ended.workers, ended.outcomes
  into failed_ids, failed_tokens, queues, kinds, workers, outcomes;
end
$$;

-- said_once: the stored error of a call, if all its jobs fail in the same way; otherwise nothing.
create or replace function holdfast.said_once(
  said_kind text, said text, said_traceback text, said_log text, said_delay interval, said_final boolean, alike boolean,
  out error_kind text, out message text, out traceback text, out log text, out error text, out fingerprint text,
  out detail jsonb, out delay interval, out final boolean)
language plpgsql immutable
as $$
begin
  if alike then
    error_kind := left(said_kind, 200);
    message := left(said, 10000);
    traceback := left(said_traceback, 100000);
    log := left(said_log, 20000);
    error := left(concat_ws(': ', said_kind, said), 2000);
    fingerprint := holdfast.fingerprint(said_kind, said);
    detail := jsonb_build_object('group', fingerprint);
    delay := said_delay;
    final := said_final;
  end if;
end
$$;

-- delay_from_now: delays count from when the jobs were locked, not from when the call began.
create or replace function holdfast.delay_from_now(ids uuid[], asked_at timestamptz)
returns void
language plpgsql
as $$
declare
  v_late constant interval := holdfast.clock() - asked_at;
begin
  if v_late >= '1 second' then
    update holdfast.job j set run_at = j.run_at + v_late
    from (select holdfast.part_of(x.id) as part, x.id from unnest(ids) x(id)) u
    where j.part = any(array[u.part]) and j.id = u.id and j.token is null and j.pos is null;
  end if;
end
$$;

-- was_last: whether a failed attempt was the job's last.
create or replace function holdfast.was_last(attempt smallint, max_attempts smallint, final boolean)
returns boolean
language sql immutable parallel safe
as $$ select attempt >= max_attempts or final $$;

-- holders_of: the workers of these tokens, when they claimed, and the failure settings of their queues: one if there
-- is one token, otherwise one per token, in order.
create or replace function holdfast.holders_of(
  part smallint, tokens uuid[], out worker text, out started_at timestamptz, out backoff double precision,
  out backoff_cap double precision, out lane_on_failure text, out told boolean, out host text, out version text,
  out workers text[], out starts timestamptz[], out backoffs double precision[], out caps double precision[],
  out lanes_on_failure text[], out tolds boolean[], out hosts text[], out versions text[])
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_nestloop = off set enable_hashjoin = on set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  if tokens[1] = all(tokens) then
    tokens := tokens[1:1];
  end if;
  with holders as materialized (
    select t.token, l.worker, l.claimed_at,
           extract(epoch from coalesce(q.backoff, (holdfast.unset_queue(null)).backoff))::double precision as backoff,
           extract(epoch from coalesce(q.backoff_cap,
           (holdfast.unset_queue(null)).backoff_cap))::double precision as backoff_cap,
           coalesce(q.lane_on_failure, (holdfast.unset_queue(null)).lane_on_failure) as lane_on_failure,
           coalesce(q.activity, (holdfast.unset_queue(null)).activity) <> 'off' as told, w.host, w.version
    from (select distinct x.token from unnest(tokens) x(token)) t
    left join lateral (
      select x.worker, x.queue, x.claimed_at
      from holdfast.lease x
      where x.token = t.token and x.part = holders_of.part
      order by x.claimed_at desc
      limit 1) l on true
    left join lateral (select x.* from holdfast.queue x where x.name = l.queue limit 1) q on true
    left join lateral (select x.host, x.version from holdfast.worker x where x.name = l.worker limit 1) w on true
  )
  select array_agg(h.worker order by x.nth), array_agg(h.claimed_at order by x.nth),
         array_agg(h.backoff order by x.nth), array_agg(h.backoff_cap order by x.nth),
         array_agg(h.lane_on_failure order by x.nth), array_agg(h.told order by x.nth),
         array_agg(h.host order by x.nth), array_agg(h.version order by x.nth)
  into workers, starts, backoffs, caps, lanes_on_failure, tolds, hosts, versions
  from unnest(tokens) with ordinality x(token, nth)
  join holders h on h.token = x.token;
  if cardinality(tokens) = 1 then
    select workers[1], starts[1], backoffs[1], caps[1], lanes_on_failure[1], tolds[1], hosts[1], versions[1],
           null, null, null, null, null, null, null, null
    into worker, started_at, backoff, backoff_cap, lane_on_failure, told, host, version,
         workers, starts, backoffs, caps, lanes_on_failure, tolds, hosts, versions;
  end if;
end
$$;

-- bury: jobs whose last attempt has failed are dead. The caller holds them; groups are those of their errors. Returns
-- the links of those that have one, or null.
create or replace function holdfast.bury(part smallint, ids uuid[], groups text[], at timestamptz)
returns uuid[]
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_stepped uuid[];
  v_links   uuid[];
begin
  with removed as (
    delete from holdfast.job j
    using (
      select holdfast.part_of(x.id) as part, x.id, x.fingerprint from unnest(ids, groups) x(id, fingerprint)
    ) u
    where j.part = any(array[u.part]) and j.id = u.id
    returning j as job, j.id, j.queue, j.kind, j.lane, u.fingerprint
  ), buried as (
    insert into holdfast.dead
    select e.*
    from removed r
    cross join lateral holdfast.ended_of(r.job, 'dead', bury.at, (r.job).reason, r.fingerprint) e
  ), grouped as (
    insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
    select bury.part, r.fingerprint, r.kind, r.queue, count(*)
    from removed r
    group by r.fingerprint, r.kind, r.queue
  ), halted as (
    update holdfast.lane l
    set halted_by = r.id
    from removed r
    left join lateral (select x.lane_on_failure from holdfast.queue x where x.name = r.queue limit 1) q on true
    where r.lane is not null and l.part = bury.part and l.queue = r.queue and l.name = r.lane
      and coalesce(l.on_failure, q.lane_on_failure, (holdfast.unset_queue(null)).lane_on_failure) = 'halt'
  )
  select array_agg(r.id) filter (where (r.job).steps is not null),
         array_agg((r.job).link) filter (where (r.job).link is not null)
  into v_stepped, v_links
  from removed r;
  perform holdfast.tell_awaited(ids);
  if v_stepped is not null then
    perform holdfast.forget_steps(v_stepped);
  end if;
  return v_links;
end
$$;

-- fingerprints: the group of each error. In a call that fails many jobs, most errors are the same: each is computed
-- once.
create or replace function holdfast.fingerprints(error_kinds text[], messages text[])
returns text[]
language plpgsql immutable
as $$
begin
  if not exists (
    select from unnest(error_kinds, messages) e(kind, message)
    where (e.kind, e.message) is distinct from (error_kinds[1], messages[1])) then
    return array_fill(holdfast.fingerprint(error_kinds[1], messages[1]),
      array[greatest(cardinality(error_kinds), cardinality(messages))]);
  end if;
  return array(
    select holdfast.fingerprint(e.kind, e.message)
    from unnest(error_kinds, messages) with ordinality e(kind, message, nth)
    order by e.nth);
end
$$;

-- lock_ledger: lock the receipts of these claims, always in the order of their tokens. A caller that marks them in
-- several steps locks all of them first, after the jobs.
create or replace function holdfast.lock_ledger(tokens uuid[])
returns void
language plpgsql
as $$
begin
  perform from holdfast.lease l where l.token = any(tokens) order by l.token, l.claimed_at for update;
end
$$;

-- mark_taken: record in the claims' receipts how jobs left them, other than by an ack.
create or replace function holdfast.mark_taken(ids uuid[], tokens uuid[], how text)
returns void
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  perform holdfast.lock_ledger(tokens);
  -- A claim all of whose jobs leave at once and alike says so in a word.
  if tokens[1] = all(tokens) then
    update holdfast.lease l
    set taken = jsonb_build_object('*', mark_taken.how)
    where l.token = tokens[1] and l.taken is null and cardinality(l.ids) = cardinality(mark_taken.ids)
      and cardinality(l.ids) = (select count(distinct i) from unnest(mark_taken.ids) i)
      and not exists (select from holdfast.lease o where o.token = l.token and o.ctid <> l.ctid);
    if found then
      return;
    end if;
  end if;
  perform holdfast.mark_each(ids, tokens, how);
end
$$;

-- mark_each: the same for jobs of several claims, or some jobs of one. The caller has locked the receipts.
create or replace function holdfast.mark_each(ids uuid[], tokens uuid[], how text)
returns void
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_nestloop = on set enable_hashjoin = on set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  with whole as (
    update holdfast.lease l
    set taken = jsonb_build_object('*', mark_each.how)
    from (
      select x.token, count(*) as jobs, count(distinct x.id) as ids
      from unnest(mark_each.ids, tokens) x(id, token)
      group by x.token
    ) t
    where l.token = t.token and l.taken is null and cardinality(l.ids) = t.jobs and t.ids = t.jobs
      and not exists (select from holdfast.lease o where o.token = l.token and o.ctid <> l.ctid)
    returning l.token
  )
  select array_agg(u.id), array_agg(u.token) into ids, tokens
  from unnest(mark_each.ids, tokens) u(id, token)
  where u.token not in (select w.token from whole w);
  if ids is null then
    return;
  end if;
  update holdfast.lease l
  set taken = coalesce(l.taken, '{}') || t.taken
  from (
    -- of a token that was used twice, the claim that gave the job
    select g.place, jsonb_object_agg(u.id, mark_each.how) as taken
    from unnest(ids, tokens) u(id, token)
    join (
      select x.ctid as place, x.token, unnest(x.ids) as id
      from (select distinct y.token from unnest(tokens) y(token)) o
      cross join lateral (select z.ctid, z.token, z.ids from holdfast.lease z where z.token = o.token) x
    ) g on g.id = u.id and g.token = u.token
    group by g.place
  ) t
  where l.ctid = t.place;
end
$$;

-- how_taken: how a job left a claim, according to its receipt; null: by an ack, or it is still held.
create or replace function holdfast.how_taken(taken jsonb, id uuid)
returns text
language sql immutable parallel safe
as $$ select coalesce(taken ->> id::text, taken ->> '*') $$;

-- lost: the outcome for jobs that their tokens do not hold: already settled by them, lost, or unknown. All jobs of a
-- call at once: a receipt with thousands of jobs is read once, not once per job.
create or replace function holdfast.lost(verb text, ids uuid[], tokens uuid[])
returns table (id uuid, token uuid, outcome text, detail text)
language sql stable
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_nestloop = on set enable_hashjoin = on set enable_mergejoin = off
rows 100
as $$
  with asked as materialized (
    select distinct u.id, u.token, holdfast.part_of(u.id) as part from unnest(ids, tokens) u(id, token)
  ), receipts as materialized (
    select row_number() over (order by l.claimed_at, l.ctid) as nth, l.token, l.ids, l.taken
    from (select distinct a.token from asked a) t
    join holdfast.lease l on l.token = t.token
  ), given as materialized (
    -- a token that was used twice: what its newer claim says of the job
    select g.id, g.token, max(g.nth) as nth
    from (select r.token, r.nth, unnest(r.ids) as id from receipts r) g
    group by g.id, g.token
  ), ends as materialized (
    select r.nth, e.key::uuid as id, e.value as how
    from receipts r
    cross join lateral jsonb_each_text(r.taken - '*') e
  ), judged as materialized (
    select a.id, a.token, a.part, g.id is not null as mine,
           -- of an adopted table, an ack is noted as well
           coalesce(e.how, r.taken ->> '*', case when g.id is not null and a.part >= 64
             then 'ended by other code' end) as how
    from asked a
    left join given g on g.id = a.id and g.token = a.token
    left join ends e on e.id = g.id and e.nth = g.nth
    left join receipts r on r.nth = g.nth
  ), answered as materialized (
    select j.*, j.mine and (lost.verb, coalesce(j.how, 'acked')) in (
        ('ack', 'acked'), ('nack', 'failed'), ('release', 'released'), ('cancel', 'cancelled by its holder'),
        ('suspend', 'suspended'), ('reconcile', 'reconciled')) as already,
      -- It may have been moved since, which is on record. In a fanned-out queue every part is asked for it: of a
      -- few, for what it is worth.
      case when j.part < 64 and (
             exists (select from holdfast.alias x where x.part = j.part and x.id = j.id)
             or j.mine and j.how is not null
                and row_number() over (partition by j.mine and j.how is not null and j.part < 64) <= 50)
        then coalesce(holdfast.locate(j.id), j.id) else j.id end as stored
    from judged j
  ), tables as materialized (
    -- asked once for all rows of a table
    select a.part, holdfast.adopted_problem(a) as problem
    from holdfast.adopted a
    where a.live and a.part in (select x.part from answered x where x.part >= 64 and not x.already)
  ), rows as materialized (
    select r.id, r.state, r.worker, r.lease_until, r.attempt
    from (
      select x.part, array_agg(distinct x.id) as ids
      from answered x
      where x.part >= 64 and not x.already
      group by x.part
    ) p
    join tables t on t.part = p.part
    cross join lateral holdfast.adopted_jobs(p.part, p.ids) r
  ), now_are as materialized (
    select a.id, a.token, n.*, null::text as unwritten
    from answered a
    cross join lateral (
      (select case when x.token is null then 'queued' else 'leased' end as state, x.worker, x.lease_until, x.attempt
       from holdfast.job x
       where x.part = holdfast.part_of(a.stored) and x.id = a.stored)
      union all
      (select x.state, x.worker, null, x.attempt
       from holdfast.ended x
       where x.part = holdfast.part_of(a.stored) and x.id = a.stored
       limit 1)
      limit 1
    ) n
    where a.part < 64 and not a.already
    union all
    select a.id, a.token, r.state, r.worker, r.lease_until, r.attempt, coalesce(t.problem, holdfast.fault_told(f))
    from answered a
    join tables t on t.part = a.part
    left join rows r on r.id = a.id
    left join holdfast.adopted_fault f on f.part = a.part and f.id = a.id
    where a.part >= 64 and not a.already
  )
  select a.id, a.token,
    case when a.already then 'already' when n.state is not null or n.unwritten is not null or a.mine then 'lost'
      else 'unknown' end,
    case
      when a.already then null
      when n.unwritten is not null then n.unwritten
      when n.state = 'leased' and a.how = 'handed over' then
        format('job %s was handed over to %s, which has until %s to answer', a.id, n.worker, n.lease_until)
      when n.state = 'leased' then format('job %s is leased by %s until %s (attempt %s)', a.id, n.worker, n.lease_until,
        n.attempt)
      when n.state is not null then format('job %s is %s', a.id, n.state)
        || coalesce('; its lease ended as ' || a.how, '')
      when a.mine then format('job %s is gone; its lease ended as %s', a.id, coalesce(a.how, 'acked'))
      else format('no job has the id %s', a.id)
    end
  from answered a
  left join now_are n on n.id = a.id and n.token = a.token
$$;

-- settle_rest: the results of a call that could not settle everything directly: rows of adopted tables are settled by
-- their own functions, and lost jobs get an explanation. Parallel arrays; one outcome may apply to all.
create or replace function holdfast.settle_rest(
  verb text, ids uuid[], tokens uuid[], done_ids uuid[], done_tokens uuid[], outcomes text[], at timestamptz,
  error_kinds text[] default null, messages text[] default null, tracebacks text[] default null,
  delays interval[] default null, finals boolean[] default null, reason text default null)
returns table (id uuid, outcome text, detail text)
language plpgsql
as $$
#variable_conflict use_column
begin
  if cardinality(outcomes) = 1 then
    outcomes := array_fill(outcomes[1], array[coalesce(cardinality(done_ids), 0)]);
  end if;
  if coalesce(cardinality(done_ids), 0) < cardinality(ids) then
    perform holdfast.let_go(ids, tokens, at);
    select done_ids || array_agg(a.id), done_tokens || array_agg(a.token), outcomes || array_agg(a.outcome)
    into done_ids, done_tokens, outcomes
    from holdfast.settle_adopted(ids, tokens, verb, at, error_kinds, messages, tracebacks, delays, finals, reason) a;
  end if;
  if done_ids = ids then
    return query select u.id, u.outcome, null::text from unnest(done_ids, outcomes) u(id, outcome);
    return;
  end if;
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settled(verb, ids, tokens, done_ids, done_tokens, outcomes) s;
end
$$;

-- settled: one result for each id of a call, in order: the outcome of those it settled, and an explanation for the
-- others. Matched by hashing: a call may settle thousands and lose some. One outcome may apply to all.
create or replace function holdfast.settled(
  verb text, ids uuid[], tokens uuid[], done_ids uuid[], done_tokens uuid[], outcomes text[])
returns table (id uuid, outcome text, detail text, nth bigint)
language plpgsql stable
set plan_cache_mode = force_custom_plan set jit = off
set enable_nestloop = off set enable_hashjoin = on set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  missing record;
begin
  if cardinality(outcomes) = 1 then
    outcomes := array_fill(outcomes[1], array[coalesce(cardinality(done_ids), 0)]);
  end if;
  select array_agg(u.id) as ids, array_agg(u.token) as tokens into missing
  from unnest(ids, tokens) u(id, token)
  left join unnest(done_ids, done_tokens) d(id, token) on d.id = u.id and d.token = u.token
  where d.id is null;
  if missing.ids is null then
    return query
      select u.id, d.outcome, null::text, u.nth
      from unnest(ids, tokens) with ordinality u(id, token, nth)
      join (
        select distinct on (x.id, x.token) x.* from unnest(done_ids, done_tokens, outcomes) x(id, token, outcome)) d
        on d.id = u.id and d.token = u.token
      order by u.nth;
    return;
  end if;
  return query
    select u.id, a.outcome, a.detail, u.nth
    from unnest(ids, tokens) with ordinality u(id, token, nth)
    left join (
      select d.id, d.token, d.outcome, null::text as detail
      from (
        select distinct on (x.id, x.token) x.* from unnest(done_ids, done_tokens, outcomes) x(id, token, outcome)) d
      union all
      -- gone by this very call, under another token
      select l.id, l.token, case when o.id is not null then 'lost' else l.outcome end, l.detail
      from holdfast.lost(verb, missing.ids, missing.tokens) l
      left join (select distinct x.id from unnest(done_ids) x(id)) o on o.id = l.id and l.outcome = 'unknown'
    ) a on a.id = u.id and a.token = u.token
    order by u.nth;
end
$$;
