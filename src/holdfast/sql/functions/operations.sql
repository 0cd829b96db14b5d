-- Work on many jobs: one verb for all that match a filter. First a preview, which counts and fixes the moment
-- as of which jobs match; then, started, it is done chunk by chunk by whoever has time, each chunk and its
-- progress in one transaction. Nobody needs to be there all the while, and nothing is done twice.

-- operation_preview: count the jobs that a verb (retry, cancel, archive, purge, move) would be done to, and
-- note that. arguments: delay in seconds for retry, queue for move. most: only so many, the newest.
create or replace function holdfast.operation_preview(
  verb text, filter text, arguments jsonb default '{}', most bigint default null, reason text default null,
  actor text default null)
returns table (id bigint, token uuid, selects text, as_of timestamptz, total bigint, capped boolean, sample uuid[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  c_cap    constant bigint := 1000000;
  v_filter text := trim(coalesce(filter, ''));
  v_total  bigint;
  v_sample uuid[];
begin
  if not coalesce(verb in ('retry', 'cancel', 'archive', 'purge', 'move'), false) then
    perform holdfast.refuse('HF225', format('verb %L is not one for many jobs', verb), null,
      'Verbs are: retry, cancel, archive, purge, move.');
  end if;
  if v_filter = '' then
    perform holdfast.refuse('HF220', 'an empty filter means every job', null, 'Name them, as in age:>0s');
  end if;
  if jsonb_typeof(arguments) is distinct from 'object' or arguments - '{delay,queue}'::text[] <> '{}'
     or (arguments ? 'queue') <> (verb = 'move') or arguments ? 'delay' and verb <> 'retry'
     or not holdfast.item_details_ok(jsonb_build_object('delay', arguments -> 'delay')) then
    perform holdfast.refuse('HF225', format('arguments %s are not those of %s', left(arguments::text, 200), verb), null,
      'retry takes delay in seconds, move takes queue, the others take none.');
  end if;
  if verb = 'move' then
    perform holdfast.named('queue', arguments ->> 'queue', 120);
  end if;
  if most < 1 then
    perform holdfast.refuse('HF225', format('most is %s', most), null, 'It is at least 1; leave it out for all.');
  end if;
  perform holdfast.filter_sql(v_filter);
  if v_filter !~ '(^|\s)-?state:' then
    v_filter := v_filter || ' state:' || case verb
      when 'retry' then 'dead,cancelled' when 'cancel' then 'queued,leased' when 'archive' then 'dead,cancelled,done'
      when 'move' then 'queued,dead' else 'queued,done,dead,cancelled,archived' end;
  end if;
  execute format('select count(*) from (select from %s j where %s limit $1) x', holdfast.operation_source(verb),
    holdfast.filter_sql(v_filter)) into v_total using least(most, c_cap + 1);
  execute format('select array(select x.id from generate_series(0, 63) p cross join lateral ('
    || 'select j.id from %s j where j.part = p::smallint and %s order by j.id desc limit 5) x order by x.id desc limit least(5, $1))',
    holdfast.operation_source(verb), holdfast.filter_sql(v_filter)) into v_sample using most;
  return query
    insert into holdfast.operation as o (verb, filter, arguments, most, as_of, total, capped, reason, actor, created_at)
    values (operation_preview.verb, v_filter, operation_preview.arguments, operation_preview.most, holdfast.now(),
      least(v_total, c_cap), v_total > c_cap, operation_preview.reason, operation_preview.actor, holdfast.now())
    returning o.id, o.token, o.filter, o.as_of, o.total, o.capped, v_sample;
end
$$;

-- operation_start: start what was previewed within the last ten minutes, at most rate jobs per second. A
-- repeat starts nothing again. No row if there is no such preview.
create or replace function holdfast.operation_start(token uuid, rate double precision default null, actor text default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  o holdfast.operation;
begin
  if rate <= 0 or rate > 1000000 then
    perform holdfast.refuse('HF225', format('rate %s is not a number of jobs per second', rate), null, 'Leave it out for as fast as it goes.');
  end if;
  select x.* into o from holdfast.operation x where x.token = operation_start.token for update;
  if o.state = 'previewed' then
    if o.created_at < holdfast.now() - interval '10 minutes' then
      perform holdfast.refuse('HF412', format('the preview is of %s, what matches may be something else by now',
        to_char(o.created_at, 'HH24:MI:SS TZ')), null, 'Preview it again.');
    end if;
    update holdfast.operation x
    set state = 'running', rate = operation_start.rate, actor = coalesce(operation_start.actor, x.actor),
        started_at = holdfast.now(), next_at = holdfast.now()
    where x.id = o.id;
    perform holdfast.note('operation_started', coalesce(operation_start.actor, o.actor), o.reason,
      detail => jsonb_build_object('operation', o.id, 'verb', o.verb, 'filter', o.filter, 'arguments', o.arguments, 'total', o.total, 'most', o.most));
  end if;
  return query select v.* from holdfast.operations v where v.id = o.id;
end
$$;

-- operation_cancel: stop an operation behind its last chunk; what it did stays done. An operation that has
-- ended is as it was. No row if there is none.
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

-- operation_step: do the next chunk of one operation that is due and that nobody else is at. No row: there
-- is none.
create or replace function holdfast.operation_step(max_jobs integer default 500)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := holdfast.now();
  v_want    integer;
  v_ids     uuid[];
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
    select n.ids, n.ended, n.at_part, n.at_id into v_ids, v_ended, o.at_part, o.at_id
    from holdfast.operation_next(o, v_want) n;
    v_changed := holdfast.operation_apply(o, v_ids);
  exception when others then
    -- what passes by itself is tried again; anything else ends the operation, and says why
    if sqlstate like any ('{25%,40%,53%,55%,57%}') then
      raise;
    end if;
    update holdfast.operation x
    set state = 'failed', ended_at = v_now, problem = format('%s: %s', sqlstate, sqlerrm)
    where x.id = o.id;
    perform holdfast.note('operation_failed', o.actor, sqlerrm, detail => jsonb_build_object('operation', o.id, 'verb', o.verb));
    return query select v.* from holdfast.operations v where v.id = o.id;
    return;
  end;
  v_ended := v_ended or coalesce(o.seen + cardinality(v_ids) >= o.most, false);
  update holdfast.operation x
  set seen = x.seen + cardinality(v_ids), changed = x.changed + v_changed, at_part = o.at_part, at_id = o.at_id,
      total = greatest(x.total, x.seen + cardinality(v_ids)),
      next_at = case when x.rate is null then v_now else greatest(x.next_at, v_now - interval '1 second') + make_interval(secs => cardinality(v_ids) / x.rate) end,
      state = case when v_ended then 'done' else x.state end,
      ended_at = case when v_ended then v_now end
  where x.id = o.id;
  if v_ended then
    perform holdfast.note('operation_ended', o.actor, o.reason, detail => jsonb_build_object('operation', o.id, 'verb', o.verb,
      'filter', o.filter, 'changed', o.changed + v_changed, 'seen', o.seen + cardinality(v_ids)));
  end if;
  return query select v.* from holdfast.operations v where v.id = o.id;
end
$$;

-- operation_next: the next ids of an operation, and where it goes on behind them. All jobs: part by part,
-- so that each chunk reads one index where it stopped. Only some: the newest of all parts.
create or replace function holdfast.operation_next(o holdfast.operation, want integer)
returns table (ids uuid[], ended boolean, at_part smallint, at_id uuid)
language plpgsql
as $$
declare
  v_some   uuid[];
  v_from   constant text := format('select j.id from %s j where j.part =', holdfast.operation_source(o.verb));
  v_behind constant text := format('and ($2 is null or j.id < $2) and coalesce(j.ended_at, j.created_at) <= $3 and %s order by j.id desc limit $4',
    holdfast.filter_sql(o.filter));
begin
  ids := '{}';
  ended := false;
  at_part := o.at_part;
  at_id := o.at_id;
  if o.most is not null then
    execute 'select array(select x.id from generate_series($1, 63) p cross join lateral (' || v_from || ' p::smallint ' || v_behind
      || ') x order by x.id desc limit $4)'
      into ids using 0, at_id, o.as_of, want;
    ended := cardinality(ids) < want;
    at_id := coalesce(ids[cardinality(ids)], at_id);
    return next;
    return;
  end if;
  loop
    execute 'select array(' || v_from || ' $1 ' || v_behind || ')' into v_some using at_part, at_id, o.as_of, want - cardinality(ids);
    ids := ids || v_some;
    at_id := coalesce(v_some[cardinality(v_some)], at_id);
    exit when cardinality(ids) >= want;
    at_part := at_part + 1;
    at_id := null;
    ended := at_part > 63;
    exit when ended;
  end loop;
  return next;
end
$$;

-- operation_apply: do the verb to some jobs; how many it changed.
create or replace function holdfast.operation_apply(o holdfast.operation, ids uuid[])
returns bigint
language plpgsql
as $$
declare
  v_reason  constant text := coalesce(o.reason, format('operation %s by %s', o.id, coalesce(o.actor, 'nobody')));
  v_changed bigint;
begin
  case o.verb
    when 'retry' then
      select count(*) into v_changed
      from holdfast.retry(ids, v_reason, o.actor, make_interval(secs => (o.arguments ->> 'delay')::double precision)) c where c.changed;
    when 'cancel' then
      select count(*) into v_changed from holdfast.cancel(ids, v_reason, o.actor) c where c.changed;
    when 'archive' then
      select count(*) into v_changed from holdfast.archive(ids, v_reason, o.actor) c where c.changed;
    when 'purge' then
      select count(*) into v_changed from holdfast.purge(ids, v_reason, o.actor) c where c.changed;
    when 'move' then
      select count(*) into v_changed from holdfast.move(ids, o.arguments ->> 'queue', v_reason, o.actor) c where c.changed;
  end case;
  return v_changed;
end
$$;

-- operation_source: where the jobs of a verb can be. Looking among live jobs for dead ones would read them all.
create or replace function holdfast.operation_source(verb text)
returns text
language sql immutable parallel safe
as $$
  select case verb
    when 'retry' then 'holdfast.ended'
    when 'archive' then 'holdfast.ended'
    when 'cancel' then '(select x.*, case when x.token is null then ''queued'' else ''leased'' end as state,'
      || ' null::text as fingerprint, null::timestamptz as ended_at from holdfast.job x)'
    else 'holdfast.jobs'
  end
$$;
