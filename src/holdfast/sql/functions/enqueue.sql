-- enqueue: store jobs, one or many, inside the caller's transaction.
-- Answers one row per item: the job that stands for it, and whether the call created it.
-- repeat says "this may have been sent before": what was stored already answers as it did then.
-- behind is the job that one of a lane, of a queue at its limit or a follow-up waits for; null: of none. If that job
-- runs, holder is the worker that holds it, since held_since.
create or replace function holdfast.enqueue(items jsonb, repeat boolean default false)
returns table (ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_seed   constant bigint := holdfast.id_seed();
  v_names  text[];
  v_ahead  uuid;            -- what all of a plain batch wait for
  v_holder record;
  v_plain  record;
  batch    record;
begin
  if jsonb_typeof(items) = 'object' then
    items := jsonb_build_array(items);
  elsif items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects',
      format('got %s', coalesce(holdfast.told(items), 'null')),
      'For example: select * from holdfast.enqueue(''[{"kind": "greet", "payload": {"name": "Ada"}}]'')');
  end if;

  select count(*) as jobs, bool_and(holdfast.item_fields_ok(i.item)) as fine,
         max(case when pg_column_size(i.item) > 4000 then 2147483647 else octet_length((i.item -> 'payload')::text) end)::bigint as largest,
         min(i.item ->> 'queue' collate "C") as first_queue, max(i.item ->> 'queue' collate "C") as last_queue,
         count(i.item ->> 'queue') as queues, count(i.item ->> 'id') as ids,
         not bool_or(i.item ?| '{delay,run_at,max_attempts,lease,key,on_conflict,lane,tenant,headers,subject}') as plain
  into batch
  from jsonb_array_elements(items) i(item);
  if batch.jobs = 0 then
    return;
  end if;
  if batch.queues = 0 then
    v_names := array['default'];
  elsif batch.queues = batch.jobs and batch.first_queue = batch.last_queue then
    v_names := array[batch.first_queue];
  else
    v_names := array(
      select n.name
      from (select distinct coalesce(i.item ->> 'queue', 'default') as name from jsonb_array_elements(items) i(item)) n
      order by holdfast.queue_part(n.name), n.name collate "C");
  end if;
  if batch.largest > 300 or not batch.plain then   -- what is shorter cannot hold a number of too many digits
    batch.largest := holdfast.largest_of(items, batch.largest, batch.plain);
  end if;
  if not batch.fine or batch.largest > 100000 or not holdfast.queue_ok(v_names[1]) then
    perform holdfast.check_items(items);
  elsif cardinality(v_names) > 1 then
    if exists (select from unnest(v_names) n where not holdfast.queue_ok(n)) then
      perform holdfast.check_items(items);
    end if;
  end if;
  if batch.plain and not repeat and cardinality(v_names) = 1 then
    v_plain := holdfast.enqueue_plain(items, v_names[1], batch.jobs, batch.ids, batch.largest, v_now, v_seed);
    if v_plain.ids is not null then
      v_ahead := case when v_plain.limited then holdfast.held_first(v_names[1]) end;
      if v_ahead is not null then
        select h.worker, h.since into v_holder from holdfast.holders(array[v_ahead]) h;
        return query
          select o.ord::integer, o.id, true, null::uuid, v_ahead, v_holder.worker, v_holder.since
          from unnest(v_plain.ids) with ordinality as o(id, ord);
        return;
      end if;
      return query
        select o.ord::integer, o.id, true, null::uuid, null::uuid, null::text, null::timestamptz
        from unnest(v_plain.ids) with ordinality as o(id, ord);
      return;
    end if;
  end if;

  if batch.ids > 0 then
    perform holdfast.check_items(items);   -- ids were only glanced at
  end if;
  if batch.jobs > 1 and not batch.plain and items @? '$[*].key' then
    return query
      select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
      from holdfast.enqueue_keys(items, repeat, v_names, batch.ids, batch.largest, v_now, v_seed) e;
  else
    return query
      select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
      from holdfast.enqueue_any(items, repeat, v_names, batch.jobs, batch.ids, batch.largest, batch.plain, v_now, v_seed, false) e;
  end if;
end
$$;

-- enqueue_keys: several jobs, some with keys: in order, or from the start. A key that was taken when its turn came and
-- is free by now cannot be had after the others without risking a deadlock, nor can a job be waited for that was not
-- there when the others were locked: then all is undone, and done again as things are now.
create or replace function holdfast.enqueue_keys(
  items jsonb, repeat boolean, names text[], given bigint, largest bigint, at timestamptz, seed bigint)
returns table (ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  for turn in 1 .. 100 loop
    begin
      return query
        select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
        from holdfast.enqueue_any(items, repeat, names, jsonb_array_length(items), given, largest, false, at, seed, true) e;
      return;
    exception when sqlstate 'HFAGN' then
      null;
    end;
  end loop;
  raise exception using
    errcode = 'serialization_failure',
    message = 'the keys changed hands too often to be enqueued',
    hint = 'Repeat the transaction.';
end
$$;

-- enqueue_any: the long way, for jobs with details. in_order: it may wait for jobs and keys in their order only, and
-- raises HFAGN where it would have to otherwise.
create or replace function holdfast.enqueue_any(
  items jsonb, repeat boolean, names text[], jobs bigint, given bigint, largest bigint, plain boolean, at timestamptz, seed bigint,
  in_order boolean)
returns table (ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_queue  holdfast.queue;
  v_lanes  boolean := false;
  v_keys   boolean := false;
  v_name   text;
  v_part   smallint;
  v_head   text;
  v_firsts bigint[];        -- items that may be ready at once although they have a lane
  v_past   uuid[] := '{}';  -- ids of an earlier sending whose jobs were claimed or have ended
  v_ids    uuid[];          -- one per item, where the stored rows alone cannot tell
  v_places bigint[];        -- likewise, where rows are not written in the order of the items
  v_order  bigint[];
  v_stored uuid[] := '{}';
  v_limited text[] := '{}'; -- queues with a limit …
  v_helds  uuid[] := '{}';  -- … and what their jobs wait for
  v_rivals uuid[] := '{}';  -- of each item the job that stood in its way …
  v_behind uuid[] := '{}';  -- … and the one it waits for
  v_runs   uuid[] := '{}';  -- of those the ones that run
  part_of_batch record;
  missing  record;
begin
  if not plain then
    select bool_or(i.item ? 'lane'), bool_or(i.item ? 'key')
    into v_lanes, v_keys
    from jsonb_array_elements(items) i(item);
  end if;
  if v_lanes or v_keys then
    -- Where such a job lives depends on its queue's fanout, which changes only while nobody holds this lock: it
    -- comes before the settings are read. A snapshot that is older than it must not be trusted.
    lock table holdfast.job in row exclusive mode;
    if current_setting('transaction_isolation') <> 'read committed' then
      perform from holdfast.queue q where q.name = any(names) order by q.name for share;
    end if;
  end if;
  if v_lanes then
    v_firsts := holdfast.lane_firsts(items, repeat);
  end if;
  if v_keys or repeat or given not in (0, enqueue_any.jobs) or cardinality(names) > 1 then
    v_ids := holdfast.ids_of(items, names, at, seed);
  end if;
  if repeat then
    v_past := holdfast.known_before(v_ids, items);
  end if;
  if v_keys then
    -- Written in the order of keys, so that two imports of the same things cannot deadlock, but placed
    -- in the order given. A place may be drawn only under the table's lock: floors rely on it.
    v_places := array(select nextval('holdfast.pos') from generate_series(1, enqueue_any.jobs));
    v_order := array(
      select i.ord
      from jsonb_array_elements(items) with ordinality as i(item, ord)
      order by i.item ->> 'kind' collate "C", i.item ->> 'key' collate "C", i.ord);
  else
    v_order := array(select generate_series(1, enqueue_any.jobs));
  end if;
  if in_order then
    perform holdfast.lock_rivals(items, v_ids, repeat or given > 0);
  end if;

  foreach v_name in array names loop
    select q.* into v_queue from holdfast.queue q where q.name = v_name;
    if v_queue.adopted is not null then
      perform holdfast.refuse_adopted(v_name);
    end if;
    v_part := holdfast.queue_part(v_name);
    v_head := holdfast.id_head(v_part, at);
    if largest > v_queue.payload_limit then
      perform holdfast.check_items(items);
    end if;
    if v_queue.fanout > 1 and v_lanes and v_keys and items @? '$[*] ? (@.key != null && @.lane != null)' then
      perform holdfast.refuse('HF204', format('queue %L is fanned out: a job there has a key or a lane, not both', v_name), null,
        'Each decides where the job lives, so that its rule holds in one place.');
    end if;
    if v_queue.fanout > 1 and v_ids is null then
      v_ids := holdfast.ids_of(items, names, at, seed);
    end if;

    with stored as (
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, lease_for,
        key, lane, tenant, subject, headers, payload, by_kind, blocked, lane_seq, pos)
      select
        case when v_ids is null then v_part else holdfast.part_of(v_ids[i.ord]) end,
        case when v_ids is null then holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord) else v_ids[i.ord] end,
        v_name, i.item ->> 'kind', coalesce(nullif(i.item -> 'priority', 'null')::smallint, 0::smallint), j.run_at, at,
        coalesce(nullif(i.item -> 'max_attempts', 'null')::smallint, v_queue.max_attempts, 3::smallint),
        make_interval(secs => (i.item ->> 'lease')::double precision),
        i.item ->> 'key', i.item ->> 'lane', coalesce(i.item ->> 'tenant', case when v_queue.fair then '' end),
        i.item ->> 'subject', nullif(i.item -> 'headers', 'null'), coalesce(i.item -> 'payload', '{}'),
        coalesce(v_queue.by_kind, false),
        v_lanes and j.run_at <= at and i.item ->> 'lane' is not null and not i.ord = any(v_firsts),
        case when v_lanes and j.run_at <= at and i.item ->> 'lane' is not null
             then coalesce(v_places[i.ord], nextval('holdfast.pos')) end,
        case when j.run_at <= at and (not v_lanes or i.item ->> 'lane' is null or i.ord = any(v_firsts))
             then coalesce(v_places[i.ord], nextval('holdfast.pos')) end
      from (select o.ord, enqueue_any.items -> (o.ord - 1)::integer as item from unnest(v_order) o(ord) offset 0) i
      cross join lateral (
        select case when i.item ?| '{delay,run_at}' then holdfast.due_at(i.item, at) else at end as run_at
      ) j
      where (cardinality(names) = 1 or coalesce(i.item ->> 'queue', 'default') = v_name)
        and (not repeat or not v_ids[i.ord] = any(v_past))
      on conflict do nothing
      returning part, id, kind, pos
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, enqueued)
      select s.part, v_name, s.kind, count(*), count(*)
      from stored s
      group by s.part, s.kind
    )
    select array_agg(s.id) as ids, count(s.pos) as ready,
           array_agg(row(null, at, 'enqueued', s.id, v_name, s.kind, 'queued', null, 1, null, null, null, null)::holdfast.events)
             filter (where v_queue.activity = 'all' or exists (
               select from holdfast.watched w where w.queue in (v_name, '') and w.until > at)) as told
    into part_of_batch
    from stored s;
    if part_of_batch.told is not null then
      perform holdfast.note_events(part_of_batch.told);
    end if;
    v_stored := v_stored || part_of_batch.ids;
    if v_queue.lease_limit is not null then
      v_limited := array_append(v_limited, v_name);
      v_helds := array_append(v_helds, holdfast.held_first(v_name));
    end if;
    if part_of_batch.ready > 0 and exists (
      select from holdfast.waiter w where w.queue = v_name and w.until > at) then
      perform holdfast.wake(array[v_name], part_of_batch.ready);
    end if;
  end loop;

  if repeat then
    v_past := v_past || holdfast.take_back(v_stored);
  end if;
  if cardinality(v_stored) = enqueue_any.jobs then
    v_ids := coalesce(v_ids, v_stored);
    if v_lanes or cardinality(v_limited) > 0 then
      return query
        with ahead as materialized (
          select a.ord, a.behind, a.runs from holdfast.ahead(v_ids, v_limited, v_helds) a
        ), holders as materialized (
          select h.* from holdfast.holders(array(select distinct a.behind from ahead a where a.runs)) h
        )
        select a.ord::integer, v_ids[a.ord], true, null::uuid, a.behind, h.worker, h.since
        from ahead a
        left join holders h on h.id = a.behind
        order by a.ord;
      return;
    end if;
    return query
      select o.ord::integer, o.id, true, null::uuid, null::uuid, null::text, null::timestamptz
      from unnest(v_ids) with ordinality as o(id, ord);
    return;
  end if;

  v_ids := coalesce(v_ids, holdfast.ids_of(items, names, at, seed));
  if v_keys and not in_order then
    perform holdfast.lock_rivals(items, v_ids, false);
  end if;
  for missing in
    select
      i.ord::integer, i.item, v_ids[i.ord] as id,
      s.id is not null or v_ids[i.ord] = any(v_past) as stored,
      case when coalesce(i.item ->> 'on_conflict', 'skip') = 'skip' then (
        select j.id
        from holdfast.job j
        where j.part = holdfast.part_of(v_ids[i.ord])
          and j.queue = coalesce(i.item ->> 'queue', 'default') and j.kind = i.item ->> 'kind'
          and j.key = i.item ->> 'key' and not j.follow
      ) end as rival
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    left join (select distinct x.id from unnest(v_stored) x(id)) s on s.id = v_ids[i.ord]
    -- in the order of keys, as they were written above
    order by array_position(names, coalesce(i.item ->> 'queue', 'default')), i.item ->> 'kind' collate "C",
             i.item ->> 'key' collate "C", i.ord
  loop
    id := missing.id;
    created := true;
    duplicate_of := null;
    if not missing.stored then
      if missing.rival is null or missing.rival = missing.id then
        select a.id, a.created into id, created
        from holdfast.enqueue_again(missing.item, missing.id, at, repeat, in_order) a;
      else
        id := missing.rival;
        created := false;
      end if;
      if not created then
        duplicate_of := id;
      end if;
    end if;
    behind := null;
    if created and (v_lanes or cardinality(v_limited) > 0 or not missing.stored) then
      select a.behind, v_runs || case when a.runs then a.behind end into behind, v_runs from holdfast.ahead(array[id], v_limited, v_helds) a;
    end if;
    v_ids[missing.ord] := id;
    v_rivals[missing.ord] := duplicate_of;
    v_behind[missing.ord] := behind;
  end loop;
  return query
    select n.ord, v_ids[n.ord], v_rivals[n.ord] is null, v_rivals[n.ord], v_behind[n.ord], h.worker, h.since
    from generate_series(1, enqueue_any.jobs::integer) n(ord)
    left join holdfast.holders(v_runs) h on h.id = v_behind[n.ord]
    order by n.ord;
end
$$;

-- lock_rivals: lock the waiting jobs that an enqueue may change because they have its keys, or its ids: in the order of
-- ids, as everybody does. What runs is nobody's to wait for.
create or replace function holdfast.lock_rivals(items jsonb, ids uuid[], by_id boolean)
returns void
language plpgsql
as $$
begin
  if not by_id and not items @? '$[*].on_conflict ? (@ == "replace" || @ == "after")' then
    return;
  end if;
  perform from (
    select distinct f.part, f.id
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    cross join lateral (
      select x.part, x.id
      from holdfast.job x
      where i.item ->> 'on_conflict' in ('replace', 'after')
        and x.part = holdfast.part_of(ids[i.ord]) and x.queue = coalesce(i.item ->> 'queue', 'default')
        and x.kind = i.item ->> 'kind' and x.key = i.item ->> 'key' and x.token is null
      union all
      select x.part, x.id
      from holdfast.job x
      where by_id and x.part = holdfast.part_of(ids[i.ord]) and x.id = ids[i.ord]
    ) f
    order by f.id
  ) r
  cross join lateral (
    select from holdfast.job j where j.part = r.part and j.id = r.id and (by_id or j.token is null) for update) j;
end
$$;

-- enqueue_plain: the short way, for jobs with no more than a kind, a payload, a priority and an id, all in
-- one queue: nothing is written speculatively. No ids where it cannot be taken.
create or replace function holdfast.enqueue_plain(
  items jsonb, queue text, jobs bigint, given bigint, largest bigint, at timestamptz, seed bigint,
  out ids uuid[], out limited boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_queue holdfast.queue;
begin
  -- An id may be there already; to find that out costs a subtransaction, too much for a few.
  if given > 0 and jobs < 10 then
    return;
  end if;
  select q.* into v_queue from holdfast.queue q where q.name = enqueue_plain.queue;
  if v_queue.fanout > 1 or largest > v_queue.payload_limit or v_queue.adopted is not null then
    return;
  end if;
  v_queue.name := queue;
  limited := v_queue.lease_limit is not null;
  if given = 0 then
    ids := holdfast.store_plain(items, v_queue, at, seed);
  else
    begin
      ids := holdfast.store_plain(items, v_queue, at, seed);
    exception when unique_violation or invalid_text_representation then
      return;
    end;
  end if;
  if exists (select from holdfast.waiter w where w.queue = enqueue_plain.queue and w.until > at) then
    perform holdfast.wake(array[enqueue_plain.queue], jobs);
  end if;
end
$$;

create or replace function holdfast.store_plain(items jsonb, queue_row holdfast.queue, at timestamptz, seed bigint)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part   constant smallint := holdfast.queue_part(queue_row.name);
  v_head   constant text := holdfast.id_head(v_part, at);
  v_ids    uuid[];
  v_told   holdfast.events[];
begin
  with stored as (
    insert into holdfast.job (part, id, queue, kind, priority, run_at, created_at, max_attempts, tenant, by_kind, payload)
    select
      v_part, holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord), queue_row.name, i.item ->> 'kind',
      case when i.item ? 'priority' then coalesce(nullif(i.item -> 'priority', 'null')::smallint, 0::smallint) else 0::smallint end, at, at, coalesce(queue_row.max_attempts, 3::smallint),
      case when queue_row.fair then '' end, coalesce(queue_row.by_kind, false), coalesce(i.item -> 'payload', '{}')
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    returning id, kind
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued, enqueued)
    select v_part, queue_row.name, s.kind, count(*), count(*)
    from stored s
    group by s.kind
  )
  select array_agg(s.id),
         array_agg(row(null, store_plain.at, 'enqueued', s.id, queue_row.name, s.kind, 'queued', null, 1, null, null, null, null)::holdfast.events)
           filter (where queue_row.activity = 'all' or exists (
             select from holdfast.watched w where w.queue in (queue_row.name, '') and w.until > store_plain.at))
  into v_ids, v_told
  from stored s;
  if v_told is not null then
    perform holdfast.note_events(v_told);
  end if;
  return v_ids;
end
$$;

-- ahead: of each new job the one it waits for: the one that holds its lane or halted it; the first to have
-- started of a queue that is at its limit (limited and helds are parallel); where none runs, the one right
-- before it in its lane. A follow-up waits for the one with its key. Null if only its time and its place
-- keep it from being claimed. runs: somebody may hold that one; one that only stands before it is not looked up.
create or replace function holdfast.ahead(ids uuid[], limited text[], helds uuid[])
returns table (ord bigint, behind uuid, runs boolean)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  -- Each lane is looked at once, for the first of its jobs; the others follow one another.
  return query
    with mine as (
      select u.ord, u.id, j.part, j.queue, j.kind, j.key, j.lane, j.lane_seq, j.follow, j.run_at,
             row_number() over lane as nth, lag(u.id) over lane as before
      from unnest(ids) with ordinality u(id, ord)
      left join lateral (
        select x.part, x.queue, x.kind, x.key, x.lane, x.lane_seq, x.follow, x.run_at
        from holdfast.job x
        where x.part = holdfast.part_of(u.id) and x.id = u.id and x.token is null
        limit 1) j on true
      window lane as (partition by j.part, j.queue, j.lane order by j.lane_seq)
    ), known as (
      select m.*, first_value(l.slots) over lane as slots, first_value(l.halted_by) over lane as halted_by,
             first_value(l.running) over lane as running, first_value(l.there) over lane as there
      from mine m
      left join lateral (
        select s.slots, s.halted_by,
               array(
                 select h.id
                 from (
                   select x.id, x.lane_seq
                   from holdfast.job x
                   where x.part = m.part and x.queue = m.queue and x.lane = m.lane and x.held
                   union all
                   select g.id, g.lane_seq
                   from holdfast.leaving g
                   where g.part = m.part and g.queue = m.queue and g.lane = m.lane
                 ) h
                 order by h.lane_seq
                 limit s.slots) as running,
               array(
                 select x.id
                 from holdfast.job x
                 where x.part = m.part and x.queue = m.queue and x.lane = m.lane and x.lane_seq < m.lane_seq
                 order by x.lane_seq desc
                 limit s.slots) as there
        from (
          select coalesce(l.lane_limit, q.lane_limit, 1) as slots, l.halted_by
          from (values (m.queue)) v(queue)
          left join lateral (select x.lane_limit from holdfast.queue x where x.name = v.queue limit 1) q on true
          left join lateral (
            select x.lane_limit, x.halted_by
            from holdfast.lane x
            where x.part = m.part and x.queue = v.queue and x.name = m.lane
            limit 1) l on true
        ) s
        where m.nth = 1 and m.lane_seq is not null
        limit 1
      ) l on true
      window lane as (partition by m.part, m.queue, m.lane order by m.lane_seq)
    )
    select k.ord, case
      when k.follow then (
        select x.id from holdfast.job x
        where x.part = k.part and x.queue = k.queue and x.kind = k.kind and x.key = k.key and not x.follow)
      when k.run_at > holdfast.clock() then null
      when k.halted_by is not null then k.halted_by
      when cardinality(k.running) >= k.slots then k.running[1]
      when k.queue = any(limited) and helds[array_position(limited, k.queue)] is not null then helds[array_position(limited, k.queue)]
      when k.nth - 1 + cardinality(k.there) >= k.slots then coalesce(k.before, k.there[1])
    end, coalesce(k.follow or k.run_at <= holdfast.clock() and k.halted_by is null and (
      cardinality(k.running) >= k.slots or helds[array_position(limited, k.queue)] is not null), false)
    from known k;
end
$$;

-- holders: of jobs that run, the workers that hold them, and since when; of a cancelled one, who has still to stop.
create or replace function holdfast.holders(ids uuid[])
returns table (id uuid, worker text, since timestamptz)
language sql stable
as $$
  select h.id, h.worker, (select max(l.claimed_at) from holdfast.lease l where l.token = h.token and l.part = h.part)
  from unnest(ids) u(id)
  cross join lateral (
    (select j.part, j.id, j.worker, j.token from holdfast.job j
     where j.part = holdfast.part_of(u.id) and j.id = u.id and j.token is not null limit 1)
    union all
    (select g.part, g.id, g.worker, g.token from holdfast.leaving g
     where g.part = holdfast.part_of(u.id) and g.id = u.id limit 1)
    limit 1
  ) h
$$;

-- held_first: of a queue that runs as many jobs as its limit allows, the first that started; else null.
create or replace function holdfast.held_first(queue text)
returns uuid
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_queue holdfast.queue;
  v_held  uuid[];
begin
  select q.* into v_queue from holdfast.queue q where q.name = held_first.queue and q.lease_limit is not null;
  if not found then
    return null;
  end if;
  v_held := array(
    select h.id
    from generate_series(0, v_queue.fanout - 1) step
    cross join lateral (
      select x.id, x.pos
      from holdfast.job x
      where x.part = ((holdfast.queue_part(v_queue.name) + step) % 64)::smallint and x.queue = v_queue.name and x.held
      union all
      select g.id, g.lane_seq
      from holdfast.leaving g
      where g.part = ((holdfast.queue_part(v_queue.name) + step) % 64)::smallint and g.queue = v_queue.name
    ) h
    order by h.pos);
  return case when cardinality(v_held) >= v_queue.lease_limit then v_held[1] end;
end
$$;

-- ids_of: the id of each item, in their order.
create or replace function holdfast.ids_of(items jsonb, queues text[], at timestamptz, seed bigint)
returns uuid[]
language plpgsql stable
as $$
declare
  v_part constant smallint := holdfast.queue_part(queues[1]);
  v_head constant text := holdfast.id_head(v_part, at);
begin
  if cardinality(queues) > 1 or exists (select from holdfast.queue q where q.name = queues[1] and q.fanout > 1) then
    return array(select i.id from holdfast.items_of(items, at, seed) i order by i.ord);
  end if;
  return array(
    select holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord)
    from jsonb_array_elements(items) with ordinality as i(item, ord));
end
$$;

-- items_of: each item with its place and its queue's settings applied.
create or replace function holdfast.items_of(items jsonb, at timestamptz, seed bigint)
returns table (
  ord bigint, item jsonb, id uuid, queue text, kind text, run_at timestamptz, tenant text, by_kind boolean, max_attempts smallint)
language sql stable
as $$
  select
    i.ord, i.item, holdfast.id_of(i.item ->> 'id', p.part, holdfast.id_head(p.part, items_of.at), seed + i.ord),
    coalesce(i.item ->> 'queue', 'default'), i.item ->> 'kind', holdfast.due_at(i.item, items_of.at),
    coalesce(i.item ->> 'tenant', case when q.fair then '' end),
    coalesce(q.by_kind, false),
    coalesce(nullif(i.item -> 'max_attempts', 'null')::smallint, q.max_attempts, 3::smallint)
  from jsonb_array_elements(items) with ordinality as i(item, ord)
  left join holdfast.queue q on q.name = coalesce(i.item ->> 'queue', 'default')
  cross join lateral (
    select case when coalesce(q.fanout, 1) = 1 then holdfast.queue_part(coalesce(i.item ->> 'queue', 'default'))
                else holdfast.fanned_part(q.name, q.fanout, i.item, seed + i.ord) end as part
  ) p
$$;

-- due_at: when an item wants to run.
create or replace function holdfast.due_at(item jsonb, at timestamptz)
returns timestamptz
language sql stable
as $$
  select coalesce(
    at + make_interval(secs => (item ->> 'delay')::double precision),
    (item ->> 'run_at')::timestamptz,
    at)
$$;

-- id_of: the caller's id carrying the right part, or a new one. One seed serves a whole batch: the
-- numbers that follow it are as unlikely to be met again as the seed itself, and cost no randomness.
-- The head of new ids ends in the three digits by which an id shows its part: comparing those is cheapest.
create or replace function holdfast.id_of(given text, part smallint, head text, number bigint)
returns uuid
language sql stable
as $$
  select case
    when given is null then (head || to_hex((number & 4611686018427387903) | (-9223372036854775807 - 1)))::uuid
    when substr(given, 16, 3) = right(head, 3) then given::uuid
    else holdfast.stamp(given::uuid, part)
  end
$$;

-- id_head: the first half of the ids of one batch: milliseconds, the version and the part.
create or replace function holdfast.id_head(part smallint, at timestamptz)
returns text
language sql stable parallel safe
as $$
  select encode(
    substr(int8send((extract(epoch from at) * 1000)::bigint), 3) || substr(int8send(32768::bigint | part), 7), 'hex')
$$;

create or replace function holdfast.id_seed()
returns bigint
language sql volatile
as $$ select (random() * 2147483647)::bigint << 31 | (random() * 2147483647)::bigint $$;

-- check_items: refuse the first item that is not a job.
create or replace function holdfast.check_items(items jsonb)
returns void
language plpgsql
as $$
declare
  bad record;
begin
  select i.ord, i.item, coalesce(q.payload_limit, 262144) as payload_limit into bad
  from jsonb_array_elements(items) with ordinality as i(item, ord)
  left join holdfast.queue q on q.name = coalesce(i.item ->> 'queue', 'default')
  where not holdfast.item_ok(i.item) or not coalesce(holdfast.is_id(i.item ->> 'id'), true) or holdfast.out_of_range(i.item)
     or holdfast.item_size(i.item) > coalesce(q.payload_limit, 262144)
  limit 1;
  if found then
    perform holdfast.refuse_item(bad.item, bad.ord, bad.payload_limit);
  end if;
end
$$;

-- item_size: what counts against the limit of a queue, in bytes: payload and headers as they are sent.
create or replace function holdfast.item_size(item jsonb)
returns bigint
language sql stable
as $$
  select coalesce(holdfast.text_size(item -> 'payload'), 0) + coalesce(holdfast.text_size(nullif(item -> 'headers', 'null')), 0)
$$;

-- largest_of: the size of the largest of these items; refuses them if one holds a number out of range. known is the
-- size of the largest payload, if all are small.
create or replace function holdfast.largest_of(items jsonb, known bigint, plain boolean)
returns bigint
language plpgsql
as $$
begin
  if plain or known > 300 or items @? '$[*].headers' then
    if holdfast.out_of_range(items) then
      perform holdfast.check_items(items);
    end if;
    if not plain or known = 2147483647 then
      known := (select max(holdfast.item_size(i.item)) from jsonb_array_elements(items) i(item));
    end if;
  end if;
  return known;
end
$$;

-- item_ok: whether an item holds what it should.
create or replace function holdfast.item_ok(item jsonb)
returns boolean
language sql stable
as $$ select holdfast.item_fields_ok(item) and coalesce(holdfast.queue_ok(item ->> 'queue'), true) $$;

-- queue_ok: whether jobs may be put into a queue of this name.
create or replace function holdfast.queue_ok(name text)
returns boolean
language sql immutable parallel safe
as $$ select length(name) between 1 and 120 and holdfast.is_name(name) and not holdfast.is_ours(name) $$;

-- item_fields_ok: the same, as far as one expression can tell quickly; the name of a queue is not looked at here, for
-- the items of a call mostly share one.
create or replace function holdfast.item_fields_ok(item jsonb)
returns boolean
language sql stable
as $$
  select coalesce(
    jsonb_typeof(item) = 'object'
    and item - '{id,kind,payload,queue,priority,run_at,delay,max_attempts,lease,key,on_conflict,lane,tenant,headers,subject}'::text[] = '{}'
    and jsonb_typeof(item -> 'kind') = 'string'
    and length(item ->> 'kind') between 1 and 200
    and holdfast.is_name(item ->> 'kind')
    and coalesce(item ->> 'id' like '________-____-____-____-____________', true)
    and holdfast.item_details_ok(item), false)
$$;

-- item_details_ok: whether the optional fields of an item hold what they should.
create or replace function holdfast.item_details_ok(item jsonb)
returns boolean
language sql stable
as $$
  select
    coalesce(jsonb_typeof(item -> 'queue') in ('string', 'null'), true)
    and (not item ? 'priority' or item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'null'))
    and (not item ?| '{max_attempts,lease,delay,run_at,key,on_conflict,lane,tenant,headers,subject}' or (
      case when coalesce(jsonb_typeof(item -> 'max_attempts'), 'null') = 'null' then true
           when jsonb_typeof(item -> 'max_attempts') <> 'number' then false
           else (item ->> 'max_attempts')::numeric between 1 and 32767 and (item ->> 'max_attempts')::numeric % 1 = 0 end
      and case when coalesce(jsonb_typeof(item -> 'lease'), 'null') = 'null' then true
           when jsonb_typeof(item -> 'lease') <> 'number' then false
           else (item ->> 'lease')::numeric > 0 and (item ->> 'lease')::numeric <= 31536000 end
      and case when coalesce(jsonb_typeof(item -> 'delay'), 'null') = 'null' then true
           when jsonb_typeof(item -> 'delay') <> 'number' then false
           else (item ->> 'delay')::numeric between 0 and 3153600000 end
      and (item ->> 'delay' is null or item ->> 'run_at' is null)
      and (item ->> 'run_at' is null or holdfast.is_time(item ->> 'run_at'))
      and coalesce(item ->> 'on_conflict', 'skip') in ('skip', 'replace', 'after')
      and coalesce(jsonb_typeof(item -> 'lane'), 'null') in ('string', 'null')
      and coalesce(jsonb_typeof(item -> 'tenant'), 'null') in ('string', 'null')
      and coalesce(jsonb_typeof(item -> 'key'), 'null') in ('string', 'number', 'null')
      and coalesce(jsonb_typeof(item -> 'subject'), 'null') in ('string', 'number', 'null')
      and coalesce(length(item ->> 'key') between 1 and 500 and octet_length(item ->> 'key') <= 1000, true)
      and coalesce(length(item ->> 'lane') between 1 and 200 and holdfast.is_name(item ->> 'lane'), true)
      and coalesce(length(item ->> 'tenant') between 1 and 200 and holdfast.is_name(item ->> 'tenant'), true)
      and coalesce(length(item ->> 'subject') between 1 and 500, true)
      and coalesce(jsonb_typeof(item -> 'headers'), 'null') in ('object', 'null')))
$$;

-- is_id: whether a text is a UUID.
create or replace function holdfast.is_id(value text)
returns boolean
language sql immutable parallel safe
as $$ select value ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' $$;

-- is_time: whether a text is a time that every client's calendar has.
create or replace function holdfast.is_time(value text)
returns boolean
language plpgsql stable
as $$
begin
  return value::timestamptz between '0001-01-02 00:00Z' and '9999-12-30 00:00Z';
exception when others then
  return false;
end
$$;

-- refuse_item: says what is wrong with an item that did not pass.
create or replace function holdfast.refuse_item(item jsonb, ord bigint, payload_limit integer)
returns void
language plpgsql
as $$
declare
  v_item  constant text := format('item %s', ord);
  v_known constant text[] := '{id,kind,payload,queue,priority,run_at,delay,max_attempts,lease,key,on_conflict,lane,tenant,headers,subject}';
  v_field text;
begin
  if jsonb_typeof(item) <> 'object' then
    perform holdfast.refuse('HF201', format('%s is not an object: %s', v_item, holdfast.told(item)), null,
      'An item looks like {"kind": "greet", "payload": {"name": "Ada"}}.');
  end if;
  select k into v_field from jsonb_object_keys(item) k where not k = any(v_known) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF201', format('%s has an unknown field %L', v_item, v_field), null,
      'Fields are: ' || array_to_string(v_known, ', ') || '.');
  end if;
  if item ->> 'kind' is null then
    perform holdfast.refuse('HF201', format('%s has no kind', v_item), null, 'The kind names the handler, for example "send_email".');
  end if;
  if not holdfast.is_id(item ->> 'id') then
    perform holdfast.refuse('HF201', format('id %L of %s is not a UUID', item ->> 'id', v_item), null, 'Leave it out, or make it with holdfast.new_id(queue).');
  end if;
  foreach v_field in array '{kind,queue,lane,tenant,key,subject}'::text[] loop
    if jsonb_typeof(item -> v_field) in ('array', 'object', 'boolean')
       or jsonb_typeof(item -> v_field) = 'number' and not v_field in ('key', 'subject') then
      perform holdfast.refuse('HF202', format('%s %s of %s is not a text', v_field, holdfast.told(item -> v_field), v_item));
    end if;
  end loop;
  perform holdfast.named('kind of ' || v_item, item ->> 'kind');
  if item ->> 'queue' is not null then
    perform holdfast.named('queue of ' || v_item, item ->> 'queue', 120);
    perform holdfast.refuse_ours(item ->> 'queue');
  end if;
  foreach v_field in array '{lane,tenant}'::text[] loop
    if item ->> v_field is not null then
      perform holdfast.named(v_field || ' of ' || v_item, item ->> v_field);
    end if;
  end loop;
  foreach v_field in array '{key,subject}'::text[] loop
    if not coalesce(length(item ->> v_field) between 1 and 500 and (v_field = 'subject' or octet_length(item ->> v_field) <= 1000), true) then
      perform holdfast.refuse('HF202', format('%s of %s is %s characters and %s bytes long', v_field, v_item, length(item ->> v_field), octet_length(item ->> v_field)),
        null, 'It may have 1 to 500 characters, a key 1000 bytes; pass a hash of what is longer.');
    end if;
  end loop;
  if item ? 'priority' and not item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'null') then
    perform holdfast.refuse('HF203', format('priority %s of %s is not a whole number from 0 to 9', holdfast.told(item -> 'priority'), v_item), null, 'Nine goes first, zero is the default.');
  end if;
  if item ->> 'run_at' is not null and not holdfast.is_time(item ->> 'run_at') then
    perform holdfast.refuse('HF204', format('run_at %L of %s is not a time', item ->> 'run_at', v_item), null, 'For example "2030-01-31T08:00:00Z".');
  end if;
  if item ->> 'delay' is not null and item ->> 'run_at' is not null then
    perform holdfast.refuse('HF204', format('%s has both delay and run_at', v_item), null, 'Give one of them.');
  end if;
  foreach v_field in array '{max_attempts,lease,delay}'::text[] loop
    if not holdfast.item_details_ok(jsonb_build_object(v_field, item -> v_field)) then
      perform holdfast.refuse('HF204', format('%s %s of %s is out of range', v_field, holdfast.told(item -> v_field), v_item), null,
        'max_attempts is a whole number from 1; lease and delay are seconds, lease above zero.');
    end if;
  end loop;
  if not coalesce(item ->> 'on_conflict', 'skip') in ('skip', 'replace', 'after') then
    perform holdfast.refuse('HF205', format('on_conflict %L of %s is not skip, replace or after', item ->> 'on_conflict', v_item));
  end if;
  if holdfast.out_of_range(item) then
    perform holdfast.refuse('HF204', format('%s of %s (%s) holds a number beyond 1e308',
      case when holdfast.out_of_range(item -> 'payload') then 'payload' else 'headers' end, v_item, item ->> 'kind'), null,
      'Numbers go up to what a double can hold, about 1.8e308; send what is larger as a string.');
  end if;
  if holdfast.item_size(item) > payload_limit then
    perform holdfast.refuse('HF210',
      format('payload of %s (%s) is %s bytes, the limit for queue %L is %s bytes', v_item, item ->> 'kind',
        holdfast.item_size(item), coalesce(item ->> 'queue', 'default'), payload_limit),
      null, 'Store the data elsewhere and pass its address, or raise payload_limit of the queue.');
  end if;
  perform holdfast.refuse('HF201', format('headers of %s must be an object, got %s', v_item, holdfast.told(item -> 'headers')));
end
$$;

-- lane_firsts: which items with a lane may be ready at once. A job may start out blocked only behind
-- one that commits together with it: any other could end unseen before, and nothing would wake this
-- one. Where the first may not be stored, or not be due, none is blocked. The claim decides; this only
-- spares it work.
create or replace function holdfast.lane_firsts(items jsonb, repeat boolean)
returns bigint[]
language sql immutable
as $$
  select case
    when repeat or items @? '$[*].key' or items @? '$[*].id' or items @? '$[*].delay' or items @? '$[*].run_at' then
      array(select generate_series(1, jsonb_array_length(items)::bigint))
    else array(
      select min(i.ord)
      from jsonb_array_elements(items) with ordinality as i(item, ord)
      where i.item ->> 'lane' is not null
      group by coalesce(i.item ->> 'queue', 'default'), i.item ->> 'lane')
  end
$$;

-- fanned_part: where a job of a fanned-out queue goes: by lane, else by key, so that their rules hold
-- inside one part; any other job anywhere.
create or replace function holdfast.fanned_part(queue text, fanout integer, item jsonb, number bigint)
returns smallint
language sql immutable
as $$
  select ((holdfast.queue_part(queue) + coalesce(
    (('x' || substr(md5(coalesce(item ->> 'lane', item ->> 'key', item ->> 'id')), 1, 8))::bit(32)::bigint), number) % fanout) % 64)::smallint
$$;

-- home: the part in which a job of a queue lives. One with a lane or a key has its one place there; any other
-- may stay where it is. Null: it has both, and they could not be kept in one place.
create or replace function holdfast.home(queue text, fanout integer, lane text, key text, id uuid)
returns smallint
language sql immutable
as $$
  select case
    when fanout = 1 then holdfast.queue_part(queue)
    when lane is not null and key is not null then null
    when lane is null and key is null and (holdfast.part_of(id) - holdfast.queue_part(queue) + 4096) % 64 < fanout
         and holdfast.part_of(id) < 64 then holdfast.part_of(id)
    else holdfast.fanned_part(queue, fanout, jsonb_build_object('lane', lane, 'key', key, 'id', id), 0)
  end
$$;

-- known_before: those of the ids whose jobs were stored by an earlier sending and have since been
-- claimed, moved or have ended. A job that still waits is met by its id, and must be: the repeat has
-- to write. A finished one left only its traces, for as long as receipts are kept. Only traces in the item's own
-- queue count: a job of another that has the same number is another job.
create or replace function holdfast.known_before(ids uuid[], items jsonb)
returns uuid[]
language sql stable
as $$
  with given as materialized (
    select g.id, coalesce(items -> (g.ord - 1)::integer ->> 'queue', 'default') as queue
    from unnest(known_before.ids) with ordinality g(id, ord)
  )
  select array(
    select g.id
    from given g
    where not exists (select from holdfast.job j where j.part = holdfast.part_of(g.id) and j.id = g.id)
      and (holdfast.locate(g.id, g.queue) is not null
           or exists (select from holdfast.alias a where a.part = holdfast.part_of(g.id) and a.id = g.id and a.queue = g.queue))
    union
    select leased.id
    from holdfast.lease l
    cross join lateral unnest(l.ids) leased(id)
    join given g on g.id = leased.id and g.queue = l.queue
    where not exists (select from holdfast.job j where j.part = l.part and j.id = leased.id))
$$;

-- take_back: of rows just stored by a repeat, remove those whose job had already been claimed: it ended
-- while the repeat waited for its key.
create or replace function holdfast.take_back(ids uuid[])
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_known uuid[];
begin
  v_known := array(
    select leased.id
    from holdfast.lease l
    cross join lateral unnest(l.ids) leased(id)
    join unnest(take_back.ids) s(id) on s.id = leased.id
    join holdfast.job j on j.part = any(array[holdfast.part_of(s.id)]) and j.id = s.id and j.queue = l.queue);
  if cardinality(v_known) > 0 then
    with removed as (
      delete from holdfast.job j
      where j.id = any(v_known) and j.part = holdfast.part_of(j.id)
      returning j.part, j.queue, j.kind
    )
    insert into holdfast.tally (part, queue, kind, queued, enqueued)
    select r.part, r.queue, r.kind, -count(*), -count(*)
    from removed r
    group by r.part, r.queue, r.kind;
  end if;
  return v_known;
end
$$;

-- enqueue_again: the careful way for one item that a plain insert did not store: a repeat of itself,
-- or a key that is taken. in_order: it may change jobs that the caller has locked, and no others, and take no key
-- that is free: others may be waiting for what the caller took after it. Raises HFAGN.
create or replace function holdfast.enqueue_again(
  item jsonb, wanted uuid, at timestamptz, repeat boolean, in_order boolean, out id uuid, out created boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part   constant smallint := holdfast.part_of(wanted);
  v_policy constant text := coalesce(item ->> 'on_conflict', 'skip');
  v_ready  boolean;
  rival    holdfast.job;
  g        record;
begin
  select i.queue, i.kind, i.run_at, i.tenant, i.by_kind, i.max_attempts,
         item ->> 'lane' as lane, item ->> 'key' as key, item ->> 'subject' as subject,
         coalesce(nullif(item -> 'priority', 'null')::smallint, 0::smallint) as priority,
         make_interval(secs => (item ->> 'lease')::double precision) as lease_for,
         nullif(item -> 'headers', 'null') as headers, coalesce(item -> 'payload', '{}') as payload
  into g
  from holdfast.items_of(jsonb_build_array(item), at, 0) i;
  v_ready := g.run_at <= at;

  for turn in 1 .. 10 loop
    if in_order then
      perform holdfast.own_or_again(v_part, wanted);
    end if;
    -- The repeat has to write: on a primary that has lost its standby a mere look would be confirmed
    -- although the job is about to vanish.
    update holdfast.job j set queue = j.queue
    where j.part = v_part and j.id = wanted
    returning j.* into rival;
    if found then
      if (rival.queue, rival.kind) is distinct from (g.queue, g.kind) then
        perform holdfast.refuse('HF206', format('id %s belongs to a job of kind %L in queue %L', wanted, rival.kind, rival.queue),
          null, 'Make a fresh id for each job: holdfast.new_id(queue).');
      end if;
      id := wanted;
      created := true;
      return;
    end if;

    select j.* into rival
    from holdfast.job j
    where j.part = v_part and j.queue = g.queue and j.kind = g.kind and j.key = g.key and not j.follow;

    if in_order then
      if not found then
        raise exception using errcode = 'HFAGN', message = 'a key became free';
      elsif rival.token is null and v_policy <> 'skip' then
        perform holdfast.own_or_again(v_part, rival.id);
      end if;
    end if;
    if rival.id is null then
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, lease_for, key, lane, tenant,
        subject, headers, payload, by_kind, lane_seq, pos)
      values (
        v_part, wanted, g.queue, g.kind, g.priority, g.run_at, at, g.max_attempts, g.lease_for, g.key, g.lane, g.tenant,
        g.subject, g.headers, g.payload, g.by_kind,
        case when v_ready and g.lane is not null then nextval('holdfast.pos') end,
        case when v_ready then nextval('holdfast.pos') end)
      on conflict do nothing
      returning id into id;
      created := found;
      if created then
        insert into holdfast.tally (part, queue, kind, queued, enqueued) values (v_part, g.queue, g.kind, 1, 1);
        perform holdfast.note_enqueued(v_part, id, g.queue, g.kind, at);
        if repeat then
          perform holdfast.take_back(array[wanted]);   -- it ended while this call looked away
        end if;
        return;
      end if;
      continue;
    elsif rival.token is null and v_policy = 'skip' then
      id := rival.id;
      created := false;
      return;
    elsif rival.token is null and v_policy = 'after' then
      -- What waits serves as well, if it does not start before the caller's changes can be seen.
      perform from holdfast.job j where j.part = v_part and j.id = rival.id and j.token is null for update;
      continue when not found;
      id := rival.id;
      created := false;
      return;
    elsif rival.token is null then
      update holdfast.job j
      set payload = g.payload, headers = g.headers, priority = g.priority, max_attempts = g.max_attempts,
          lease_for = g.lease_for, subject = g.subject, run_at = g.run_at, attempt = 0, attempts_before = null, error = null,
          strike   = null,
          blocked  = j.blocked and v_ready and j.strike is null,
          lane_seq = case when v_ready then coalesce(j.lane_seq, case when j.lane is not null then nextval('holdfast.pos') end) end,
          pos      = case
            when not v_ready or j.blocked and j.strike is null then null
            when j.pos is not null and j.priority = g.priority then j.pos
            else nextval('holdfast.pos')
          end
      where j.part = v_part and j.id = rival.id and j.token is null
      returning j.id into id;
      if found then
        created := false;
        return;
      end if;
      continue;   -- claimed in between: look again
    elsif v_policy = 'skip' then
      id := rival.id;
      created := false;
      return;
    else
      -- It runs now. One follow-up waits for its end; a later one joins it, or takes its place.
      select j.id into id
      from holdfast.job j
      where j.part = v_part and j.queue = g.queue and j.kind = g.kind and j.key = g.key and j.follow;
      if found then
        if in_order then
          perform holdfast.own_or_again(v_part, id);
        end if;
        perform from holdfast.job j where j.part = v_part and j.id = enqueue_again.id and j.follow for update;
        continue when not found;
        if v_policy = 'replace' then
          update holdfast.job j
          set payload = g.payload, headers = g.headers, priority = g.priority, run_at = g.run_at, subject = g.subject
          where j.part = v_part and j.id = enqueue_again.id;
        end if;
        created := false;
        return;
      end if;
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, lease_for, key, lane, tenant,
        subject, headers, payload, by_kind, follow, blocked, pos)
      values (
        v_part, wanted, g.queue, g.kind, g.priority, g.run_at, at, g.max_attempts, g.lease_for, g.key, g.lane, g.tenant,
        g.subject, g.headers, g.payload, g.by_kind, true, true, null)
      on conflict do nothing
      returning id into id;
      if found then
        created := true;
        insert into holdfast.tally (part, queue, kind, queued, enqueued) values (v_part, g.queue, g.kind, 1, 1);
        perform holdfast.note_enqueued(v_part, id, g.queue, g.kind, at);
        return;
      elsif in_order then
        raise exception using errcode = 'HFAGN', message = 'somebody else was first to follow';
      end if;
    end if;
  end loop;
  raise exception using
    errcode = 'serialization_failure',
    message = format('key %L of kind %L changed hands too often to be enqueued', g.key, g.kind),
    hint = 'Repeat the transaction.';
end
$$;

-- own_or_again: lock a job without waiting; raise HFAGN if it is somebody else's.
create or replace function holdfast.own_or_again(part smallint, id uuid)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  perform from holdfast.job j where j.part = own_or_again.part and j.id = own_or_again.id for update skip locked;
  if not found and exists (select from holdfast.job j where j.part = own_or_again.part and j.id = own_or_again.id) then
    raise exception using errcode = 'HFAGN', message = 'somebody else is at a job that has the key';
  end if;
end
$$;

-- note_enqueued: put one enqueued job on record, if its queue's log has every event.
create or replace function holdfast.note_enqueued(part smallint, id uuid, queue text, kind text, at timestamptz)
returns void
language sql volatile
as $$
  insert into holdfast.event (at, slot, part, job, event, state, queue, kind)
  select note_enqueued.at, holdfast.event_slot(note_enqueued.at), note_enqueued.part, note_enqueued.id, 'enqueued', 'queued',
         note_enqueued.queue, note_enqueued.kind
  where holdfast.is_told(note_enqueued.queue)
$$;

-- copied: what a COPY into holdfast.job owes in the same transaction: the counters and the wake-up.
create or replace function holdfast.copied(queue text, kinds text[], counts bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_jobs constant bigint := coalesce((select sum(c) from unnest(counts) c), 0);
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_ours(queue);
  perform holdfast.named('kind', k) from unnest(kinds) k;
  if cardinality(kinds) is distinct from cardinality(counts) or exists (select from unnest(counts) c where c is null or c < 0) then
    perform holdfast.refuse('HF208', 'counts must be one number from zero for each kind');
  end if;
  if exists (select from holdfast.queue q where q.name = copied.queue and q.adopted is not null) then
    perform holdfast.refuse_adopted(queue);
  end if;
  perform holdfast.refuse_elsewhere(queue);
  insert into holdfast.tally (part, queue, kind, queued, enqueued)
  select holdfast.queue_part(copied.queue), copied.queue, c.kind, c.jobs, c.jobs
  from unnest(kinds, counts) c(kind, jobs);
  insert into holdfast.event (at, slot, part, jobs, event, state, queue, kind)
  select holdfast.now(), holdfast.event_slot(holdfast.now()), holdfast.queue_part(copied.queue), c.jobs, 'enqueued', 'queued', copied.queue, c.kind
  from unnest(kinds, counts) c(kind, jobs)
  where holdfast.is_told(copied.queue) and not holdfast.is_watched(copied.queue);
  if holdfast.is_told(queue) and holdfast.is_watched(queue) then
    perform holdfast.note_copied(queue, v_jobs);
  end if;
  if exists (select from holdfast.queue q where q.name = copied.queue and (q.fair or q.by_kind)) then
    perform holdfast.apply_to_copied(queue, v_jobs);
  end if;
  perform holdfast.wake(array[copied.queue], v_jobs);
end
$$;

-- refuse_elsewhere: refuse jobs of a queue that were written into parts where nobody looks for them. Not seen when a
-- row is written: a queue's part costs as much as all that is looked at there.
create or replace function holdfast.refuse_elsewhere(queue text)
returns void
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := coalesce((select q.fanout from holdfast.queue q where q.name = refuse_elsewhere.queue), 1);
  v_id     uuid;
begin
  select j.id into v_id
  from generate_series(v_fanout, 63) step
  cross join lateral (
    select x.id from holdfast.job x
    where x.part = ((v_base + step) % 64)::smallint and x.queue = refuse_elsewhere.queue and x.pos is not null
    limit 1
  ) j
  limit 1;
  if found then
    perform holdfast.refuse('HF206', format('part %s of job %s is not one of queue %L', holdfast.part_of(v_id), v_id, queue), null,
      format('Make the id with holdfast.new_id(%L), and the part with holdfast.part_of(id).', queue));
  end if;
end
$$;

-- note_copied: put jobs that this transaction has copied on record one by one, for somebody watches. Looks for them
-- as apply_to_copied does; for rows that wait for their time it looks at the whole queue.
create or replace function holdfast.note_copied(queue text, jobs bigint)
returns void
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_xid    constant bigint := pg_current_xact_id()::text::bigint;
  v_epoch  constant bigint := v_xid - v_xid % 4294967296;
  v_next   constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_last   constant bigint := (select p.last_value from holdfast.pos p);
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := coalesce((select x.fanout from holdfast.queue x where x.name = note_copied.queue), 1);
  v_back   bigint := jobs * 2 + 200;
  v_told   holdfast.events[];
begin
  loop
    select array_agg(row(null, holdfast.now(), 'enqueued', j.id, note_copied.queue, j.kind, 'queued', null, 1, null, null, null, null)::holdfast.events
             order by j.pos, j.id)
    into v_told
    from generate_series(0, v_fanout - 1) step
    cross join lateral (
      select x.part, x.id, x.kind, x.pos
      from generate_series(0, 9) level
      cross join lateral (
        select y.part, y.id, y.kind, y.pos, y.xmin
        from holdfast.job y
        where y.part = ((v_base + step) % 64)::smallint and y.queue = note_copied.queue and y.priority = level::smallint
          and y.pos > v_last - v_back and v_back < v_last
        union all
        select y.part, y.id, y.kind, y.pos, y.xmin
        from holdfast.job y
        where y.part = ((v_base + step) % 64)::smallint and y.queue = note_copied.queue and y.priority = level::smallint
          and v_back >= v_last
      ) x
      where case when v_epoch + x.xmin::text::bigint between v_xid and v_next - 1
            then pg_xact_status((v_epoch + x.xmin::text::bigint)::text::xid8) = 'in progress'
            else v_epoch + x.xmin::text::bigint >= v_next end
        -- a transaction may copy more than once
        and not exists (select from holdfast.event e where e.part = x.part and e.job = x.id)
    ) j;
    exit when cardinality(v_told) >= jobs or v_back >= v_last;
    v_back := least(v_back * 8, v_last);
  end loop;
  if v_told is not null then
    perform holdfast.note_events(v_told);
  end if;
end
$$;

-- apply_to_copied: as apply_settings, for rows that this transaction has copied. They stand at the end of the ready
-- order, among what others put there meanwhile: looks back from there, further and further, until it has met as many
-- of its own as there should be. Rows that wait for their time or their lane are not in that order: for them it
-- looks at the whole queue.
create or replace function holdfast.apply_to_copied(queue text, jobs bigint)
returns void
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_xid   constant bigint := pg_current_xact_id()::text::bigint;
  v_epoch constant bigint := v_xid - v_xid % 4294967296;
  v_next  constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_last  constant bigint := (select p.last_value from holdfast.pos p);
  v_base  constant smallint := holdfast.queue_part(queue);
  v_back  bigint := jobs * 2 + 200;
  q       holdfast.queue;
  own     record;
begin
  select x.* into q from holdfast.queue x where x.name = apply_to_copied.queue;
  loop
    -- A row that is seen although its transaction is under way is this transaction's.
    select count(*) as jobs, array_agg(j.ctid) filter (where q.by_kind and not j.by_kind or q.fair and j.tenant is null) as rows
    into own
    from generate_series(0, q.fanout - 1) step
    cross join generate_series(0, 9) level
    cross join lateral (
      select x.ctid, x.by_kind, x.tenant
      from holdfast.job x
      where x.part = ((v_base + step) % 64)::smallint and x.queue = q.name and x.priority = level::smallint and x.pos > v_last - v_back
        and case when v_epoch + x.xmin::text::bigint between v_xid and v_next - 1
            then pg_xact_status((v_epoch + x.xmin::text::bigint)::text::xid8) = 'in progress'
            else v_epoch + x.xmin::text::bigint >= v_next end
      order by x.pos
    ) j;
    exit when own.jobs >= apply_to_copied.jobs;
    if v_back >= v_last then
      perform holdfast.apply_settings(queue);
      return;
    end if;
    v_back := v_back * 8;
  end loop;
  update holdfast.job j
  set by_kind = q.by_kind or j.by_kind, tenant = case when q.fair then coalesce(j.tenant, '') else j.tenant end
  where j.ctid = any(own.rows);
end
$$;

-- wake: tell idle workers of these queues, when the caller's transaction commits. Only those that said they wait
-- are told, each once: a busy fleet costs its producers no notification, which would serialise their commits.
-- Here it is only noted: to take somebody from the list before the commit would keep others from waking him, for
-- as long as the transaction is open.
create or replace function holdfast.wake(queues text[], jobs bigint)
returns void
language plpgsql
as $$
declare
  v_rung  jsonb;     -- of each queue, for how many jobs this transaction has rung already
  v_queue text;
  v_more  integer;
begin
  if not exists (select from holdfast.waiter w where w.queue = any(queues) and w.until > holdfast.now()) then
    return;
  end if;
  v_rung := coalesce(nullif(current_setting('holdfast.rung', true), ''), '{}');
  for v_queue in select distinct q from unnest(queues) q loop
    v_more := least(jobs, 16 - coalesce((v_rung ->> v_queue)::integer, 0));
    continue when v_more <= 0;
    -- Whoever had all constraints checked at once would have who waits taken from the list now, and be the only one
    -- to tell them while its transaction is open.
    set constraints holdfast.ring deferred;
    insert into holdfast.bell (queue, jobs) values (v_queue, v_more);
    v_rung := v_rung || jsonb_build_object(v_queue, coalesce((v_rung ->> v_queue)::integer, 0) + v_more);
  end loop;
  perform set_config('holdfast.rung', v_rung::text, true);
end
$$;

-- wake_for_ready: the same for one queue, if somebody waits and jobs are ready.
create or replace function holdfast.wake_for_ready(queue text, jobs bigint)
returns void
language plpgsql
as $$
begin
  if exists (select from holdfast.waiter w where w.queue = wake_for_ready.queue and w.until > holdfast.now())
     and holdfast.oldest(queue, coalesce((select q.fanout from holdfast.queue q where q.name = wake_for_ready.queue), 1)) is not null then
    perform holdfast.wake(array[wake_for_ready.queue], jobs);
  end if;
end
$$;

-- ring: what was noted for the commit is done in it. A transaction that is being prepared may not notify: what it
-- noted is kept, and upkeep rings once it is committed.
create or replace function holdfast.ring()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if holdfast.is_preparing(current_query()) then
    update holdfast.bell b set kept = true where b.nth = new.nth;
    return null;
  end if;
  delete from holdfast.bell b where b.nth = new.nth;
  if new.queue is not null then
    perform holdfast.tell_waiters(new.queue, new.jobs);
  end if;
  if new.worker is not null then
    perform pg_notify('holdfast', E'\n' || new.worker);
  end if;
  return null;
end
$$;

-- is_preparing: whether a query prepares its transaction. What it only speaks of, in literals, names or comments, is
-- taken out first; most queries have neither word.
create or replace function holdfast.is_preparing(query text)
returns boolean
language sql immutable
as $$
  select coalesce(query ~* '\mprepare\M' and query ~* '\mtransaction\M' and regexp_replace(query,
    -- {1,1}? makes it end at the first end that it can have
    '(?:\me''(?:[^''\\]|\\.)*''|''[^'']*''|"[^"]*"|\$(\w*)\$.*\$\1\$|/\*.*\*/|--[^\n]*(?:\n|$)){1,1}?', ' ', 'gi')
    ~* '\mprepare\s+transaction\M', false)
$$;

-- tell_waiters: notify as many of those who wait for a queue as it has jobs, and take them from the list. Workers
-- that know other kinds are counted apart: who is told may not be able to do it. The one who registered last
-- comes first: who is frozen or cut off is not likely to be among the latest. Whoever's listener is gone is
-- only taken from the list. Waits for nobody.
create or replace function holdfast.tell_waiters(queue text, jobs integer)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_left integer;
  these  record;
  one    record;
begin
  for these in
    select distinct w.kinds from holdfast.waiter w where w.queue = tell_waiters.queue and w.until > holdfast.now()
  loop
    v_left := jobs;
    while v_left > 0 loop
      delete from holdfast.waiter w
      where w.ctid = any(array(
        select x.ctid
        from holdfast.waiter x
        where x.queue = tell_waiters.queue and x.until > holdfast.now() and x.kinds is not distinct from these.kinds
        order by x.until desc
        limit 1
        for update skip locked))
      returning w.worker, w.ear into one;
      exit when not found;
      -- Shared among those who ask; only the session that listens has it for itself.
      continue when one.ear is not null and pg_try_advisory_xact_lock_shared(4917, one.ear);
      delete from holdfast.waiter w
      where w.ctid = any(array(
        select x.ctid
        from holdfast.waiter x
        where x.queue = tell_waiters.queue and x.until > holdfast.now() and x.worker = one.worker
        for update skip locked));
      perform pg_notify('holdfast', tell_waiters.queue || E'\n' || one.worker);
      v_left := v_left - 1;
    end loop;
  end loop;
end
$$;

-- ring_kept: ring for transactions that were prepared, and are committed by now.
create or replace function holdfast.ring_kept()
returns integer
language plpgsql
as $$
declare
  v_rung integer;
begin
  if not exists (select from holdfast.bell b where b.kept) then
    return 0;
  end if;
  with late as (
    delete from holdfast.bell b
    where b.nth = any(array(select x.nth from holdfast.bell x where x.kept order by x.nth limit 1000 for update skip locked))
    returning b.queue, b.jobs, b.worker
  )
  insert into holdfast.bell (queue, jobs, worker)
  select l.queue, least(sum(l.jobs), 16), l.worker
  from late l
  group by l.queue, l.worker;
  get diagnostics v_rung = row_count;
  return v_rung;
end
$$;

-- await_work: an idle worker asks to be woken by the next enqueue into one of these queues. kinds are those it
-- knows, if not all; ear is what hear() gave to the session that listens.
-- NOTIFY is only a hint: whoever waits also polls.
create or replace function holdfast.await_work(
  queues text[], worker text, patience interval default '1 minute', kinds text[] default null, ear integer default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('worker', worker);
  perform holdfast.named('queue', q, 120) from unnest(queues) q;
  perform holdfast.named('kind', k) from unnest(kinds) k;
  if patience is null then
    perform holdfast.refuse('HF204', 'patience is missing', null, 'Say how long to be remembered, for example ''1 minute''.');
  end if;
  perform holdfast.check_length('patience', patience, '1 day');
  insert into holdfast.waiter (queue, until, worker, kinds, ear)
  select q, holdfast.now() + patience, await_work.worker,
         case when await_work.kinds is not null then array(select distinct k from unnest(await_work.kinds) k order by k) end, await_work.ear
  from unnest(queues) q;
end
$$;

-- hear: for the session that listens: a number by which others can tell that it lives, for await_work. It is a
-- lock of this session, which ends when the session does, however that comes about.
create or replace function holdfast.hear()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ear integer;
begin
  loop
    v_ear := floor(random() * 2147483647)::integer;
    exit when pg_try_advisory_lock(4917, v_ear);
  end loop;
  return v_ear;
end
$$;

-- pass_on: a worker that was woken hands the wake-up to another who waits, if jobs are left: because it cannot take one
-- now, or because it took as many as it could.
create or replace function holdfast.pass_on(queue text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.wake_for_ready(queue, 1);
end
$$;

-- ping: notify one worker, without a queue: for testing that it hears, and for having it look at its leases.
create or replace function holdfast.ping(worker text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('worker', worker);
  perform pg_notify('holdfast', E'\n' || ping.worker);
end
$$;

-- check_row: refuse a row that a producer inserted and enqueue would not have stored.
create or replace function holdfast.check_row()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.run_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z' and new.created_at between '2000-01-01 00:00Z' and '9999-12-30 00:00Z'
     and new.max_attempts >= 1 and new.part between 0 and 63 and new.part = holdfast.part_of(new.id) and holdfast.queue_ok(new.queue)
     and length(new.kind) between 1 and 200 and holdfast.is_name(new.kind)
     and new.tenant is null and new.subject is null and new.headers is null
     and pg_column_size(new.payload) <= 4000 and octet_length(new.payload::text) <= 300 then
    return null;   -- most of them
  end if;
  perform holdfast.named('queue', new.queue, 120);
  perform holdfast.refuse_ours(new.queue);
  perform holdfast.named('kind', new.kind);
  if new.tenant <> '' then
    perform holdfast.named('tenant', new.tenant);
  end if;
  if not holdfast.is_time(new.run_at::text) or not holdfast.is_time(new.created_at::text) or new.created_at < '2000-01-01 00:00Z' then
    perform holdfast.refuse('HF204', format('run_at %s or created_at %s is out of range', new.run_at, new.created_at), null,
      'For example "2030-01-31T08:00:00Z".');
  end if;
  if new.max_attempts < 1 or not new.part between 0 and 63 then
    perform holdfast.refuse('HF204', format('max_attempts %s or part %s is out of range', new.max_attempts, new.part), null,
      'max_attempts is a whole number from 1; part is that of the queue, holdfast.queue_part(queue).');
  end if;
  if holdfast.part_of(new.id) <> new.part then
    perform holdfast.refuse('HF206', format('id %s carries part %s, and the row has part %s', new.id, holdfast.part_of(new.id), new.part), null,
      format('Make the id with holdfast.new_id(%L), and the part with holdfast.part_of(id).', new.queue));
  end if;
  perform holdfast.check_items(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('kind', new.kind, 'queue', new.queue, 'subject', new.subject))
    || jsonb_build_object('payload', new.payload, 'headers', new.headers)));
  return null;
end
$$;
