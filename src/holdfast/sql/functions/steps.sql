-- Steps: what a job has done so far, stored under the token of its lease, so that the next run gets it back.

-- step: store the results of steps, of one job or of many. A step is stored if and only if the token holds its job, in
-- the statement that checks it.
-- items: [{"id", "token", "name", "result", "nth", "seconds"}]
-- nth says which of its handler's steps it was, from 1, and 0 if it has no place in their order. Outcomes: stored;
-- already: one of this name was stored before; lost.
create or replace function holdfast.step(items jsonb)
returns table (ord integer, id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.clock();
  kept  record;
begin
  perform holdfast.check_steps(items);
  with asked as materialized (
    select x.ord, i.*, greatest(octet_length(i.result::text), 1023) / 1024 + 1 as size
    from jsonb_array_elements(items) with ordinality x(item, ord)
    cross join lateral jsonb_to_record(x.item) i(
      id uuid, token uuid, name text, result jsonb, nth integer, seconds double precision)
  ), held as (
    update holdfast.job j
    set steps = coalesce(j.steps, 0) + u.size
    from (
      select holdfast.part_of(a.id) as part, a.id, a.token, sum(a.size)::integer as size
      from asked a
      group by a.id, a.token
      order by a.id   -- as everybody who waits for jobs
    ) u
    where j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
      and coalesce(j.steps, 0) + u.size <= holdfast.most_steps()
    returning j.part, j.id, u.token, j.attempt
  ), stored as (
    insert into holdfast.step (part, id, name, kind, nth, attempt, began_at, ended_at, result)
    select h.part, h.id, a.name, 'step', coalesce(a.nth, 0), h.attempt,
           v_now - make_interval(secs => coalesce(a.seconds, 0)), v_now, a.result
    from asked a
    join held h on h.id = a.id and h.token = a.token
    on conflict (part, id, name) do nothing
    returning id, name
  )
  select count(*) as steps, count(h.id) as held, array_agg(a.id order by a.ord) as ids,
         array_agg(a.token order by a.ord) as tokens,
         array_agg(case when s.id is not null then 'stored' when h.id is not null then 'already' end
           order by a.ord) as outcomes,
         array_agg(a.id) filter (where h.id is null) as lost_ids,
         array_agg(a.token) filter (where h.id is null) as lost_tokens
  into kept
  from asked a
  left join held h on h.id = a.id and h.token = a.token
  left join stored s on s.id = a.id and s.name = a.name;
  if kept.held = kept.steps then
    return query
      select u.ord::integer, u.id, u.outcome, null::text
      from unnest(kept.ids, kept.outcomes) with ordinality u(id, outcome, ord);
    return;
  end if;
  perform holdfast.refuse_many_steps(kept.lost_ids, kept.lost_tokens);
  return query
    select u.ord::integer, u.id, coalesce(u.outcome, l.outcome), l.detail
    from unnest(kept.ids, kept.tokens, kept.outcomes) with ordinality u(id, token, outcome, ord)
    left join holdfast.lost('step', kept.lost_ids, kept.lost_tokens) l
      on l.id = u.id and l.token = u.token and u.outcome is null
    order by u.ord;
end
$$;

-- most_steps: what the steps of one job may store together, in kB. Each counts as 1 at least.
create or replace function holdfast.most_steps()
returns integer
language sql immutable parallel safe
as $$ select 65536 $$;

-- check_steps: refuse items that are not steps, and results that are too long for the queues of their jobs.
create or replace function holdfast.check_steps(items jsonb)
returns void
language plpgsql
as $$
declare
  bad record;
begin
  if items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects');
  end if;
  select i.item, i.ord into bad
  from jsonb_array_elements(items) with ordinality i(item, ord)
  where jsonb_typeof(i.item) <> 'object'
     or i.item - '{id,token,name,result,nth,seconds}'::text[] <> '{}'
     or not coalesce(holdfast.is_id(i.item ->> 'id') and holdfast.is_id(i.item ->> 'token'), false)
     or not coalesce(jsonb_typeof(i.item -> 'name') = 'string' and holdfast.is_name(i.item ->> 'name'), false)
     or not holdfast.is_place(i.item -> 'nth')
     or case jsonb_typeof(i.item -> 'seconds') when 'number'
          then not (i.item ->> 'seconds')::numeric between 0 and 3153600000
          else coalesce(i.item -> 'seconds', 'null') <> 'null' end
  limit 1;
  if found then
    if jsonb_typeof(bad.item) = 'object' and bad.item ->> 'token' is null then
      perform holdfast.refuse('HF207', format('item %s has no token', bad.ord), null,
        'The token of the claim proves the lease.');
    end if;
    perform holdfast.named(format('name of item %s', bad.ord), bad.item ->> 'name')
    where jsonb_typeof(bad.item) = 'object' and bad.item ->> 'name' is not null;
    perform holdfast.refuse('HF201', format('item %s is not a step: %s', bad.ord, holdfast.told(bad.item, 200)), null,
      'A step has id, token and name; and may have result, nth and seconds.');
  end if;
  perform holdfast.refuse_adopted_steps((i.item ->> 'id')::uuid)
  from jsonb_array_elements(items) i(item)
  where holdfast.part_of((i.item ->> 'id')::uuid) >= 64;
  perform holdfast.check_value(format('result of step %s', i.item ->> 'name'), i.item -> 'result', coalesce((
    select q.payload_limit
    from holdfast.job j
    join holdfast.queue q on q.name = j.queue
    where j.part = holdfast.part_of((i.item ->> 'id')::uuid) and j.id = (i.item ->> 'id')::uuid),
    (holdfast.unset_queue(null)).payload_limit))
  from jsonb_array_elements(items) i(item)
  where pg_column_size(i.item) > 300;
end
$$;

-- is_place: whether this can be the place of a step among those of its handler.
create or replace function holdfast.is_place(nth jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select case jsonb_typeof(nth)
    when 'number' then (nth #>> '{}')::numeric between 0 and 1000000000 and nth #>> '{}' ~ '^\d+$'
    else coalesce(nth, 'null') = 'null' end
$$;

-- refuse_adopted_steps: rows of adopted tables have no steps: their table is not Holdfast's to write more into.
create or replace function holdfast.refuse_adopted_steps(id uuid)
returns void
language plpgsql
as $$
begin
  perform holdfast.refuse('HF212', format('job %s is a row of an adopted table, which has no steps', id), null,
    'Enqueue a job of your own for it, and take the steps there.');
end
$$;

-- refuse_many_steps: refuse steps of a job that its token holds, whose steps have stored too much.
create or replace function holdfast.refuse_many_steps(ids uuid[], tokens uuid[])
returns void
language plpgsql
as $$
declare
  full_one record;
begin
  select j.id, j.steps into full_one
  from unnest(ids, tokens) u(id, token)
  join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.token = u.token
  limit 1;
  if found then
    perform holdfast.refuse('HF210', format('the steps of job %s have stored %s kB, the limit is %s kB', full_one.id,
      full_one.steps, holdfast.most_steps()), null,
      'Store large results elsewhere and return their addresses; enqueue another job for the rest of a long list.');
  end if;
end
$$;

-- steps: the steps of a job in the order in which they began: what is done, until when it sleeps, and what it waits
-- for. nth is its place among those that the handler itself called; 0 if something beside it did.
create or replace function holdfast.steps(id uuid)
returns table (
  name text, kind text, nth integer, attempt smallint, began_at timestamptz,
  ended_at timestamptz, until timestamptz, event text, key text, timed_out boolean, result jsonb, schema jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_id    uuid := id;
  v_ended jsonb;
begin
  if not exists (select from holdfast.job j where j.part = holdfast.part_of(v_id) and j.id = v_id) then
    v_id := coalesce(holdfast.locate(id), id);
  end if;
  return query
    select s.name, s.kind, s.nth, s.attempt, s.began_at, s.ended_at, s.until, s.event, s.key,
           s.timed_out, s.result, s.schema
    from holdfast.step s
    where s.part = holdfast.part_of(v_id) and s.id = v_id
    order by s.began_at, s.nth, s.name;
  if found then
    return;
  end if;
  select e.steps into v_ended
  from holdfast.ended e
  where e.part = holdfast.part_of(v_id) and e.id = v_id
  order by e.state = 'dead' desc, e.ended_at desc
  limit 1;
  return query
    select s.name, s.kind, s.nth, s.attempt, s.began_at, s.ended_at, s.until, s.event, s.key,
           s.timed_out, s.result, s.schema
    from jsonb_populate_recordset(null::holdfast.step, v_ended) s
    order by s.began_at, s.nth, s.name;
end
$$;

-- keep_steps: the steps that a job had when it ended, for its row, put into the table again: it goes on where it was.
create or replace function holdfast.keep_steps(part smallint, id uuid, steps jsonb)
returns void
language sql
as $$
  insert into holdfast.step
  select r.*
  from jsonb_populate_recordset(null::holdfast.step, steps) s
  cross join lateral jsonb_populate_record(s, jsonb_build_object('part', keep_steps.part, 'id', keep_steps.id)) r
  on conflict do nothing
$$;

-- forget_steps: delete the steps of jobs that are gone.
create or replace function holdfast.forget_steps(ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
begin
  delete from holdfast.step s
  using (select holdfast.part_of(x.id) as part, x.id from unnest(ids) x(id)) u
  where s.part = any(array[u.part]) and s.id = u.id;
end
$$;

-- suspend_each: give back leases of jobs that sleep or wait for an event. The attempt does not count. What they wait
-- for is stored in the same statement; an event that is there already makes the job ready at once.
-- items: as of settle, with the verb suspend.
create or replace function holdfast.suspend_each(items jsonb)
returns table (id uuid, outcome text, detail text)
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_told constant text[] := holdfast.told_queues();
  v_now  timestamptz;
  asked  record;
  parked record;
  waits  record;
begin
  select array_agg((i.item ->> 'id')::uuid order by i.ord) as ids,
         array_agg((i.item ->> 'token')::uuid order by i.ord) as tokens
  into asked
  from jsonb_array_elements(items) with ordinality i(item, ord);
  perform holdfast.refuse_adopted_steps(x.id) from unnest(asked.ids) x(id) where holdfast.part_of(x.id) >= 64;
  perform holdfast.lock_loose(asked.ids);
  perform holdfast.refuse_other_wait(items);
  v_now := holdfast.clock();   -- behind what may wait: a sleep is counted from now
  with wanted as materialized (
    select distinct on (w.id, w.token) w.*, holdfast.part_of(w.id) as part, x.nth as place,
           case when s.kind = 'event' and s.ended_at is not null then v_now   -- what it waits for has come
             else coalesce(s.until, w.until, v_now + make_interval(secs => w.delay), v_now + interval '100 years')
           end as ends
    from jsonb_array_elements(items) with ordinality x(item, nth)
    cross join lateral jsonb_to_record(x.item) w(
      id uuid, token uuid, name text, nth integer, until timestamptz, delay double precision, event text, key text,
      schema jsonb)
    -- one that was woken before its time goes on waiting as long as it wanted
    left join holdfast.step s on s.part = any(array[holdfast.part_of(w.id)]) and s.id = w.id and s.name = w.name
    order by w.id, w.token, x.nth
  ), released as (
    update holdfast.job j
    set token = null, lease_until = null, worker = null, held = null, progress = null, attempt = j.attempt - 1,
        run_at = w.ends, pos = case when w.ends <= v_now then nextval('holdfast.pos') end,
        steps = coalesce(j.steps, 0) + 1, expires_at = null   -- it has started
    from wanted w
    where j.part = any(array[w.part]) and j.id = w.id and j.token = w.token
    returning j.part, j.id, w.token, j.queue, j.kind, j.attempt, w.place, w.name, w.nth, w.ends, w.event, w.key,
              w.schema
  ), stored as (
    insert into holdfast.step (
      part, id, name, kind, nth, attempt, began_at, ended_at, until, event, key, schema)
    select r.part, r.id, r.name, case when r.event is null then 'sleep' else 'event' end, coalesce(r.nth, 0),
           r.attempt + 1, v_now, case when r.event is null then r.ends end, r.ends, r.event,
           case when r.event is not null then coalesce(r.key, '') end, r.schema
    from released r
    on conflict (part, id, name) do nothing
  ), counted as (
    insert into holdfast.tally (part, queue, kind, leased, queued)
    select r.part, r.queue, r.kind, -count(*), count(*)
    from released r
    group by r.part, r.queue, r.kind
  )
  select array_agg(r.id order by r.place) as ids, array_agg(r.token order by r.place) as tokens,
         array_agg(distinct r.queue) filter (where r.ends <= v_now) as ready,
         array_agg(r.event) filter (where r.event is not null) as events,
         array_agg(coalesce(r.key, '')) filter (where r.event is not null) as keys,
         array_agg(holdfast.happened('suspended', v_now, r.id, r.queue, r.kind, 'queued', r.attempt + 1,
             (select l.worker from holdfast.lease l where l.token = r.token and l.part = r.part limit 1)))
           filter (where r.queue = any(v_told) or '' = any(v_told)) as told
  into parked
  from released r;
  if parked.told is not null then
    perform holdfast.note_events(parked.told);
  end if;
  if parked.ids is not null then
    perform holdfast.mark_taken(parked.ids, parked.tokens, 'suspended');
    perform holdfast.wake(parked.ready, cardinality(parked.ids));
  end if;
  if parked.events is not null then
    perform holdfast.lock_events(parked.events, parked.keys);
    perform holdfast.hand_out(e.event, e.key, v_now)
    from (select distinct u.event, u.key from unnest(parked.events, parked.keys) u(event, key)) e;
  end if;
  if parked.ids = asked.ids then
    return query select i, 'queued', null::text from unnest(asked.ids) i;
    return;
  end if;
  return query
    select s.id, s.outcome, s.detail
    from holdfast.settled('suspend', asked.ids, asked.tokens, parked.ids, parked.tokens, '{queued}') s
    order by s.nth;
end
$$;

-- refuse_other_wait: refuse to suspend a job under the name of a step that is something else: what it asks for now
-- would not be stored, and nothing would wake it.
create or replace function holdfast.refuse_other_wait(items jsonb)
returns void
language plpgsql
as $$
declare
  other record;
begin
  select s.id, s.name, s.kind, s.event, s.key into other
  from jsonb_array_elements(items) x(item)
  cross join lateral jsonb_to_record(x.item) w(id uuid, token uuid, name text, event text, key text)
  join holdfast.job j on j.part = any(array[holdfast.part_of(w.id)]) and j.id = w.id and j.token = w.token
  join holdfast.step s on s.part = any(array[j.part]) and s.id = j.id and s.name = w.name
  where s.kind <> case when w.event is null then 'sleep' else 'event' end
     or w.event is not null and (s.event, s.key) is distinct from (w.event, coalesce(w.key, ''))
  limit 1;
  if found then
    perform holdfast.refuse('HF213', format('step %L of job %s is %s', other.name, other.id, case other.kind
        when 'sleep' then 'a sleep'
        when 'event' then format('a wait for the event %s', other.event)
          || case when other.key <> '' then format(' (key %s)', other.key) else '' end
        else 'a result' end), null, 'Give what it waits for now a name of its own.');
  end if;
end
$$;

-- suspend_ok: whether an item of settle says what its job waits for.
create or replace function holdfast.suspend_ok(item jsonb)
returns boolean
language sql stable
as $$
  select coalesce(
    jsonb_typeof(item -> 'name') = 'string' and holdfast.is_name(item ->> 'name')
    and holdfast.is_place(item -> 'nth')
    and (item ->> 'until' is null or item ->> 'delay' is null)
    and (item ->> 'until' is null or holdfast.is_time(item ->> 'until'))
    and case when item ->> 'event' is null
      then item ->> 'key' is null and item -> 'schema' is null and num_nonnulls(item ->> 'until', item ->> 'delay') = 1
      else jsonb_typeof(item -> 'event') = 'string' and holdfast.is_name(item ->> 'event')
        and holdfast.is_key(item -> 'key')
        and coalesce(jsonb_typeof(item -> 'schema') = 'object' and pg_column_size(item -> 'schema') <= 20000, true)
      end, false)
$$;

-- explain_wait: that it sleeps, or waits for an event.
create or replace function holdfast.explain_wait(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  s holdfast.step;
begin
  if j.steps is null or j.pos is not null or j.run_at <= at then
    return null;
  end if;
  select x.* into s
  from holdfast.step x
  where x.part = j.part and x.id = j.id and x.until = j.run_at and x.kind <> 'step'
    and (x.ended_at is null or x.ended_at > at)
  order by x.nth desc
  limit 1;
  return case s.kind
    when 'sleep' then format('Sleeps until %s (%s), for another %s.', holdfast.moment(s.until), s.name,
      holdfast.span_text(s.until - at))
    when 'event' then format('Waits for the event %s%s%s.', s.event,
      case when s.key <> '' then format(' (key %s)', s.key) else '' end,
      case when s.until < s.began_at + interval '99 years' then ', until ' || holdfast.moment(s.until) else '' end)
  end;
end
$$;
