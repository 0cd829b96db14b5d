-- Operations: one verb for all jobs that match a filter. A preview counts them and fixes the time at which they
-- match. Once started, any process does the next chunk, each chunk and its progress in one transaction. No process
-- has to run all the time, and nothing is done twice.

-- operation_preview: count the jobs that a verb (retry, cancel, archive, delete, move) would change, for some seconds
-- at most, and store the preview. arguments: delay in seconds and fresh for retry, queue for move. most: only this
-- many of the newest. as_token: the token to use; the parts of one operation on the nodes of a cluster have the same.
create or replace function holdfast.operation_preview(
  verb text, filter text, arguments jsonb default '{}', most bigint default null, reason text default null,
  actor text default null, as_token uuid default null)
returns table (id bigint, token uuid, selects text, as_of timestamptz, total bigint, capped boolean, sample uuid[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  c_cap    constant bigint := 1000000;
  v_filter text := trim(coalesce(filter, ''));
  v_there  text;
  v_total  bigint;
  v_capped boolean;
  v_sample uuid[];
begin
  if not coalesce(verb in ('retry', 'cancel', 'archive', 'delete', 'move'), false) then
    perform holdfast.refuse('HF225', format('verb %L is not an operation', verb), null,
      'Verbs are: retry, cancel, archive, delete, move.');
  end if;
  if v_filter = '' then
    perform holdfast.refuse('HF220', 'an empty filter means every job', null, 'To select every job, write age:>0s');
  end if;
  if jsonb_typeof(arguments) is distinct from 'object' or arguments - '{delay,queue,fresh}'::text[] <> '{}'
     or (arguments ? 'queue') <> (verb = 'move') or arguments ?| '{delay,fresh}' and verb <> 'retry'
     or not coalesce(jsonb_typeof(arguments -> 'fresh') = 'boolean', true)
     or not holdfast.item_details_ok(jsonb_build_object('delay', arguments -> 'delay')) then
    perform holdfast.refuse('HF225', format('arguments %s are not valid for %s', left(arguments::text, 200), verb),
      null, 'retry takes delay in seconds and fresh, move takes queue, the others take none.');
  end if;
  if verb = 'move' then
    perform holdfast.named('queue', arguments ->> 'queue', 120);
    perform holdfast.refuse_ours(arguments ->> 'queue');
  end if;
  if most < 1 then
    perform holdfast.refuse('HF225', format('most must be at least 1 (got %s)', most), null, 'Leave it out for all.');
  end if;
  perform holdfast.filter_sql(v_filter);
  if v_filter !~ '(^|\s)-?state:' then
    v_filter := v_filter || ' state:' || case verb
      when 'retry' then 'dead,cancelled' when 'cancel' then 'queued,leased' when 'archive' then 'dead,cancelled,done'
      when 'move' then 'queued,dead' else 'queued,done,dead,cancelled,archived' end;
  end if;
  -- where the verb will look, and no longer than somebody waits for it
  v_there := holdfast.operation_filter(verb, v_filter);
  select c.jobs, c.capped and c.jobs < coalesce(most, c.jobs + 1) into v_total, v_capped
  from holdfast.count_jobs(v_there, least(most, c_cap)::integer, '2 seconds') c;
  v_sample := array(
    select (s.job).id from holdfast.search(v_there, least(10, most)::integer, null, '1 second') s
    where (s.job).id is not null);
  return query
    insert into holdfast.operation as o (
      token, verb, filter, arguments, most, as_of, total, capped, reason, actor, created_at)
    values (coalesce(as_token, gen_random_uuid()), operation_preview.verb, v_filter,
      operation_preview.arguments, operation_preview.most, holdfast.now(), v_total, v_capped, operation_preview.reason,
      operation_preview.actor, holdfast.now())
    returning o.id, o.token, o.filter, o.as_of, o.total, o.capped, v_sample;
end
$$;

-- operation_start: start an operation that was previewed within the last ten minutes, at most rate jobs per second. A
-- repeat changes nothing. No row if there is no such preview.
create or replace function holdfast.operation_start(
  token uuid, rate double precision default null, actor text default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  o holdfast.operation;
begin
  perform holdfast.check_rate(rate);
  select x.* into o from holdfast.operation x where x.token = operation_start.token for update;
  if o.state = 'previewed' then
    if o.created_at < holdfast.now() - interval '10 minutes' then
      perform holdfast.refuse('HF412', format('the preview of %s has expired; other jobs may match by now',
        to_char(o.created_at, 'HH24:MI:SS TZ')), null, 'Create a new preview.');
    end if;
    update holdfast.operation x
    set state = 'running', rate = operation_start.rate, actor = coalesce(operation_start.actor, x.actor),
        started_at = holdfast.now(), next_at = holdfast.now()
    where x.id = o.id;
    perform holdfast.note('operation_started', coalesce(operation_start.actor, o.actor), o.reason,
      detail => jsonb_build_object('operation', o.id, 'verb', o.verb, 'filter', o.filter, 'arguments', o.arguments,
        'total', o.total, 'most', o.most));
  end if;
  return query select v.* from holdfast.operations v where v.id = o.id;
end
$$;

create or replace function holdfast.check_rate(rate double precision)
returns void
language plpgsql
as $$
begin
  if rate <= 0 or rate > 1000000 then
    perform holdfast.refuse('HF225', format('rate %s is not a number of jobs per second', rate), null,
      'Leave it out to run as fast as other work allows.');
  end if;
end
$$;

-- operation_cancel: stop an operation after its current chunk; its changes stay. An ended operation does not change.
-- No row if it does not exist.
create or replace function holdfast.operation_cancel(id bigint, actor text default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.operation x
  set state = 'cancelled', ended_at = holdfast.now(), ended_by = operation_cancel.actor
  where x.id = operation_cancel.id and x.state in ('previewed', 'running');
  if found then
    perform holdfast.note('operation_cancelled', actor, detail => jsonb_build_object('operation', id));
  end if;
  return query select v.* from holdfast.operations v where v.id = operation_cancel.id;
end
$$;

-- operation_step: do the next chunk of an operation that is due and that no other process is working on. No row if
-- there is none.
create or replace function holdfast.operation_step(max_jobs integer default 500)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := holdfast.clock();
  v_began   constant timestamptz := clock_timestamp();
  v_want    integer;
  v_ids     uuid[];
  v_seen    integer;
  v_changed bigint;
  v_ended   boolean;
  o         holdfast.operation;
begin
  select x.* into o
  from holdfast.operation x
  where x.state = 'running' and x.next_at <= v_now
  order by x.next_at
  limit 1
  for update skip locked;
  if not found then
    return;
  end if;
  -- small enough that a cancel is felt soon and a rate is even
  v_want := least(max_jobs, o.most - o.seen, case when o.rate is not null then greatest(1, round(o.rate / 4)) end);
  begin
    if o.verb = 'undo' then
      select r.seen, r.changed, r.ended into v_seen, v_changed, v_ended from holdfast.operation_revert(o, v_want) r;
    else
      select n.ids, n.ended, n.at_part, n.at_id into v_ids, v_ended, o.at_part, o.at_id
      from holdfast.operation_next(o, v_want) n;
      v_seen := cardinality(v_ids);
      v_changed := holdfast.operation_apply(o, v_ids);
    end if;
  exception when others then
    -- what passes by itself is tried again; anything else ends the operation, and says why
    if sqlstate like any ('{25%,40%,53%,55%,57%}') then
      raise;
    end if;
    update holdfast.operation x
    set state = 'failed', ended_at = v_now, problem = format('%s: %s', sqlstate, sqlerrm)
    where x.id = o.id;
    perform holdfast.note('operation_failed', o.actor, sqlerrm,
      detail => jsonb_build_object('operation', o.id, 'verb', o.verb));
    return query select v.* from holdfast.operations v where v.id = o.id;
    return;
  end;
  v_ended := v_ended or coalesce(o.seen + v_seen >= o.most, false);
  update holdfast.operation x
  set seen = x.seen + v_seen, changed = x.changed + v_changed, at_part = o.at_part, at_id = o.at_id,
      total = greatest(x.total, x.seen + v_seen),
      -- without a rate it takes a quarter of the time, so that whoever works meanwhile hardly feels it
      next_at = case when x.rate is null then v_now + 4 * (clock_timestamp() - v_began)
        else greatest(x.next_at, v_now - interval '1 second') + make_interval(secs => v_seen / x.rate) end,
      state = case when v_ended then 'done' else x.state end,
      ended_at = case when v_ended then v_now end
  where x.id = o.id;
  if v_ended then
    perform holdfast.note('operation_ended', o.actor, o.reason,
      detail => jsonb_build_object('operation', o.id, 'verb', o.verb,
      'filter', o.filter, 'changed', o.changed + v_changed, 'seen', o.seen + v_seen));
  end if;
  return query select v.* from holdfast.operations v where v.id = o.id;
end
$$;

-- operation_next: the next ids of an operation, and where it continues after them. For all jobs: part by part, in
-- windows of the order of ids, so that a chunk reads only what it takes, or stops for now. For some: the newest of
-- all parts.
create or replace function holdfast.operation_next(o holdfast.operation, want integer)
returns table (ids uuid[], ended boolean, at_part smallint, at_id uuid)
language plpgsql
as $$
#variable_conflict use_variable
declare
  v_filter constant text := holdfast.operation_filter(o.verb, o.filter);
  v_sql    constant text := format('select count(*), min(x.id::text)::uuid, array_agg(x.id order by x.id desc)'
    || ' filter (where x.hit) from ('
    || '(select j.id, (%1$s) and coalesce(j.ended_at, j.created_at) <= $3 as hit from (%2$s) j'
    || ' where j.part = $1 and ($2 is null or j.id < $2) order by j.id desc limit $4)'
    || ' union all select j.id, (%1$s) and coalesce(j.ended_at, j.created_at) <= $3'
    || ' from holdfast.adopted_rows($1, null, $2, $4) j where $1 >= 64) x',
    holdfast.filter_sql(v_filter), holdfast.search_source(holdfast.states_in(v_filter)));
  v_parts  constant smallint[] := holdfast.parts_in(v_filter);
  v_window integer := want;
  v_flow   constant uuid := holdfast.workflow_in(o.filter);
  v_left   integer := 20000;
  v_seen   integer;
  v_oldest uuid;
  v_hits   uuid[];
begin
  if v_flow is not null then
    return query select n.ids, n.ended, n.at_part, n.at_id from holdfast.operation_next_in(o, v_flow, want) n;
    return;
  end if;
  ids := '{}';
  at_part := o.at_part;
  at_id := o.at_id;
  if o.most is not null then
    select coalesce(array_agg((s.job).id order by (s.job).id desc)
             filter (where coalesce((s.job).ended_at, (s.job).created_at) <= o.as_of), '{}'),
           count((s.job).id) < want and max(s.searched_to::text) is null,
           coalesce(max(s.searched_to::text), min((s.job).id::text))::uuid
    into ids, ended, at_id
    from holdfast.search(v_filter, want, o.at_id, '1 second') s;
    return next;
    return;
  end if;
  loop
    select p into at_part from unnest(v_parts) p where p >= at_part order by p limit 1;
    ended := not found;
    if ended then
      at_part := 64;
      exit;
    end if;
    execute v_sql into v_seen, v_oldest, v_hits using at_part, at_id, o.as_of, v_window;
    ids := ids || v_hits[:want - cardinality(ids)];
    if cardinality(ids) >= want then
      at_id := ids[cardinality(ids)];
      exit;
    elsif v_seen < v_window then
      at_part := at_part + 1;
      at_id := null;
    else
      at_id := v_oldest;
    end if;
    v_left := v_left - v_seen - 1;
    exit when v_left <= 0;
    v_window := least(4 * v_window, 5000);
  end loop;
  return next;
end
$$;

-- operation_apply: apply the verb to some jobs and store their previous state; returns how many changed.
create or replace function holdfast.operation_apply(o holdfast.operation, ids uuid[])
returns bigint
language plpgsql
as $$
declare
  v_reason  constant text := coalesce(o.reason, format('operation %s by %s', o.id, coalesce(o.actor, 'nobody')));
  v_parts   constant smallint[] := array(select distinct holdfast.part_of(i) from unnest(ids) i);
  v_was     text[];
  v_done    uuid[];
  v_moved   uuid[];   -- what they are called since
  v_ended   jsonb[];  -- of jobs that had ended, all that a retry does not keep
  v_stops   jsonb;    -- how workflows were cancelled that the retry opens
begin
  -- What waits is not to begin before it is looked at.
  if o.verb = 'cancel' then
    perform holdfast.lock_to_end(holdfast.with_children(ids));
  elsif o.verb = 'move' then
    perform holdfast.lock_to_change(ids);
  end if;
  v_was := array(
    select x.was
    from unnest(ids) with ordinality u(id, nth)
    left join (
      -- one for each id, also of those that ended more than once: the one that the verb takes
      select distinct on (y.id) y.id, y.was
      from (
        select j.id, case when o.verb = 'move' then j.queue when j.token is null then 'queued' else 'leased' end as was,
               null::text as state, null::timestamptz as ended_at
        from holdfast.job j
        where j.part = any(v_parts) and j.id = any(ids) and o.verb in ('cancel', 'move')
        union all
        select e.id, case when o.verb = 'move' then e.queue else e.state end, e.state, e.ended_at
        from holdfast.ended e
        where e.part = any(v_parts) and e.id = any(ids) and o.verb in ('retry', 'archive', 'move')
      ) y
      order by y.id, y.ended_at is null desc, y.state = 'dead' desc, y.ended_at desc
    ) x on x.id = u.id
    order by u.nth);
  if o.verb = 'retry' then
    select coalesce(array_agg(x.said order by u.nth), '{}'), holdfast.stops_of(array_agg(x.link))
    into v_ended, v_stops
    from unnest(ids) with ordinality u(id, nth)
    left join lateral (
      select e.link, to_jsonb(e)
               - '{part,id,kind,key,lane,tenant,subject,headers,payload,created_at,link,takes}'::text[]
               - case when o.arguments -> 'fresh' = 'true' then '' else 'steps' end
               || case when e.state = 'archived' and e.link is not null
                 then jsonb_build_object('ended_as', holdfast.ended_as(e.link)) else '{}' end as said
      from holdfast.ended e
      where e.part = holdfast.part_of(u.id) and e.id = u.id
      order by e.state = 'dead' desc, e.ended_at desc
      limit 1) x on true;
  end if;
  case o.verb
    when 'retry' then
      v_done := holdfast.retried(ids, v_reason, o.actor,
        make_interval(secs => (o.arguments ->> 'delay')::double precision),
        coalesce((o.arguments -> 'fresh')::boolean, false));
    when 'cancel' then
      v_done := holdfast.cancelled(ids, v_reason, o.actor);
    when 'archive' then
      v_done := holdfast.archived(ids, v_reason, o.actor);
    when 'delete' then
      return cardinality(holdfast.deleted(ids, v_reason, o.actor));
    when 'move' then
      select coalesce(array_agg(m.id), '{}'), array_agg(m.new_id) into v_done, v_moved
      from holdfast.moved(ids, o.arguments ->> 'queue', v_reason, o.actor) m;
  end case;
  -- of no jobs, and before them, so that it is the last to be undone
  insert into holdfast.operation_chunk (operation, ids, was, ended)
  select o.id, '{}', '{}', array[v_stops] where v_stops is not null and cardinality(v_done) > 0;
  with kept as (
    insert into holdfast.operation_chunk as c (operation, ids, was, ended)
    select o.id, array_agg(coalesce(d.moved, d.id)), array_agg(w.was),
           case when v_ended is not null then array_agg(w.ended) end
    from unnest(v_done, v_moved) d(id, moved)
    join unnest(ids, v_was, v_ended) w(id, was, ended) on w.id = d.id
    where w.was is not null   -- a row of an adopted table: its status is the application's
    having count(*) > 0
    returning cardinality(c.ids) as jobs
  )
  update holdfast.operation x set undoable = x.undoable + kept.jobs from kept where x.id = o.id;
  return cardinality(v_done);
end
$$;

-- operation_filter: restrict a filter to the states that a verb can change. Searching live jobs for dead ones would
-- read them all.
create or replace function holdfast.operation_filter(verb text, filter text)
returns text
language sql immutable
as $$
  select filter || case
    when verb in ('retry', 'archive') then ' state:done,dead,cancelled,archived'
    when verb = 'cancel' then ' state:queued,leased'
    else '' end
$$;
