-- enqueue: store jobs, one or many, inside the caller's transaction.
-- Answers one row per item: the job that stands for it, and whether the call created it.
-- repeat says "this may have been sent before": what was stored already answers as it did then.
create or replace function holdfast.enqueue(items jsonb, repeat boolean default false)
returns table (ord integer, id uuid, created boolean, duplicate_of uuid)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now    timestamptz := holdfast.now();
  v_firsts bigint[];       -- items that may be ready at once although they have a lane
  v_past   uuid[] := '{}'; -- ids of an earlier sending whose jobs were claimed or have ended
  v_ids    uuid[];
  v_stored uuid[];
  v_queues text[];
  v_ready  bigint;
  missing  record;
begin
  if jsonb_typeof(items) = 'object' then
    items := jsonb_build_array(items);
  elsif items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects',
      format('got %s', coalesce(left(items::text, 80), 'null')),
      'For example: select * from holdfast.enqueue(''[{"kind": "greet", "payload": {"name": "Ada"}}]'')');
  end if;
  perform holdfast.check_items(items);
  if items @? '$[*].lane' then
    v_firsts := holdfast.lane_firsts(items);
  end if;
  if repeat then
    v_past := holdfast.known_before(items, v_now);
  end if;

  with given as materialized (
    select
      i.ord,
      case
        when i.id is null then holdfast.id_in(i.part)
        when holdfast.part_of(i.id) = i.part then i.id
        else holdfast.stamp(i.id, i.part)
      end as id,
      i.part, i.queue, i.kind, i.run_at, i.lane, i.by_kind, i.tenant, i.max_attempts,
      coalesce((i.item ->> 'priority')::smallint, 0::smallint) as priority,
      make_interval(secs => (i.item ->> 'lease')::double precision) as lease_for,
      i.item ->> 'key' as key,
      i.item ->> 'subject' as subject,
      nullif(i.item -> 'headers', 'null') as headers,
      coalesce(i.item -> 'payload', '{}') as payload
    from holdfast.items_of(enqueue.items, v_now) i
  ), stored as (
    insert into holdfast.job (
      part, id, queue, kind, priority, run_at, created_at, max_attempts, lease_for,
      key, lane, tenant, subject, headers, payload, by_kind, blocked, lane_seq, pos)
    select
      g.part, g.id, g.queue, g.kind, g.priority, g.run_at, v_now, g.max_attempts, g.lease_for,
      g.key, g.lane, g.tenant, g.subject, g.headers, g.payload, g.by_kind,
      g.lane is not null and g.run_at <= v_now and not g.ord = any(v_firsts),
      case when g.lane is not null and g.run_at <= v_now then nextval('holdfast.pos') end,
      case when g.run_at <= v_now and (g.lane is null or g.ord = any(v_firsts)) then nextval('holdfast.pos') end
    from given g
    where not g.id = any(v_past)
    order by g.ord
    on conflict do nothing
    returning part, id, queue, kind, pos
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued)
    select s.part, s.queue, s.kind, count(*)
    from stored s
    group by s.part, s.queue, s.kind
  )
  select
    (select array_agg(g.id order by g.ord) from given g),
    array_agg(s.id),
    array_agg(distinct s.queue) filter (where s.pos is not null),
    count(s.pos)
  into v_ids, v_stored, v_queues, v_ready
  from stored s;

  if v_ready > 0 then
    perform holdfast.wake(v_queues, v_ready);
  end if;

  if cardinality(v_ids) is not distinct from cardinality(v_stored) then
    return query
      select o.ord::integer, o.id, true, null::uuid
      from unnest(v_ids) with ordinality as o(id, ord);
    return;
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
    order by i.ord
  loop
    ord := missing.ord;
    id := missing.id;
    created := true;
    duplicate_of := null;
    if not missing.stored then
      if missing.rival is null or missing.rival = missing.id then
        select a.id, a.created into id, created
        from holdfast.enqueue_again(missing.item, missing.id, v_now) a;
      else
        id := missing.rival;
        created := false;
      end if;
      if not created then
        duplicate_of := id;
      end if;
    end if;
    return next;
  end loop;
end
$$;

-- items_of: checked items with their queue's defaults and their part.
create or replace function holdfast.items_of(items jsonb, at timestamptz)
returns table (
  ord bigint, item jsonb, id uuid, part smallint, queue text, kind text, run_at timestamptz,
  lane text, tenant text, by_kind boolean, max_attempts smallint)
language sql volatile
as $$
  select
    i.ord, i.item, (i.item ->> 'id')::uuid,
    case
      when coalesce(q.fanout, 1) = 1 then holdfast.queue_part(coalesce(i.item ->> 'queue', 'default'))
      else holdfast.fanned_part(q.name, q.fanout, coalesce(i.item ->> 'lane', i.item ->> 'key', i.item ->> 'id'))
    end,
    coalesce(i.item ->> 'queue', 'default'), i.item ->> 'kind',
    case
      when i.item ? 'delay' then items_of.at + make_interval(secs => coalesce((i.item ->> 'delay')::double precision, 0))
      else coalesce((i.item ->> 'run_at')::timestamptz, items_of.at)
    end,
    i.item ->> 'lane',
    coalesce(i.item ->> 'tenant', case when q.fair then '' end),
    coalesce(q.by_kind, false),
    coalesce((i.item ->> 'max_attempts')::smallint, q.max_attempts, 3::smallint)
  from jsonb_array_elements(items) with ordinality as i(item, ord)
  left join holdfast.queue q on q.name = coalesce(i.item ->> 'queue', 'default')
$$;

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
  where not holdfast.item_ok(i.item)
     or pg_column_size(i.item -> 'payload') > coalesce(q.payload_limit, 262144)
  limit 1;
  if found then
    perform holdfast.refuse_item(bad.item, bad.ord, bad.payload_limit);
  end if;
end
$$;

-- item_ok: whether an item holds what it should, as far as one expression can tell quickly.
create or replace function holdfast.item_ok(item jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select coalesce(
    jsonb_typeof(item) = 'object'
    and item - '{id,kind,payload,queue,priority,run_at,delay,max_attempts,lease,key,on_conflict,lane,tenant,headers,subject}'::text[] = '{}'
    and length(item ->> 'kind') between 1 and 200
    and not (item ->> 'kind') ~ '[[:cntrl:]]'
    and holdfast.item_details_ok(item), false)
$$;

-- item_details_ok: whether the optional fields of an item hold what they should.
create or replace function holdfast.item_details_ok(item jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select
    (not item ? 'queue' or coalesce(length(item ->> 'queue') between 1 and 120 and not (item ->> 'queue') ~ '[[:cntrl:]]', true))
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
      and not (item ? 'delay' and item ? 'run_at')
      and coalesce(item ->> 'on_conflict', 'skip') in ('skip', 'replace', 'after')
      and coalesce(length(item ->> 'key') between 1 and 500, true)
      and coalesce(length(item ->> 'lane') between 1 and 200 and not (item ->> 'lane') ~ '[[:cntrl:]]', true)
      and coalesce(length(item ->> 'tenant') between 1 and 200 and not (item ->> 'tenant') ~ '[[:cntrl:]]', true)
      and coalesce(length(item ->> 'subject') between 1 and 500, true)
      and coalesce(jsonb_typeof(item -> 'headers'), 'null') in ('object', 'null')))
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
    perform holdfast.refuse('HF201', format('%s is not an object: %s', v_item, left(item::text, 80)), null,
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
  perform holdfast.named('kind of ' || v_item, item ->> 'kind');
  if item ->> 'queue' is not null then
    perform holdfast.named('queue of ' || v_item, item ->> 'queue', 120);
  end if;
  foreach v_field in array '{lane,tenant}'::text[] loop
    if item ->> v_field is not null then
      perform holdfast.named(v_field || ' of ' || v_item, item ->> v_field);
    end if;
  end loop;
  foreach v_field in array '{key,subject}'::text[] loop
    if not coalesce(length(item ->> v_field) between 1 and 500, true) then
      perform holdfast.refuse('HF202', format('%s of %s is %s characters long, 1 to 500 are allowed', v_field, v_item, length(item ->> v_field)));
    end if;
  end loop;
  if item ? 'priority' and not item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'null') then
    perform holdfast.refuse('HF203', format('priority %s of %s is not a whole number from 0 to 9', item -> 'priority', v_item), null, 'Nine goes first, zero is the default.');
  end if;
  if item ? 'delay' and item ? 'run_at' then
    perform holdfast.refuse('HF204', format('%s has both delay and run_at', v_item), null, 'Give one of them.');
  end if;
  foreach v_field in array '{max_attempts,lease,delay}'::text[] loop
    if not holdfast.item_details_ok(jsonb_build_object(v_field, item -> v_field)) then
      perform holdfast.refuse('HF204', format('%s %s of %s is out of range', v_field, item -> v_field, v_item), null,
        'max_attempts is a whole number from 1; lease and delay are seconds, lease above zero.');
    end if;
  end loop;
  if not coalesce(item ->> 'on_conflict', 'skip') in ('skip', 'replace', 'after') then
    perform holdfast.refuse('HF205', format('on_conflict %L of %s is not skip, replace or after', item ->> 'on_conflict', v_item));
  end if;
  if pg_column_size(item -> 'payload') > payload_limit then
    perform holdfast.refuse('HF210',
      format('payload of %s (%s) is %s, the limit for queue %L is %s', v_item, item ->> 'kind',
        pg_size_pretty(pg_column_size(item -> 'payload')::bigint), coalesce(item ->> 'queue', 'default'), pg_size_pretty(payload_limit::bigint)),
      null, 'Store the data elsewhere and pass its address, or raise payload_limit of the queue.');
  end if;
  perform holdfast.refuse('HF201', format('headers of %s must be an object, got %s', v_item, left((item -> 'headers')::text, 80)));
end
$$;

-- lane_firsts: which items with a lane may be ready at once. A job may start out blocked only behind
-- one that commits together with it: any other could end unseen before, and nothing would wake this
-- one. Where a key may refuse the first, none is blocked. The claim decides; this only spares it work.
create or replace function holdfast.lane_firsts(items jsonb)
returns bigint[]
language sql immutable
as $$
  select case
    when items @? '$[*].key' or items @? '$[*].delay' or items @? '$[*].run_at' then
      array(select generate_series(1, jsonb_array_length(items)::bigint))
    else array(
      select min(i.ord)
      from jsonb_array_elements(items) with ordinality as i(item, ord)
      where i.item ->> 'lane' is not null
      group by coalesce(i.item ->> 'queue', 'default'), i.item ->> 'lane')
  end
$$;

create or replace function holdfast.fanned_part(queue text, fanout integer, by text)
returns smallint
language sql volatile
as $$
  select ((holdfast.queue_part(queue)
    + coalesce((('x' || substr(md5(by), 1, 8))::bit(32)::bigint), (random() * 1000000)::bigint) % fanout) % 64)::smallint
$$;

-- known_before: ids among the items whose jobs were stored by an earlier sending and have since been
-- claimed or have ended. A live job is met by its key; a finished one left only its traces.
create or replace function holdfast.known_before(items jsonb, at timestamptz)
returns uuid[]
language plpgsql stable
as $$
declare
  v_ids   uuid[];
  v_since timestamptz;
begin
  select array_agg(g.id), min(case
      when get_byte(uuid_send(g.id), 6) >> 4 = 8
      then to_timestamp((('x' || substr(encode(uuid_send(g.id), 'hex'), 1, 12))::bit(48)::bigint) / 1000.0)
      else '-infinity' end)
  into v_ids, v_since
  from (
    select case when holdfast.part_of(i.id) = i.part then i.id else holdfast.stamp(i.id, i.part) end as id
    from holdfast.items_of(items, at) i
    where i.id is not null
  ) g;
  return array(
    select e.id
    from unnest(v_ids) g(id)
    join holdfast.ended e on e.part = holdfast.part_of(g.id) and e.id = g.id
    union
    select leased.id
    from holdfast.lease l
    cross join lateral unnest(l.ids) leased(id)
    join unnest(v_ids) g(id) on g.id = leased.id
    where l.claimed_at >= v_since - interval '1 minute'
      -- A job that is live again is met by its id, and must be: the repeat has to write.
      and not exists (select from holdfast.job j where j.part = l.part and j.id = leased.id));
end
$$;

-- enqueue_again: the careful way for one item that a plain insert did not store: a repeat of itself,
-- or a key that is taken.
create or replace function holdfast.enqueue_again(item jsonb, wanted uuid, at timestamptz, out id uuid, out created boolean)
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
  select i.queue, i.kind, i.run_at, i.lane, i.tenant, i.by_kind, i.max_attempts,
         item ->> 'key' as key, item ->> 'subject' as subject,
         coalesce((item ->> 'priority')::smallint, 0::smallint) as priority,
         make_interval(secs => (item ->> 'lease')::double precision) as lease_for,
         nullif(item -> 'headers', 'null') as headers, coalesce(item -> 'payload', '{}') as payload
  into g
  from holdfast.items_of(jsonb_build_array(item), at) i;
  v_ready := g.run_at <= at;

  for turn in 1 .. 10 loop
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

    if not found then
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
    elsif rival.token is null and v_policy <> 'replace' then
      id := rival.id;
      created := false;
      return;
    elsif rival.token is null then
      update holdfast.job j
      set payload = g.payload, headers = g.headers, priority = g.priority, max_attempts = g.max_attempts,
          lease_for = g.lease_for, subject = g.subject, run_at = g.run_at, attempt = 0, error = null,
          blocked  = j.blocked and v_ready,
          lane_seq = case when v_ready then coalesce(j.lane_seq, case when j.lane is not null then nextval('holdfast.pos') end) end,
          pos      = case
            when not v_ready or j.blocked then null
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
      insert into holdfast.job (
        part, id, queue, kind, priority, run_at, created_at, max_attempts, lease_for, key, lane, tenant,
        subject, headers, payload, by_kind, follow, blocked, pos)
      values (
        v_part, wanted, g.queue, g.kind, g.priority, g.run_at, at, g.max_attempts, g.lease_for, g.key, g.lane, g.tenant,
        g.subject, g.headers, g.payload, g.by_kind, true, true, null)
      on conflict (part, queue, kind, key, follow) where key is not null
      do update set payload = excluded.payload, headers = excluded.headers, priority = excluded.priority,
                    run_at = excluded.run_at, subject = excluded.subject
      where v_policy = 'replace'
      returning id into id;
      if not found then
        select j.id into id
        from holdfast.job j
        where j.part = v_part and j.queue = g.queue and j.kind = g.kind and j.key = g.key and j.follow;
        continue when not found;
      end if;
      created := id = wanted;
    end if;

    if created then
      insert into holdfast.tally (part, queue, kind, queued) values (v_part, g.queue, g.kind, 1);
    end if;
    if id is not null then
      return;
    end if;
  end loop;
  raise exception using
    errcode = 'serialization_failure',
    message = format('key %L of kind %L changed hands too often to be enqueued', g.key, g.kind),
    hint = 'Repeat the transaction.';
end
$$;

-- copied: what a COPY into holdfast.job owes in the same transaction: the counters and the wake-up.
create or replace function holdfast.copied(queue text, kinds text[], counts bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into holdfast.tally (part, queue, kind, queued)
  select holdfast.queue_part(copied.queue), copied.queue, c.kind, c.jobs
  from unnest(kinds, counts) c(kind, jobs);
  perform holdfast.wake(array[copied.queue], (select sum(jobs) from unnest(counts) jobs)::bigint);
end
$$;

-- wake: tell idle workers of these queues. Only those that said they wait are told, each once: a busy
-- fleet costs its producers no notification, which would serialise their commits.
create or replace function holdfast.wake(queues text[], jobs bigint)
returns void
language plpgsql
as $$
begin
  if not exists (select from holdfast.waiter w where w.queue = any(queues) and w.until > holdfast.now()) then
    return;
  end if;
  with woken as (
    delete from holdfast.waiter w
    where w.ctid = any(array(
      select x.ctid
      from holdfast.waiter x
      where x.queue = any(queues) and x.until > holdfast.now()
      limit least(jobs, 16)
      for update skip locked))
    returning w.queue, w.worker
  )
  select count(pg_notify('holdfast', w.queue || E'\n' || w.worker)) into jobs from woken w;
end
$$;

-- await_work: an idle worker asks to be woken by the next enqueue into one of these queues.
-- NOTIFY is only a hint: whoever waits also polls.
create or replace function holdfast.await_work(queues text[], worker text, patience interval default '1 minute')
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('worker', worker);
  insert into holdfast.waiter (queue, until, worker)
  select q, holdfast.now() + patience, await_work.worker
  from unnest(queues) q;
end
$$;
