-- enqueue: store jobs, one or many, inside the caller's transaction. Returns one row per item: its job, and whether
-- the call created it. repeat means "this may have been sent before": jobs that are already stored return the same
-- row as then. behind is the job that a job of a lane, of a queue at its limit, or a follow-up waits for; null if
-- none. If that job is running, holder is its worker, since held_since.
create or replace function holdfast.enqueue(items jsonb, repeat boolean default false)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
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
  v_queue  holdfast.queue;
  v_ids    uuid[];
  v_behind uuid;            -- what all of a plain batch wait for
  v_holder text;
  v_since  timestamptz;
  batch    record;
  done     record;
begin
  if jsonb_typeof(items) = 'object' then
    items := jsonb_build_array(items);
  elsif items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects',
      format('got %s', coalesce(holdfast.told(items), 'null')),
      'For example: select * from holdfast.enqueue(''[{"kind": "greet", "payload": {"name": "Ada"}}]'')');
  end if;

  if jsonb_array_length(items) = 1 and not repeat and not items -> 0 ?| '{lane,delay,run_at}' then
    id := holdfast.store_item(items -> 0, v_now);
    if id is not null then
      ord := 1;
      created := true;
      return next;
      return;
    end if;
  end if;

  select count(*) as jobs, bool_and(holdfast.item_fields_ok(i.item, i.more)) as fine,
         max(case when pg_column_size(i.body) > 4000 then 2147483647 else octet_length(i.body::text) end) as largest,
         min(i.item ->> 'queue' collate "C") as first_queue, max(i.item ->> 'queue' collate "C") as last_queue,
         count(i.item ->> 'queue') as queues, count(i.item ->> 'id') as ids,
         bool_and(coalesce(i.more = '{}', false)) as plain, count(i.more ->> 'key') as keys,
         bool_and(coalesce(i.more - 'key' = '{}', false)) as simple   -- at most a key beside what is plain
  into batch
  from (
    select x.item, coalesce(x.item -> 'payload', '{}') as body,
           case when jsonb_typeof(x.item) = 'object' then x.item - holdfast.plain_fields() end as more
    from jsonb_array_elements(items) x(item)
    offset 0
  ) i;
  if batch.jobs = 0 then
    return;
  end if;
  v_names := case
    when batch.queues = 0 then array['default']
    when batch.queues = batch.jobs and batch.first_queue = batch.last_queue then array[batch.first_queue]
    else holdfast.queues_of(items)
  end;
  if batch.largest > 300 or not batch.simple then   -- what is shorter cannot hold a number of too many digits
    batch.largest := holdfast.largest_of(items, batch.largest, batch.simple);
  end if;
  if not batch.fine or batch.largest > 100000 or not holdfast.queues_ok(v_names) then
    perform holdfast.check_items(items);
  end if;

  if batch.plain and not repeat and cardinality(v_names) = 1 then
    select q.* into v_queue from holdfast.queue q where q.name = v_names[1];
    if not found then
      v_queue := holdfast.unset_queue(v_names[1]);
    end if;
    if v_queue.fanout = 1 and v_queue.adopted is null and v_queue.node is null
       and batch.largest <= v_queue.payload_limit then
      v_ids := holdfast.store_plain(items, v_queue, v_now, v_seed, batch.ids > 0);
      if cardinality(v_ids) = batch.jobs then
        if v_queue.lease_limit is not null then
          v_behind := holdfast.held_first(v_queue.name);
          select h.worker, h.since into v_holder, v_since from holdfast.holders(array[v_behind]) h;
        end if;
        return query
          select o.ord::integer, o.id, true, null::uuid, v_behind, v_holder, v_since
          from unnest(v_ids) with ordinality as o(id, ord);
        return;
      end if;
      -- some of the ids were there before: on the long way, which leaves what is stored by now
    end if;
  end if;

  if batch.simple and batch.keys = batch.jobs and batch.jobs >= 10 and not repeat and cardinality(v_names) = 1 then
    v_ids := holdfast.store_keys(items, v_names[1], batch.largest, v_now, v_seed);
    if v_ids is not null then
      return query
        select o.ord::integer, o.id, true, null::uuid, null::uuid, null::text, null::timestamptz
        from unnest(v_ids) with ordinality as o(id, ord);
      return;
    end if;
  end if;
  if v_ids is null and (holdfast.lives_elsewhere(v_names) or repeat and holdfast.moved_lately(v_names)) then
    return query select p.* from holdfast.enqueue_placed(items, repeat) p;
    return;
  elsif not batch.simple
     and (items @? '$[*].after' or items @? '$[*].workflow' or items @? '$[*].child_of') then
    return query
      select a.ord, a.id, a.created, a.duplicate_of, a.behind, a.holder, a.held_since
      from holdfast.enqueue_linked(items, repeat, v_names, batch.ids, batch.largest, v_now, v_seed) a;
    return;
  end if;
  if batch.jobs > 1 and not batch.plain and items @? '$[*].key' then
    select e.* into done
    from holdfast.enqueue_keys(items, repeat, v_names, batch.ids, batch.largest, v_now, v_seed) e;
  else
    select e.* into done
    from holdfast.enqueue_any(items, repeat, v_names, batch.ids, batch.largest, v_now, v_seed, v_ids, false) e;
  end if;
  return query
    select a.ord, a.id, a.created, a.duplicate_of, a.behind, a.holder, a.held_since
    from holdfast.enqueue_answers(done.ids, done.rivals, done.lanes, done.limited, done.helds) a;
end
$$;

-- enqueue_one: store one job with at most an id, a kind, a payload and a priority: what enqueue does, without an array
-- to read and to return. Null: it was created under this id, and waits for no other. Otherwise the answer of enqueue,
-- as an object.
create or replace function holdfast.enqueue_one(
  id uuid, kind text, queue text default 'default', payload jsonb default '{}', priority smallint default 0,
  repeat boolean default false)
returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
  if not repeat and holdfast.store_one(id, kind, queue, payload, priority, holdfast.clock()) then
    return null;
  end if;
  return (
    select to_jsonb(e) - 'ord'
    from holdfast.enqueue(jsonb_build_object(
      'id', id, 'kind', kind, 'queue', queue, 'payload', coalesce(payload, '{}'), 'priority', priority), repeat) e);
end
$$;

-- enqueue_answers: one row for each job of a call. rivals has, for an item that was not stored, the job that has its
-- key or id.
create or replace function holdfast.enqueue_answers(
  ids uuid[], rivals uuid[], lanes boolean, limited text[], helds uuid[])
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  if rivals is null and not lanes and cardinality(limited) = 0 then   -- nothing can be before them
    return query
      select o.ord::integer, o.id, true, null::uuid, null::uuid, null::text, null::timestamptz
      from unnest(ids) with ordinality as o(id, ord);
    return;
  end if;
  return query
    with given as materialized (
      select u.ord, u.id, u.rival from unnest(ids, rivals) with ordinality u(id, rival, ord)
    ), ahead as materialized (
      select a.ord, a.behind, a.runs
      from holdfast.ahead(
        array(select case when g.rival is null then g.id end from given g order by g.ord), limited, helds) a
    ), holders as materialized (
      select h.* from holdfast.holders(array(select distinct a.behind from ahead a where a.runs)) h
    )
    select g.ord::integer, g.id, g.rival is null, g.rival, a.behind, h.worker, h.since
    from given g
    join ahead a on a.ord = g.ord
    left join holders h on h.id = a.behind
    order by g.ord;
end
$$;

-- enqueue_keys: several jobs, some with keys, or one whose key is taken and that may change who has it. Jobs are
-- locked in order, then keys. If a key was taken at its turn and is free now, or a job appeared after the others were
-- locked, going on could deadlock: then everything is undone, and done again with the current state. A look that
-- waited for a job holds it even if it no longer fits: so one key alone can be locked in two orders.
create or replace function holdfast.enqueue_keys(
  items jsonb, repeat boolean, names text[], given bigint, largest bigint, at timestamptz, seed bigint,
  out ids uuid[], out rivals uuid[], out lanes boolean, out limited text[], out helds uuid[])
language plpgsql
as $$
#variable_conflict use_column
begin
  for turn in 1 .. 100 loop
    begin
      select e.* into ids, rivals, lanes, limited, helds
      from holdfast.enqueue_any(items, repeat, names, given, largest, at, seed, null, true) e;
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

-- enqueue_any: the general path, for jobs with details. stored are those that the fast path has written. in_order: it
-- may wait for jobs and keys only in their order, and raises HFAGN otherwise. locked: the caller has locked the jobs
-- that it may change. Returns the id for each item; rivals, if not all were stored; whether some have lanes; queues
-- that have a limit (limited), and what the jobs of each wait for (helds).
create or replace function holdfast.enqueue_any(
  items jsonb, repeat boolean, names text[], given bigint, largest bigint, at timestamptz, seed bigint, stored uuid[],
  in_order boolean, locked boolean default false,
  out ids uuid[], out rivals uuid[], out lanes boolean, out limited text[], out helds uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_jobs   constant integer := jsonb_array_length(items);
  v_keys   constant boolean := items @? '$[*].key';
  v_queue  holdfast.queue;
  v_name   text;
  v_firsts bigint[];        -- items that may be ready at once although they have a lane
  v_past   uuid[] := '{}';  -- ids of an earlier sending whose jobs were claimed or have ended
  v_order  bigint[];        -- in which items are written …
  v_places bigint[];        -- … and their places in the ready order, if that is another
begin
  lanes := items @? '$[*].lane';
  limited := '{}';
  helds := '{}';
  if lanes or v_keys then
    -- Where such a job lives depends on its queue's fanout, which changes only while nobody holds this lock: it
    -- comes before the settings are read. A snapshot that is older than it must not be trusted.
    lock table holdfast.job in row exclusive mode;
    if current_setting('transaction_isolation') <> 'read committed' then
      perform from holdfast.queue q where q.name = any(names) order by q.name for share;
    end if;
  end if;
  if lanes then
    v_firsts := holdfast.lane_firsts(items, repeat);
  end if;
  if v_keys or repeat or given not in (0, v_jobs) or cardinality(names) > 1 then
    ids := holdfast.ids_of(items, names, at, seed);
  end if;
  if repeat then
    v_past := holdfast.known_before(ids, items);
  end if;
  if v_keys then
    -- Written in the order of keys, so that two imports of the same things cannot deadlock, but placed
    -- in the order given. A place may be drawn only under the table's lock: floors rely on it.
    v_places := array(select nextval('holdfast.pos') from generate_series(1, v_jobs));
    v_order := array(
      select i.ord
      from jsonb_array_elements(items) with ordinality as i(item, ord)
      order by i.item ->> 'kind' collate "C", i.item ->> 'key' collate "C", i.ord);
  else
    v_order := array(select generate_series(1, v_jobs));
  end if;
  if in_order and not locked then
    perform holdfast.lock_rivals(items, ids, repeat or given > 0);
  end if;

  foreach v_name in array names loop
    v_queue := holdfast.settings_of(v_name);
    if v_queue.adopted is not null then
      perform holdfast.refuse_adopted(v_name);
    end if;
    if largest > v_queue.payload_limit then
      perform holdfast.check_items(items);
    end if;
    if v_queue.fanout > 1 and lanes and v_keys then
      perform holdfast.refuse_both(items, v_name);
    end if;
    if v_queue.fanout > 1 and ids is null then
      ids := holdfast.ids_of(items, names, at, seed);
    end if;
    stored := stored || holdfast.store_items(items, case
        when cardinality(names) = 1 and not repeat then v_order
        else array(
          select o.ord
          from unnest(v_order) o(ord)
          where coalesce(items -> (o.ord - 1)::integer ->> 'queue', 'default') = v_name
            and not ids[o.ord] = any(v_past))
      end, v_queue, ids, v_firsts, v_places, at, seed);
    if v_queue.lease_limit is not null then
      limited := array_append(limited, v_name);
      helds := array_append(helds, holdfast.held_first(v_name));
    end if;
  end loop;

  if repeat then
    v_past := v_past || holdfast.take_back(stored);
  end if;
  if cardinality(stored) = v_jobs then
    ids := coalesce(ids, stored);
  elsif not in_order and items @? '$[*].on_conflict ? (@ == "replace" || @ == "after")' then
    -- A job that waits may have to be locked: again, in the order of all
    select e.* into ids, rivals, lanes, limited, helds
    from holdfast.enqueue_keys(items, repeat, names, given, largest, at, seed) e;
  else
    ids := coalesce(ids, holdfast.ids_of(items, names, at, seed));
    select r.ids, r.rivals into ids, rivals
    from holdfast.enqueue_rest(items, names, at, repeat, in_order, stored || v_past, ids) r;
  end if;
end
$$;

-- enqueue_rest: items that were not stored: each was sent before, or its key is in use.
create or replace function holdfast.enqueue_rest(
  items jsonb, names text[], at timestamptz, repeat boolean, in_order boolean, stored uuid[], inout ids uuid[],
  out rivals uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  missing record;
  again   record;
begin
  perform holdfast.refuse_twins(items, ids);
  rivals := array_fill(null::uuid, array[cardinality(ids)]);
  for missing in
    select
      i.ord::integer, i.item, ids[i.ord] as id,
      case when coalesce(i.item ->> 'on_conflict', 'skip') = 'skip' then (
        select j.id
        from holdfast.job j
        where j.part = holdfast.part_of(ids[i.ord])
          and j.queue = coalesce(i.item ->> 'queue', 'default') and j.kind = i.item ->> 'kind'
          and j.key = i.item ->> 'key' and not j.follow
      ) end as rival
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    left join (select distinct x.id from unnest(stored) x(id)) s on s.id = ids[i.ord]
    where s.id is null
    -- in the order of keys, as they were written
    order by array_position(names, coalesce(i.item ->> 'queue', 'default')), i.item ->> 'kind' collate "C",
             i.item ->> 'key' collate "C", i.ord
  loop
    if missing.rival <> missing.id then
      ids[missing.ord] := missing.rival;
      rivals[missing.ord] := missing.rival;
      continue;
    end if;
    select a.id, a.created into again
    from holdfast.enqueue_again(missing.item, missing.id, at, repeat, in_order) a;
    ids[missing.ord] := again.id;
    if not again.created then
      rivals[missing.ord] := again.id;
    end if;
  end loop;
end
$$;

-- enqueue_again: the careful path for one item that a plain insert did not store: it was sent before, or its key is
-- in use. in_order: it may only change jobs that the caller has locked, and take no free key: other transactions may
-- wait for what the caller took after it. Raises HFAGN.
create or replace function holdfast.enqueue_again(
  item jsonb, wanted uuid, at timestamptz, repeat boolean, in_order boolean, out id uuid, out created boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part   constant smallint := holdfast.part_of(wanted);
  v_policy constant text := coalesce(item ->> 'on_conflict', 'skip');
  v_queue  constant holdfast.queue := holdfast.settings_of(coalesce(item ->> 'queue', 'default'));
  v_follow boolean;   -- it can only wait for the end of the one that has its key
  rival    holdfast.job;
begin
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
      perform holdfast.refuse_stranger(item, rival);
      id := wanted;
      created := true;
      return;
    elsif repeat and cardinality(holdfast.known_before(array[wanted], jsonb_build_array(item))) > 0 then
      id := wanted;   -- it was there when this call began, and has ended since
      created := true;
      return;
    end if;

    select j.* into rival
    from holdfast.job j
    where j.part = v_part and j.queue = v_queue.name and j.kind = item ->> 'kind' and j.key = item ->> 'key'
      and not j.follow;
    if not found and in_order then
      raise exception using errcode = 'HFAGN', message = 'a key became free';
    end if;
    if v_policy = 'skip' and found then
      id := rival.id;
      created := false;
      return;
    end if;
    v_follow := rival.token is not null;
    if v_follow then
      -- It runs now. One follow-up waits for its end; a later one joins it, or takes its place.
      select j.* into rival
      from holdfast.job j
      where j.part = v_part and j.queue = v_queue.name and j.kind = item ->> 'kind' and j.key = item ->> 'key'
        and j.follow;
    end if;

    if rival.id is not null then
      -- What waits serves as well, if it does not start before the caller's changes can be seen.
      perform holdfast.own_or_again(v_part, rival.id);
      perform from holdfast.job j
      where j.part = v_part and j.id = rival.id and j.token is null and j.follow = v_follow;
      continue when not found;   -- claimed in between: look again
      if v_policy = 'replace' then
        perform holdfast.replace_waiting(item, v_part, rival.id, v_queue, at);
        perform holdfast.note_expiry(array[rival.id], at) where item ?| '{expires,expires_at}';
      end if;
      id := rival.id;
      created := false;
      return;
    end if;
    if cardinality(holdfast.store_items(
      jsonb_build_array(item), '{1}', v_queue, array[wanted], '{1}', null, at, 0, v_follow)) = 1 then
      if repeat and not v_follow then
        perform holdfast.take_back(array[wanted]);   -- it ended while this call looked away
      end if;
      id := wanted;
      created := true;
      return;
    elsif in_order then
      raise exception using errcode = 'HFAGN', message = 'somebody else was first to follow';
    end if;
  end loop;
  raise exception using
    errcode = 'serialization_failure',
    message = format('key %L of kind %L changed hands too often to be enqueued', item ->> 'key', item ->> 'kind'),
    hint = 'Repeat the transaction.';
end
$$;

-- refuse_stranger: refuse an item whose id belongs to another job.
create or replace function holdfast.refuse_stranger(item jsonb, other holdfast.job)
returns void
language plpgsql
as $$
begin
  if (other.queue, other.kind) is distinct from (coalesce(item ->> 'queue', 'default'), item ->> 'kind') then
    perform holdfast.refuse('HF206',
      format('id %s belongs to a job of kind %L in queue %L', other.id, other.kind, other.queue), null,
      'Create a new id for each job: holdfast.new_id(queue).');
  end if;
end
$$;

-- refuse_twins: refuse items of one call that have the same id but would be different jobs: only one would be stored.
create or replace function holdfast.refuse_twins(items jsonb, ids uuid[])
returns void
language plpgsql
as $$
declare
  j holdfast.job;
  t record;
begin
  select s.item, s.id, s.first into t
  from (
    select i.item, ids[i.ord] as id, first_value(i.item) over (partition by ids[i.ord] order by i.ord) as first
    from jsonb_array_elements(items) with ordinality as i(item, ord)
  ) s
  where (coalesce(s.item ->> 'queue', 'default'), s.item ->> 'kind')
    <> (coalesce(s.first ->> 'queue', 'default'), s.first ->> 'kind')
  limit 1;
  if found then
    j.id := t.id;
    j.queue := coalesce(t.first ->> 'queue', 'default');
    j.kind := t.first ->> 'kind';
    perform holdfast.refuse_stranger(t.item, j);
  end if;
end
$$;

-- refuse_both: refuse items of a fanned-out queue that have a key and a lane.
create or replace function holdfast.refuse_both(items jsonb, queue text)
returns void
language plpgsql
as $$
begin
  if items @? '$[*] ? (@.key != null && @.lane != null)' then
    perform holdfast.refuse('HF204',
      format('queue %L has fanout: a job there can have a key or a lane, not both', queue), null,
      'Both would determine the part of the job. Remove one of them.');
  end if;
end
$$;

-- own_or_again: lock a job without waiting; raise HFAGN if another transaction has locked it.
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

-- rivals_of: the waiting jobs that an enqueue may change because they have its keys or its ids.
create or replace function holdfast.rivals_of(items jsonb, ids uuid[], by_id boolean)
returns uuid[]
language plpgsql stable
as $$
begin
  if not by_id and not items @? '$[*].on_conflict ? (@ == "replace" || @ == "after")' then
    return '{}';
  end if;
  return array(
    select distinct f.id
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    cross join lateral (
      select x.id
      from holdfast.job x
      where i.item ->> 'on_conflict' in ('replace', 'after')
        and x.part = holdfast.part_of(ids[i.ord]) and x.queue = coalesce(i.item ->> 'queue', 'default')
        and x.kind = i.item ->> 'kind' and x.key = i.item ->> 'key' and x.token is null
      union all
      select x.id
      from holdfast.job x
      where by_id and x.part = holdfast.part_of(ids[i.ord]) and x.id = ids[i.ord]
    ) f);
end
$$;

-- lock_rivals: lock those of them that wait for no other job, in the order of ids, like all functions. It does not wait
-- for running jobs. Those that wait for others are locked after the keys, and only if no other transaction holds them.
create or replace function holdfast.lock_rivals(items jsonb, ids uuid[], by_id boolean)
returns void
language plpgsql
as $$
declare
  v_rivals constant uuid[] := holdfast.rivals_of(items, ids, by_id);
begin
  if cardinality(v_rivals) = 0 then
    return;
  end if;
  perform holdfast.let_pass(v_rivals);
  perform from (select x.id from unnest(v_rivals) x(id) order by x.id) r
  cross join lateral (
    select from holdfast.job j
    where j.part = holdfast.part_of(r.id) and j.id = r.id and j.waits is null and (by_id or j.token is null)
    for update) j;
end
$$;

-- let_pass: wait for whoever is at those of these jobs that wait for others, and hold none of them: who has one may
-- want a key next that the caller takes, or hold one that the caller wants. Each is waited for alone, since it may have
-- been let in when its turn comes.
create or replace function holdfast.let_pass(ids uuid[])
returns void
language plpgsql
set enable_seqscan = off
as $$
declare
  v_ids constant uuid[] := array(
    select x from unnest(ids) x
    where exists (
      select from holdfast.job j where j.part = holdfast.part_of(x) and j.id = x and j.waits is not null)
    order by x);
  v_free uuid[];
  v_id   uuid;
begin
  if cardinality(v_ids) = 0 then
    return;
  end if;
  begin
    v_free := array(
      select u.id from unnest(v_ids) u(id)
      cross join lateral (
        select from holdfast.job j where j.part = holdfast.part_of(u.id) and j.id = u.id for update skip locked) j);
    raise exception using errcode = 'HFAGN', message = 'they are given back';
  exception when sqlstate 'HFAGN' then
    null;
  end;
  for v_id in select x from unnest(v_ids) x except select y from unnest(v_free) y loop
    begin
      perform from holdfast.job j
      where j.part = holdfast.part_of(v_id) and j.id = v_id and j.waits is not null for update;
      raise exception using errcode = 'HFAGN', message = 'it is given back';
    exception when sqlstate 'HFAGN' then
      null;
    end;
  end loop;
end
$$;

-- store_one: the fastest path, for one small job with a kind, a payload, a priority and perhaps a key, in a queue
-- without special settings. Few statements, because starting one costs more than the row. Returns false, with nothing
-- stored, if it is not such a job, or its id or key already exists. Whoever waits is looked for last, so that few come
-- too late to be seen.
create or replace function holdfast.store_one(
  id uuid, kind text, queue text, payload jsonb, priority smallint, at timestamptz, key text default null)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part  constant smallint := holdfast.queue_part(store_one.queue);
  known   record;
  v_unset holdfast.queue;
  noted   record;
begin
  if not coalesce(
    holdfast.part_of(store_one.id) = v_part and holdfast.is_name(store_one.kind) and store_one.priority between 0 and 9
    and pg_column_size(store_one.payload) <= 1000 and octet_length(store_one.payload::text) <= 300, false) then
    return false;   -- what is shorter cannot hold a number of too many digits
  end if;
  if store_one.key is not null then
    if current_setting('transaction_isolation') <> 'read committed' then
      return false;
    end if;
    -- Before the settings are read: fanout decides where a key lives.
    lock table holdfast.job in row exclusive mode;
  end if;
  select q.max_attempts, q.fair, q.by_kind, q.activity, q.fanout = 1 and q.adopted is null and q.lease_limit is null
         and q.node is null and q.payload_limit >= 300 as plain
  into known
  from holdfast.queue q
  where q.name = store_one.queue;
  if not found then
    v_unset := holdfast.unset_queue(store_one.queue);
    known.max_attempts := v_unset.max_attempts;
    known.fair := v_unset.fair;
    known.by_kind := v_unset.by_kind;
    known.activity := v_unset.activity;
    known.plain := holdfast.queue_ok(store_one.queue) and v_unset.node is null;
  end if;
  if not known.plain then
    return false;
  end if;
  insert into holdfast.job (
    part, id, queue, kind, key, priority, run_at, created_at, max_attempts, tenant, by_kind, payload)
  values (
    v_part, store_one.id, store_one.queue, store_one.kind, store_one.key, store_one.priority, at, at,
    known.max_attempts, case when known.fair then '' end, known.by_kind, store_one.payload)
  on conflict do nothing;
  if not found then
    return false;
  end if;
  insert into holdfast.tally (part, queue, kind, queued, enqueued)
  values (v_part, store_one.queue, store_one.kind, 1, 1)
  returning exists (select from holdfast.watched w where w.queue in (store_one.queue, '') and w.until > at) as watched,
            exists (select from holdfast.waiter w where w.queue = store_one.queue and w.until > at) as awaited
  into noted;
  if known.activity = 'all' or noted.watched and known.activity <> 'off' then
    perform holdfast.note_enqueued(array[store_one.id], array[store_one.kind], store_one.queue, at);
  end if;
  if noted.awaited then
    perform holdfast.wake(array[store_one.queue], 1);
  end if;
  return true;
end
$$;

-- store_item: the same for an item with no other fields. Returns its id, or null.
create or replace function holdfast.store_item(item jsonb, at timestamptz)
returns uuid
language plpgsql
as $$
declare
  v_queue constant text := coalesce(item ->> 'queue', 'default');
  v_id    uuid;
begin
  if jsonb_typeof(item) <> 'object' or item - holdfast.plain_fields() - 'key' <> '{}'
     or not holdfast.is_key(item -> 'key')
     or jsonb_typeof(item -> 'kind') <> 'string' or jsonb_typeof(item -> 'queue') <> 'string'
     or item ? 'priority' and not item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
     or not holdfast.is_id(item ->> 'id') then
    return null;
  end if;
  v_id := item ->> 'id';
  if v_id is null then
    v_id := holdfast.id_of(
      null, null, holdfast.id_head(holdfast.queue_part(v_queue), at), holdfast.id_seed());
  end if;
  return case when holdfast.store_one(v_id, item ->> 'kind', v_queue, coalesce(item -> 'payload', '{}'),
    coalesce((item -> 'priority')::smallint, 0::smallint), at, item ->> 'key') then v_id end;
end
$$;

-- store_plain: the fast path, for jobs with at most a kind, a payload, a priority and an id, all in one queue.
-- Returns the ids that it stored: all of them, unless an id already exists. by_id: some ids come from the caller, and
-- may exist. A few such jobs are written with `on conflict`; for many that would cost a sixth more, so they are
-- written in a subtransaction, which does not pay off for a few.
create or replace function holdfast.store_plain(
  items jsonb, queue_row holdfast.queue, at timestamptz, seed bigint, by_id boolean)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part   constant smallint := holdfast.queue_part(queue_row.name);
  v_head   constant text := holdfast.id_head(v_part, at);
  v_ids    uuid[];
  v_kinds  text[];
begin
  if by_id and jsonb_array_length(items) < 10 then
    with stored as (
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, tenant, by_kind, payload)
      select p.* from holdfast.plain_jobs(items, queue_row, v_part, v_head, at, seed) p
      on conflict do nothing
      returning id, kind
    )
    select array_agg(s.id), array_agg(s.kind) into v_ids, v_kinds from stored s;
  elsif by_id then
    begin
      return holdfast.store_plain(items, queue_row, at, seed, false);
    exception when unique_violation then
      return null;
    end;
  else
    with stored as (
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, tenant, by_kind, payload)
      select p.* from holdfast.plain_jobs(items, queue_row, v_part, v_head, at, seed) p
      returning id, kind
    )
    select array_agg(s.id), array_agg(s.kind) into v_ids, v_kinds from stored s;
  end if;
  if v_ids is not null then
    perform holdfast.note_stored(v_ids, v_kinds, queue_row, at);
  end if;
  return v_ids;
end
$$;

-- note_stored: what follows when ready jobs of one queue were stored: counters, the log, and whoever waits for work.
create or replace function holdfast.note_stored(
  ids uuid[], kinds text[], queue_row holdfast.queue, at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  somebody record;
begin
  with counted as (
    insert into holdfast.tally (part, queue, kind, queued, enqueued)
    select holdfast.queue_part(queue_row.name), queue_row.name, k.kind, count(*), count(*)
    from unnest(kinds) k(kind)
    group by k.kind
  )
  select exists (select from holdfast.watched w where w.queue in (queue_row.name, '') and w.until > at) as watched,
         exists (select from holdfast.waiter w where w.queue = queue_row.name and w.until > at) as awaited
  into somebody;
  if queue_row.activity = 'all' or somebody.watched and queue_row.activity <> 'off' then
    perform holdfast.note_enqueued(ids, kinds, queue_row.name, at);
  end if;
  if somebody.awaited then
    perform holdfast.wake(array[queue_row.name], cardinality(ids));
  end if;
end
$$;

-- store_keys: the fast path for many jobs of one queue that each have a key and are otherwise plain, if none of the
-- keys is taken: an import. Returns null, with nothing stored, if a key or an id exists, or more has to be decided.
-- Written in the order of keys, as by enqueue_any, so that two imports cannot deadlock.
create or replace function holdfast.store_keys(items jsonb, queue text, largest bigint, at timestamptz, seed bigint)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part  constant smallint := holdfast.queue_part(queue);
  v_head  constant text := holdfast.id_head(v_part, at);
  v_queue holdfast.queue;
  v_ids   uuid[];
  v_kinds text[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return null;
  end if;
  lock table holdfast.job in row exclusive mode;   -- before the settings are read: fanout decides where a key lives
  v_queue := holdfast.settings_of(queue);
  if v_queue.fanout > 1 or v_queue.adopted is not null or v_queue.lease_limit is not null
     or v_queue.node is not null or largest > v_queue.payload_limit then
    return null;
  end if;
  begin
    with given as materialized (
      select i.item, i.ord, nextval('holdfast.pos') as place, i.item ->> 'kind' as kind, i.item ->> 'key' as key,
             holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord) as id
      from jsonb_array_elements(items) with ordinality as i(item, ord)
    ), stored as (
      insert into holdfast.job (
        part, id, pos, queue, kind, key, priority, run_at, created_at, max_attempts, tenant, by_kind, payload)
      select v_part, g.id, g.place, v_queue.name, g.kind, g.key,
             coalesce(nullif(g.item -> 'priority', 'null')::smallint, 0::smallint), at, at, v_queue.max_attempts,
             case when v_queue.fair then '' end, v_queue.by_kind, coalesce(g.item -> 'payload', '{}')
      from given g
      order by g.kind collate "C", g.key collate "C", g.ord
    )
    select array_agg(g.id), array_agg(g.kind) into v_ids, v_kinds from given g;   -- in the order given
  exception when unique_violation then
    return null;
  end;
  perform holdfast.note_stored(v_ids, v_kinds, v_queue, at);
  return v_ids;
end
$$;

-- plain_jobs: the rows of such items.
create or replace function holdfast.plain_jobs(
  items jsonb, queue_row holdfast.queue, part smallint, head text, at timestamptz, seed bigint)
returns table (
  home smallint, id uuid, queue text, kind text, priority smallint, run_at timestamptz, created_at timestamptz,
  max_attempts smallint, tenant text, by_kind boolean, payload jsonb)
language sql stable
as $$
  select
    part, holdfast.id_of(i.item ->> 'id', part, head, seed + i.ord), (queue_row).name, i.item ->> 'kind',
    coalesce(nullif(i.item -> 'priority', 'null')::smallint, 0::smallint), at, at,
    (queue_row).max_attempts, case when (queue_row).fair then '' end, (queue_row).by_kind,
    coalesce(i.item -> 'payload', '{}')
  from jsonb_array_elements(items) with ordinality as i(item, ord)
$$;

-- store_items: the general path: store some items of a call, all of one queue, in the order of ords. ids and places
-- are those of all items, firsts the ones that may be ready although they have a lane; null: each gets an id and a
-- place when it is written, and none has a lane. follow: they wait for the end of the job that has their key. Returns
-- the ids that it stored, without items whose id or key already exists.
create or replace function holdfast.store_items(
  items jsonb, ords bigint[], queue_row holdfast.queue, ids uuid[], firsts bigint[], places bigint[], at timestamptz,
  seed bigint, follow boolean default false)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part constant smallint := holdfast.queue_part(queue_row.name);
  v_head constant text := holdfast.id_head(v_part, at);
  batch  record;
begin
  with stored as (
    insert into holdfast.job
    select j.*
    from (
      select o.ord, o.item, o.due,
             o.due <= at and not store_items.follow and not o.item ? 'waits' as ready,
             o.item ->> 'lane' is not null and firsts is not null as laned,
             firsts is null or o.item ->> 'lane' is null or o.ord = any(firsts) as first
      from (
        select x.ord, x.item, case when x.item ?| '{delay,run_at}' then holdfast.due_at(x.item, at) else at end as due
        from (select u.ord, store_items.items -> (u.ord - 1)::integer as item from unnest(ords) u(ord) offset 0) x
        offset 0
      ) o
      offset 0
    ) i
    cross join lateral (
      select case when i.ready and i.laned then coalesce(places[i.ord], nextval('holdfast.pos')) end as in_lane,
             case when i.ready and i.first then coalesce(places[i.ord], nextval('holdfast.pos')) end as in_queue
    ) p
    cross join lateral holdfast.job_of_item(
      i.item, queue_row, case when ids is null then v_part else holdfast.part_of(ids[i.ord]) end,
      case when ids is null then holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord) else ids[i.ord] end,
      i.due, at, store_items.follow, store_items.follow or i.item ? 'waits' or i.ready and i.laned and not i.first,
      p.in_lane, p.in_queue) j
    on conflict do nothing
    returning part, id, kind, pos, expires_at
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued, enqueued)
    select s.part, queue_row.name, s.kind, count(*), count(*)
    from stored s
    group by s.part, s.kind
  )
  select array_agg(s.id) as ids, count(s.pos) as ready, count(s.expires_at) as expiring,
         array_agg(s.kind) filter (where queue_row.activity = 'all' or queue_row.activity <> 'off' and exists (
           select from holdfast.watched w where w.queue in (queue_row.name, '') and w.until > store_items.at)) as kinds
  into batch
  from stored s;
  if batch.kinds is not null then
    perform holdfast.note_enqueued(batch.ids, batch.kinds, queue_row.name, at);
  end if;
  if batch.expiring > 0 then
    perform holdfast.note_expiry(batch.ids, at);
  end if;
  if batch.ready > 0 and exists (
    select from holdfast.waiter w where w.queue = queue_row.name and w.until > at) then
    perform holdfast.wake(array[queue_row.name], batch.ready);
  end if;
  return coalesce(batch.ids, '{}');
end
$$;

-- note_enqueued: record enqueued jobs of one queue.
create or replace function holdfast.note_enqueued(ids uuid[], kinds text[], queue text, at timestamptz)
returns void
language sql volatile
as $$
  insert into holdfast.event (at, slot, part, job, event, state, queue, kind)
  select note_enqueued.at, holdfast.event_slot(note_enqueued.at), holdfast.part_of(u.id), u.id, 'enqueued', 'queued',
         note_enqueued.queue, u.kind
  from unnest(ids, kinds) with ordinality u(id, kind, nth)
  order by u.nth
$$;

-- ahead: for each new job, the job it waits for: the one that holds or halted its lane; the one that started first in
-- a queue at its limit (limited and helds are parallel); if none is running, the one right before it in its lane. A
-- follow-up waits for the job with its key. Null if it waits only for its time or its position. runs: that job may be
-- leased; for one that is only before it, the holder is not looked up.
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
          select coalesce(l.lane_limit, q.lane_limit) as slots, l.halted_by
          from holdfast.settings_of(m.queue) q
          left join lateral (
            select x.lane_limit, x.halted_by
            from holdfast.lane x
            where x.part = m.part and x.queue = m.queue and x.name = m.lane
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
      when k.queue = any(limited) and helds[array_position(limited, k.queue)] is not null
        then helds[array_position(limited, k.queue)]
      when k.nth - 1 + cardinality(k.there) >= k.slots then coalesce(k.before, k.there[1])
    end, coalesce(k.follow or k.run_at <= holdfast.clock() and k.halted_by is null and (
      cardinality(k.running) >= k.slots or helds[array_position(limited, k.queue)] is not null), false)
    from known k;
end
$$;

-- holders: the workers of running jobs, and since when; for a cancelled job, the worker that has not stopped yet.
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

-- held_first: for a queue at its limit, the running job that started first; otherwise null.
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

-- queues_of: the queues of items, in the order in which they are written.
create or replace function holdfast.queues_of(items jsonb)
returns text[]
language sql stable
as $$
  select array(
    select n.name
    from (select distinct coalesce(i.item ->> 'queue', 'default') as name from jsonb_array_elements(items) i(item)) n
    order by holdfast.queue_part(n.name), n.name collate "C")
$$;

-- ids_of: the id of each item, in order.
create or replace function holdfast.ids_of(items jsonb, queues text[], at timestamptz, seed bigint)
returns uuid[]
language plpgsql stable
as $$
declare
  v_part constant smallint := holdfast.queue_part(queues[1]);
  v_head constant text := holdfast.id_head(v_part, at);
begin
  if cardinality(queues) = 1 and holdfast.fanout_of(queues[1]) = 1 then
    return array(
      select holdfast.id_of(i.item ->> 'id', v_part, v_head, seed + i.ord)
      from jsonb_array_elements(items) with ordinality as i(item, ord));
  end if;
  return array(
    select holdfast.id_of(i.item ->> 'id', p.part, holdfast.id_head(p.part, at), seed + i.ord)
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    join (select n.name, holdfast.fanout_of(n.name) as fanout from unnest(queues) n(name) offset 0) q
      on q.name = coalesce(i.item ->> 'queue', 'default')
    cross join lateral (
      select case when q.fanout = 1 then holdfast.queue_part(q.name)
                  else holdfast.fanned_part(q.name, q.fanout, i.item, seed + i.ord) end as part
    ) p
    order by i.ord);
end
$$;

-- id_of: the caller's id with the right part, or a new one. One seed serves a whole batch: the numbers that follow it
-- are as unlikely to collide as the seed itself, and need no randomness. The head of new ids ends in the three digits
-- of the part: comparing those is cheapest.
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

-- largest_of: the size of the largest of these items; refuses them if one contains a number out of range. known is the
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

-- queue_ok: whether jobs may be put into a queue of this name.
create or replace function holdfast.queue_ok(name text)
returns boolean
language sql immutable parallel safe
as $$ select holdfast.is_name(name, 120) and not holdfast.is_ours(name) $$;

create or replace function holdfast.queues_ok(names text[])
returns boolean
language sql immutable parallel safe
as $$
  select case when cardinality(names) = 1 then holdfast.queue_ok(names[1])
              else not exists (select from unnest(names) n where not holdfast.queue_ok(n)) end
$$;

-- is_id: whether a text is a UUID; three times as fast as one complete pattern.
create or replace function holdfast.is_id(value text)
returns boolean
language sql immutable parallel safe
as $$
  select value like '________-____-____-____-____________' and value !~ '[^-0-9a-fA-F]'
         and length(replace(value, '-', '')) = 32
$$;

-- is_time: whether a text is a time that all clients can represent.
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

-- lane_firsts: which items with a lane may be ready at once. A job may start out blocked only behind one that commits
-- together with it: any other could end before that, and nothing would unblock this one. If the first may not be
-- stored, or is not due, none is blocked. The claim decides; this only saves it work.
create or replace function holdfast.lane_firsts(items jsonb, repeat boolean)
returns bigint[]
language sql immutable
as $$
  select case
    when repeat or items @? '$[*].key' or items @? '$[*].id' or items @? '$[*].delay' or items @? '$[*].run_at'
         or items @? '$[*].waits' then
      array(select generate_series(1, jsonb_array_length(items)::bigint))
    else array(
      select min(i.ord)
      from jsonb_array_elements(items) with ordinality as i(item, ord)
      where i.item ->> 'lane' is not null
      group by coalesce(i.item ->> 'queue', 'default'), i.item ->> 'lane')
  end
$$;

-- fanned_part: the part of a job in a queue with fanout: by lane, or else by key, so that their rules hold within one
-- part; any part for other jobs.
create or replace function holdfast.fanned_part(queue text, fanout integer, item jsonb, number bigint)
returns smallint
language sql immutable
as $$
  select ((holdfast.queue_part(queue) + coalesce(
    (('x' || substr(md5(coalesce(item ->> 'lane', item ->> 'key', item ->> 'id')), 1, 8))::bit(32)::bigint),
      number) % fanout) % 64)::smallint
$$;

-- home: the part of a job in a queue. A job with a lane or a key has exactly one; any other may stay where it is.
-- Null: it has both, and they would need different parts.
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

-- known_before: the ids whose jobs were stored by an earlier call and have since been claimed, moved or have ended. A
-- job that still waits is found by its id when the repeat writes. A finished job left only traces, for as long as
-- receipts are kept; one of a workflow, for as long as that is known. Only traces in the item's own queue count: a job
-- of another queue with the same number is another job.
create or replace function holdfast.known_before(ids uuid[], items jsonb)
returns uuid[]
language sql stable
set enable_seqscan = off
as $$
  with given as materialized (
    select g.id, coalesce(items -> (g.ord - 1)::integer ->> 'queue', 'default') as queue,
           items -> (g.ord - 1)::integer ?| '{linked,workflow,child_of}' as linked
    from unnest(known_before.ids) with ordinality g(id, ord)
  )
  select array(
    select g.id
    from given g
    -- asked one by one: as a join it could be answered by reading all jobs
    where (select j.id from holdfast.job j where j.part = holdfast.part_of(g.id) and j.id = g.id) is null
      and (holdfast.locate(g.id, g.queue) is not null
           or exists (select from holdfast.alias a where a.part = holdfast.part_of(g.id) and a.id = g.id
             and a.queue = g.queue))
    union
    select leased.id
    from holdfast.lease l
    cross join lateral unnest(l.ids) leased(id)
    join given g on g.id = leased.id and g.queue = l.queue
    where (select j.id from holdfast.job j where j.part = l.part and j.id = leased.id) is null
    union
    select g.id
    from given g
    where g.linked and (select j.id from holdfast.job j where j.part = holdfast.part_of(g.id) and j.id = g.id) is null
      and exists (select from holdfast.member m where m.part = holdfast.part_of(g.id) and m.id = g.id))
$$;

-- take_back: remove rows that a repeat has just stored although their job had already been claimed, or cancelled: it
-- ended while the repeat waited for its key or its id.
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
    join holdfast.job j on j.part = any(array[holdfast.part_of(s.id)]) and j.id = s.id and j.queue = l.queue
    union
    select j.id
    from unnest(take_back.ids) s(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(s.id)]) and j.id = s.id
    where exists (
        select from holdfast.ended e where e.part = holdfast.part_of(s.id) and e.id = s.id and e.queue = j.queue)
      or j.link is not null and exists (
        select from holdfast.member m where m.part = holdfast.part_of(s.id) and m.id = s.id));
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
