-- Queues: settings, pause and resume.

-- queue_set: change a queue's settings; unknown names and invalid values are refused. The queue does not have to
-- exist.
create or replace function holdfast.queue_set(queue text, settings jsonb, actor text default null)
returns setof holdfast.queues
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_known constant text[] := '{max_attempts,lease,keep_done,payload_limit,backoff,backoff_cap,limit,rate_limit,'
    'rate_period,fair,by_kind,lane_limit,lane_on_failure,fanout,activity,keep_activity,archive_dead,archive_done,'
    'keep_recent}';
  v_field text;
  old     holdfast.queue;
  new     holdfast.queue;
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_other_node(queue);
  if settings is null or jsonb_typeof(settings) <> 'object' then
    perform holdfast.refuse('HF221', 'settings must be a JSON object', null, 'For example {"limit": 4}.');
  end if;
  select k into v_field from jsonb_object_keys(settings) k where not k = any(v_known) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF221', format('queue setting %L is unknown', v_field), null,
      'Settings are: ' || array_to_string(v_known, ', ') || '.');
  end if;

  if settings ? 'fanout' and (settings ->> 'fanout') is distinct from coalesce((
       select q.fanout::text from holdfast.queue q where q.name = queue_set.queue), '1') then
    perform holdfast.still_jobs(queue);   -- before the queue's row, as everybody does
  elsif settings ?| '{limit,fair,by_kind,lane_limit}' then
    lock table holdfast.job in row exclusive mode;   -- likewise: its rows may have to follow
  end if;
  -- Made or marked as somebody's in one statement: what nobody set up may be forgotten at any moment.
  insert into holdfast.queue as q
  select d.*
  from jsonb_populate_record(holdfast.unset_queue(queue), jsonb_build_object('set_at', holdfast.now())) d
  on conflict (name) do update set set_at = excluded.set_at
  returning q.* into old;
  perform holdfast.refuse_other_node(queue);   -- again: it may have been placed while this waited for its row
  if jsonb_typeof(settings -> 'fanout') = 'number' and (settings ->> 'fanout')::numeric < old.fanout then
    perform holdfast.refuse('HF221', format('fanout of queue %L is %s and can only grow', queue, old.fanout), null,
      'Ended jobs keep their part.');
  end if;
  if settings ? 'fanout' and (settings ->> 'fanout') is distinct from old.fanout::text
     and holdfast.has_jobs(queue, old.fanout) then
    perform holdfast.refuse('HF221', format('fanout of queue %L cannot change while it has live jobs', queue), null,
      'Stop producers, let the queue drain, then change it. A job cancelled while it ran counts until its worker has '
      'stopped it.');
  end if;
  begin
    update holdfast.queue q
    set max_attempts    = case when settings ? 'max_attempts' then (settings ->> 'max_attempts')::smallint
        else q.max_attempts end,
        lease           = case when settings ? 'lease'
        then make_interval(secs => (settings ->> 'lease')::double precision) else q.lease end,
        keep_done       = case when settings ? 'keep_done'
        then make_interval(secs => (settings ->> 'keep_done')::double precision) else q.keep_done end,
        payload_limit   = case when settings ? 'payload_limit' then (settings ->> 'payload_limit')::integer
        else q.payload_limit end,
        backoff         = case when settings ? 'backoff'
        then make_interval(secs => (settings ->> 'backoff')::double precision) else q.backoff end,
        backoff_cap     = case when settings ? 'backoff_cap'
        then make_interval(secs => (settings ->> 'backoff_cap')::double precision) else q.backoff_cap end,
        lease_limit     = case when settings ? 'limit' then (settings ->> 'limit')::integer else q.lease_limit end,
        rate_limit      = case when settings ? 'rate_limit' then (settings ->> 'rate_limit')::integer
        else q.rate_limit end,
        rate_period     = case when settings ? 'rate_period'
        then make_interval(secs => (settings ->> 'rate_period')::double precision) else q.rate_period end,
        fair            = case when settings ? 'fair' then (settings ->> 'fair')::boolean else q.fair end,
        by_kind         = case when settings ? 'by_kind' then (settings ->> 'by_kind')::boolean else q.by_kind end,
        lane_limit      = case when settings ? 'lane_limit' then (settings ->> 'lane_limit')::integer
        else q.lane_limit end,
        lane_on_failure = case when settings ? 'lane_on_failure' then settings ->> 'lane_on_failure'
        else q.lane_on_failure end,
        fanout          = case when settings ? 'fanout' then (settings ->> 'fanout')::smallint else q.fanout end,
        activity        = case when settings ? 'activity' then settings ->> 'activity' else q.activity end,
        keep_activity   = case when settings ? 'keep_activity'
        then make_interval(secs => (settings ->> 'keep_activity')::double precision) else q.keep_activity end,
        archive_dead    = case when settings ? 'archive_dead'
        then make_interval(secs => (settings ->> 'archive_dead')::double precision) else q.archive_dead end,
        archive_done    = case when settings ? 'archive_done'
          then make_interval(secs => (settings ->> 'archive_done')::double precision) else q.archive_done end,
        keep_recent     = case when settings ? 'keep_recent' then (settings ->> 'keep_recent')::boolean
        else q.keep_recent end
    where q.name = queue_set.queue
    returning q.* into new;
  exception when check_violation or not_null_violation or invalid_text_representation or numeric_value_out_of_range
    or datetime_field_overflow then
    perform holdfast.refuse('HF221', format('settings %s are not valid for a queue', settings), sqlerrm,
      'Counts are whole numbers; durations are seconds (at most a year; keep_done, archive_dead and archive_done at '
      'most a hundred years); rate_limit and rate_period go together; archive_done needs keep_done.');
  end;

  if new.fanout <> old.fanout then
    perform holdfast.move_lanes(queue, new.fanout);
  end if;
  if new.by_kind and not old.by_kind or new.fair and not old.fair
    or new.lease_limit is not null and old.lease_limit is null then
    perform holdfast.apply_settings(queue, wait => true);
    insert into holdfast.redo (queue) values (queue_set.queue);
  end if;
  if new.lane_limit > old.lane_limit then
    perform holdfast.widen_lanes(queue, 100);
  end if;
  if (new.lease_limit, new.rate_limit, new.rate_period, new.lane_limit) is distinct from (old.lease_limit,
    old.rate_limit, old.rate_period, old.lane_limit) then
    perform holdfast.wake_for_ready(queue, 16);   -- it may let in more than before
  end if;
  perform holdfast.note('queue_set', actor, null, queue, jsonb_build_object('settings', settings));
  return query select q.* from holdfast.queues q where q.queue = queue_set.queue;
end
$$;

-- queue_declare: settings of queues that a program declares when it starts. Each item has a queue and its settings. A
-- setting that is declared as it was before stays as it is now, so an operator's change stays until the declaration of
-- that setting changes. One that is no longer declared goes back to its default. Returns created, changed or same.
create or replace function holdfast.queue_declare(items jsonb, actor text default null)
returns table (ord integer, name text, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_said jsonb;
  v_was  jsonb;
begin
  if items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF221', 'items must be a JSON array of queues', null,
      'For example [{"queue": "mail", "limit": 4}].');
  end if;
  lock table holdfast.job in row exclusive mode;   -- before the rows of queues, as everybody does
  for ord, v_said in
    select i.ord, i.item
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    order by i.item ->> 'queue' collate "C", i.ord
  loop
    if jsonb_typeof(v_said) <> 'object' then
      perform holdfast.refuse('HF221', format('item %s is not an object: %s', ord, holdfast.told(v_said)));
    elsif v_said ? 'fanout' then
      perform holdfast.refuse('HF221', format('fanout of queue %L cannot be declared', v_said ->> 'queue'), null,
        'It can change only while the queue is empty: set it with queue_set.');
    end if;
    name := holdfast.named(format('queue of item %s', ord), v_said ->> 'queue', 120);
    v_said := v_said - 'queue';
    select coalesce(q.declared, '{}') into v_was
    from holdfast.queue q
    where q.name = queue_declare.name
    for update;
    outcome := case when v_was = v_said then 'same' when v_was is null then 'created' else 'changed' end;
    if outcome <> 'same' then
      perform holdfast.queue_set(name, (
        select coalesce(jsonb_object_agg(k.name, case when v_said ? k.name then v_said -> k.name
                                                      else holdfast.default_of(k.name) end), '{}')
        from jsonb_object_keys(coalesce(v_was, '{}') || v_said) k(name)
        where v_was -> k.name is distinct from v_said -> k.name), coalesce(actor, 'code'));
      update holdfast.queue q set declared = v_said where q.name = queue_declare.name;
    end if;
    return next;
  end loop;
end
$$;

-- default_of: the default of a setting, as queue_set takes it.
create or replace function holdfast.default_of(setting text)
returns jsonb
language sql stable
as $$
  select case
    when v.value ~ '^-?[0-9]+:[0-9:.]+$|day|mon|year' then to_jsonb(extract(epoch from v.value::interval))
    else coalesce(to_jsonb(holdfast.unset_queue('')) -> default_of.setting, 'null') end
  from (select to_jsonb(holdfast.unset_queue('')) ->> default_of.setting as value) v
$$;

-- still_jobs: wait until no transaction writes jobs, and block writers until the caller's transaction ends. It waits
-- at most two seconds, because all writers wait behind it.
create or replace function holdfast.still_jobs(queue text)
returns void
language plpgsql
set lock_timeout = '2s'
as $$
begin
  lock table holdfast.job in share row exclusive mode;
exception when lock_not_available then
  perform holdfast.refuse('HF409',
    format('fanout of queue %L cannot change: a transaction that writes jobs has been open for two seconds', queue),
    null,
    'The part of a job with a key or a lane depends on fanout. End long transactions, then try again.');
end
$$;

-- has_jobs: whether a queue has live jobs: ready, leased, scheduled, blocked or held back; or cancelled ones that
-- still keep their slots, which are counted in the parts of their lanes.
create or replace function holdfast.has_jobs(queue text, fanout integer)
returns boolean
language sql stable
set enable_seqscan = off
as $$
  select exists (
    select
    from generate_series(0, fanout - 1) step
    cross join lateral (select ((holdfast.queue_part(has_jobs.queue) + step) % 64)::smallint as part) p
    where exists (select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue and j.pos is not null)
       or exists (select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue and j.pos is null
       and not j.blocked)
       or exists (select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue
       and j.lane_seq is not null)
       or exists (select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue and j.follow)
       or exists (select from holdfast.link) and exists (   -- no index has them: the part is read
         select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue and j.waits is not null)
       or exists (select from holdfast.job j where j.part = p.part and j.queue = has_jobs.queue
       and j.strike is not null)
       or exists (select from holdfast.leaving g where g.part = p.part and g.queue = has_jobs.queue))
$$;

-- move_lanes: move settings and starts of a queue's lanes to the new parts of the lanes.
create or replace function holdfast.move_lanes(queue text, fanout integer)
returns void
language sql
as $$
  with gone as (
    delete from holdfast.lane l where l.queue = move_lanes.queue returning l.*
  )
  insert into holdfast.lane (part, queue, name, lane_limit, on_failure, rate_limit, rate_period, halted_by)
  select distinct on (g.name) holdfast.home(g.queue, move_lanes.fanout, g.name, null, null), g.queue, g.name,
         g.lane_limit, g.on_failure,
         g.rate_limit, g.rate_period, g.halted_by
  from gone g
  order by g.name, num_nonnulls(g.lane_limit, g.on_failure, g.rate_limit, g.halted_by) > 0 desc;
  update holdfast.rate_use u set part = holdfast.home(u.queue, move_lanes.fanout, u.lane, null, null)
  where u.queue = move_lanes.queue and u.lane <> '';
$$;

-- widen_lanes: unblock jobs for which the lanes of a queue now have slots, in this many lanes at most; upkeep does the
-- others.
create or replace function holdfast.widen_lanes(queue text, max_lanes integer)
returns void
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_left integer := max_lanes;
  v_part smallint;
  v_lane text;
begin
  for step in 0 .. holdfast.fanout_of(queue) - 1 loop
    v_part := (holdfast.queue_part(queue) + step) % 64;
    v_lane := '';
    while v_left > 0 loop
      select j.lane into v_lane
      from holdfast.job j
      where j.part = v_part and j.queue = widen_lanes.queue and j.lane_seq is not null and j.blocked and j.lane > v_lane
      order by j.lane
      limit 1;
      exit when not found;
      perform holdfast.unblock(v_part, array[queue], array[v_lane], v_now);
      v_left := v_left - 1;
    end loop;
  end loop;
end
$$;

-- apply_settings: update the columns of jobs that are copies of the queue's settings. Returns whether it reached all of
-- them: without wait, it leaves out those that somebody is at.
create or replace function holdfast.apply_settings(queue text, wait boolean)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  q     holdfast.queue;
  v_ids uuid[];
  v_own uuid[];
begin
  select x.* into q from holdfast.queue x where x.name = apply_settings.queue;
  if not coalesce(q.by_kind or q.fair or q.lease_limit is not null, false) then
    return true;
  end if;
  lock table holdfast.job in row exclusive mode;
  -- As everybody who waits for jobs: in the order of their ids, and no others afterwards. What was claimed meanwhile is
  -- found when the settings are applied once more.
  v_ids := array(
    select j.id
    from holdfast.job j
    where j.queue = q.name
      and (q.by_kind and not j.by_kind or q.fair and j.tenant is null
        or q.lease_limit is not null and j.token is not null and j.held is null));
  if wait then
    v_own := holdfast.lock_jobs(v_ids);
  else
    v_own := array(
      select u.id from unnest(v_ids) u(id)
      cross join lateral (
        select from holdfast.job j where j.part = holdfast.part_of(u.id) and j.id = u.id for update skip locked) j);
  end if;
  update holdfast.job j
  set by_kind = q.by_kind or j.by_kind,
      tenant = case when q.fair then coalesce(j.tenant, '') else j.tenant end,
      held = case when q.lease_limit is not null and j.token is not null then true else j.held end
  from unnest(v_own) u(id)
  where j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.queue = q.name;
  return cardinality(v_own) = cardinality(v_ids);
end
$$;

-- pause: start no new jobs of a queue; running jobs finish. until null: until resumed.
create or replace function holdfast.pause(
  queue text, reason text default null, until timestamptz default null, actor text default null)
returns setof holdfast.queues
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_other_node(queue);
  if until <= holdfast.clock() or not holdfast.is_time(until::text) then
    perform holdfast.refuse('HF204', format('until %s is in the past, or beyond the year 9999', until), null,
      'Leave it out to pause until you resume it.');
  end if;
  insert into holdfast.queue
  select d.*
  from jsonb_populate_record(holdfast.unset_queue(queue), jsonb_build_object('paused_at', holdfast.now(),
    'paused_by', actor, 'paused_reason', reason, 'paused_until', until)) d
  on conflict (name) do update
  set paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_reason = excluded.paused_reason,
    paused_until = excluded.paused_until;
  perform holdfast.refuse_other_node(queue);   -- again: it may have been placed while this waited for its row
  perform holdfast.note('paused', actor, reason, queue, jsonb_build_object('until', until));
  return query select q.* from holdfast.queues q where q.queue = pause.queue;
end
$$;

create or replace function holdfast.resume(queue text, actor text default null)
returns setof holdfast.queues
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_other_node(queue);
  insert into holdfast.queue select d.* from holdfast.unset_queue(queue) d
  on conflict (name) do update set paused_at = null, paused_by = null, paused_reason = null, paused_until = null;
  perform holdfast.refuse_other_node(queue);   -- again: it may have been placed while this waited for its row
  perform holdfast.wake(array[resume.queue], 16);
  perform holdfast.note('resumed', actor, null, queue);
  return query select q.* from holdfast.queues q where q.queue = resume.queue;
end
$$;

-- sort_some: prepare a queue for by_kind without blocking its claims: some of its jobs, after an id, enter the ready
-- orders of their kinds, which are not used yet. Returns the id to continue after, null at the end; queue_set then
-- has little left to do. Jobs that are locked at this moment are left to queue_set.
create or replace function holdfast.sort_some(queue text, after uuid default null, max_jobs integer default 2000)
returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := holdfast.fanout_of(queue);
  v_parts  constant smallint[] := array(
    select p from (select ((v_base + step) % 64)::smallint as p from generate_series(0, v_fanout - 1) step) x
    where after is null or p >= holdfast.part_of(after)
    order by p);
  seen     record;
begin
  if not coalesce(max_jobs between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 100000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  lock table holdfast.job in row exclusive mode;
  select count(*) as jobs, (array_agg(x.id))[count(*)::integer] as last,
         array_agg(x.ctid) filter (where x.queue = sort_some.queue and not x.by_kind) as rows,
         array_agg(x.part) filter (where x.queue = sort_some.queue and not x.by_kind) as parts
  into seen
  from (
    select j.*
    from unnest(v_parts) with ordinality p(part, nth)
    cross join lateral (
      select y.ctid, y.part, y.id, y.queue, y.by_kind
      from holdfast.job y
      where y.part = p.part and y.id > case when holdfast.part_of(after) = p.part then after
        else '00000000-0000-0000-0000-000000000000' end
      order by y.id
      limit max_jobs
    ) j
    limit max_jobs
  ) x;
  update holdfast.job j
  set by_kind = true
  from (
    select z.*
    from unnest(seen.rows, seen.parts) u(place, part)
    cross join lateral (
      select y.ctid as place, y.part from holdfast.job y
      where y.ctid = u.place and y.part + 0 = u.part and y.queue = sort_some.queue and not y.by_kind
      for update skip locked
    ) z
  ) free
  where j.ctid = free.place and j.part + 0 = free.part;
  return case when seen.jobs = max_jobs then seen.last end;
end
$$;
