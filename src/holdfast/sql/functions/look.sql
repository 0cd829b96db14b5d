-- Reading: one job, many jobs by filter, failed attempts, and why a job is not running.

-- get: one job wherever it is; no row if there is none (a done job is deleted unless its queue keeps it).
create or replace function holdfast.get(id uuid)
returns setof holdfast.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
rows 1
as $$
#variable_conflict use_column
declare
  v_id constant uuid := holdfast.locate(id);
begin
  if holdfast.part_of(v_id) >= 64 then
    return query select j.* from holdfast.adopted_rows(holdfast.part_of(v_id), array[v_id]) j;
    return;
  end if;
  -- of an id that ended more than once, the one that a retry would take
  return query
    select j.* from holdfast.own_jobs j
    where j.part = holdfast.part_of(v_id) and j.id = v_id
    order by j.ended_at is null desc, j.state = 'dead' desc, j.ended_at desc
    limit 1;
end
$$;

-- list: jobs that match a filter, newest first. before is the last id of the previous page.
create or replace function holdfast.list(filter text default '', max_jobs integer default 100, before uuid default null)
returns setof holdfast.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids constant uuid[] := holdfast.ids_in(filter, before);
begin
  if not coalesce(max_jobs between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 100000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  if v_ids is not null then
    return query
      select l.*
      from holdfast.search_in(v_ids, filter, max_jobs, null) s
      cross join lateral holdfast.list_in(array(select distinct f from unnest(s.hits) f order by f desc), filter) l
      limit max_jobs;
    return;
  end if;
  -- of adopted tables only those that can have such jobs: to know that none fits, one is read from end to end
  return query execute
    'select x.* from unnest($4) p cross join lateral ('
    || '  (select j.* from holdfast.own_jobs j where j.part = p and ($2 is null or j.id < $2) and '
    || holdfast.filter_sql(filter)
    || '  order by j.id desc limit $1)'
    || '  union all select l.* from holdfast.list_adopted(p, $3, $1, $2) l where p >= 64) x order by x.id desc limit $1'
  using max_jobs, before, filter, array(
    select p from unnest(holdfast.parts()) p where p < 64 or p = any(holdfast.parts_in(filter)));
end
$$;

-- died: dead jobs that match a filter, the most recent failure first. before and before_id are when the last job of
-- the previous page ended, and its id. Rows of adopted tables have no order by time: the newest of each table are
-- returned.
create or replace function holdfast.died(
  filter text default '', max_jobs integer default 100, before timestamptz default null, before_id uuid default null)
returns setof holdfast.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_ids constant uuid[] := holdfast.ids_in(filter, null);
begin
  if not coalesce(max_jobs between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 100000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  if v_ids is not null then
    return query
      select l.*
      from holdfast.list_in(v_ids, 'state:dead ' || filter) l
      where before is null
        or (l.ended_at, l.id) < (before, coalesce(before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
      order by l.ended_at desc, l.id desc
      limit max_jobs;
    return;
  end if;
  return query execute
    'select x.* from ('
    || '  (select j.* from holdfast.dead d cross join lateral ('
    || '     select o.* from holdfast.own_jobs o where o.part = d.part and o.id = d.id and o.state = ''dead'' limit '
       '1) j'
    || '   where ' || case when before is null then 'true'
    else 'd.ended_at <= $2 and (d.ended_at < $2 or d.id < $3)' end
    || '   and ' || holdfast.filter_sql(filter)
    || '   order by d.ended_at desc, d.id desc limit $1)'
    || '  union all select l.* from unnest(holdfast.parts()) p cross join lateral holdfast.list_adopted(p, $4, $1, '
       'null) l'
    || '  where p >= 64 and ($2 is null or l.ended_at < $2 or l.ended_at = $2 and l.id < $3)) x'
    || ' order by x.ended_at desc nulls last, x.id desc limit $1'
  using max_jobs, before, coalesce(before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), 'state:dead ' || filter;
end
$$;

-- ids_in: if a filter has only jobs of some workflows, the ids under which those may be stored that the workflows know
-- to be in one of its states, newest first: what looks for them need not read any others. Null if the filter is not
-- limited so. before: only those with a smaller id.
create or replace function holdfast.ids_in(filter text, before uuid)
returns uuid[]
language plpgsql stable
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  c_id     constant text := '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}';
  -- of several terms the first: the filter itself checks them all
  v_flows  constant uuid[] := string_to_array((regexp_match(' ' || holdfast.unquoted(filter),
    format('\sworkflow:(%1$s(?:,%1$s)*)(?=\s|$)', c_id)))[1], ',')::uuid[];
  v_states constant text[] := holdfast.states_in(filter);
  v_live   constant boolean := v_states is null or v_states && '{queued,leased}';
  v_done   constant boolean := v_states is null or v_states && '{done,archived}';
  v_ended  constant boolean := v_states is null or v_states && '{done,dead,cancelled,archived}';
  v_ids    uuid[];
  v_moved  uuid[];
begin
  if v_flows is null then
    return null;
  end if;
  v_ids := array(
    select m.id from holdfast.member m
    where m.workflow = any(v_flows)
      and case when m.state is null then v_live when m.state = 'done' then v_done else v_ended end);
  v_moved := v_ids;
  for hop in 1 .. 64 loop   -- as many as in locate
    exit when cardinality(v_moved) = 0 or not exists (select from holdfast.alias);
    v_moved := array(
      select a.stored
      from unnest(v_moved) u(id)
      cross join lateral (
        select x.stored from holdfast.alias x where x.part = holdfast.part_of(u.id) and x.id = u.id limit 1) a);
    v_ids := v_ids || v_moved;
  end loop;
  return array(select distinct i from unnest(v_ids) i where before is null or i < before order by i desc);
end
$$;

-- list_in: of the jobs with these ids those that match a filter, in the order of the ids. The fence (offset 0) keeps
-- the planner from reading all jobs instead of looking these up.
create or replace function holdfast.list_in(ids uuid[], filter text)
returns setof holdfast.own_jobs
language plpgsql stable
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return query execute
    'select x.* from unnest($1) with ordinality u(id, nth) cross join lateral ('
    || '  select j.* from holdfast.own_jobs j where j.part = holdfast.part_of(u.id) and j.id = u.id and '
    || holdfast.filter_sql(filter) || ' offset 0) x order by u.nth, x.ended_at desc nulls first'
  using ids;
end
$$;

-- search_in: of these ids, newest first, those of up to max_jobs jobs that match a filter; an id of two such jobs is
-- there twice. It stops after patience, if there is any: bound is the last id that was checked then.
create or replace function holdfast.search_in(
  ids uuid[], filter text, max_jobs integer, patience interval, out hits uuid[], out bound uuid, out seen bigint)
language plpgsql stable
as $$
declare
  v_until constant timestamptz := clock_timestamp() + patience;
  v_step  integer := least(max_jobs, 1000);
  v_began timestamptz;
  v_took  double precision;
begin
  perform holdfast.filter_sql(filter);   -- refuses what is not one, also where there is nothing to look at
  hits := '{}';
  seen := 0;
  while seen < cardinality(ids) and cardinality(hits) < max_jobs loop
    if v_began is not null then
      v_took := greatest(extract(epoch from clock_timestamp() - v_began), 0.000001);
      exit when v_until - clock_timestamp() < make_interval(secs => v_took / 2);
      -- as in search
      v_step := least(greatest(v_step * least(4, extract(epoch from patience) / 10 / v_took), 10), 100000);
    end if;
    v_began := clock_timestamp();
    hits := hits || array(
      select l.id from holdfast.list_in(ids[seen + 1 : seen + v_step], filter) l);
    seen := least(seen + v_step, cardinality(ids));
  end loop;
  if cardinality(hits) < max_jobs and seen < cardinality(ids) then
    bound := ids[seen];
  end if;
  hits := hits[:max_jobs];
end
$$;

-- upcoming: the waiting jobs of a queue, in the order in which they will run: ready jobs by priority and position,
-- then scheduled jobs by time. Jobs that wait for another job to end have no position yet. Not considered here: a
-- fair queue takes tenants in turn, a queue with fanout takes its parts in turn, and an adopted table has its own
-- order.
create or replace function holdfast.upcoming(queue text, max_jobs integer default 100)
returns setof holdfast.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := holdfast.fanout_of(queue);
begin
  perform holdfast.named('queue', queue, 120);
  if not coalesce(max_jobs between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 100000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  return query
    select o.*
    from (
      select r.part, r.id, r.priority, r.pos, r.run_at
      from generate_series(0, v_fanout - 1) step
      cross join generate_series(0, 9) level
      cross join lateral (
        select j.part, j.id, j.priority, j.pos, null::timestamptz as run_at
        from holdfast.job j
        where j.part = ((v_base + step) % 64)::smallint and j.queue = upcoming.queue and j.priority = level::smallint
          and j.pos is not null and j.token is null
        order by j.pos
        limit max_jobs
      ) r
      union all
      select d.part, d.id, d.priority, null, d.run_at
      from generate_series(0, v_fanout - 1) step
      cross join lateral (
        select j.part, j.id, j.priority, j.run_at
        from holdfast.job j
        where j.part = ((v_base + step) % 64)::smallint and j.queue = upcoming.queue and j.pos is null and not j.blocked
          and j.token is null
        order by j.run_at
        limit max_jobs
      ) d
      order by 5 nulls first, 3 desc, 4
      limit max_jobs
    ) w
    cross join lateral (
      select x.* from holdfast.own_jobs x where x.part = w.part and x.id = w.id and x.state = 'queued' limit 1) o
    order by w.run_at nulls first, w.priority desc, w.pos;
end
$$;

-- search: jobs that match a filter, newest first; it stops after patience. In every row searched_to is null if the
-- page is full or there is nothing older; otherwise nothing older than this id was checked, and a search before it
-- continues. searched is how many jobs were checked. A search that found nothing in time returns one row without a
-- job.
create or replace function holdfast.search(
  filter text default '', max_jobs integer default 50, before uuid default null,
    patience interval default '50 milliseconds')
returns table (job holdfast.jobs, searched_to uuid, searched bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_until  constant timestamptz := clock_timestamp() + patience;
  v_states constant text[] := holdfast.states_in(filter);
  v_ids    constant uuid[] := holdfast.ids_in(filter, before);
  v_parts  smallint[] := holdfast.parts_in(filter);
  v_from   uuid[] := array_fill(before, array[cardinality(v_parts)]);
  v_step   integer := max_jobs;
  v_began  timestamptz := clock_timestamp();
  v_took   double precision;
  v_hits   uuid[] := '{}';
  v_found  uuid[];
  v_bound  uuid;
  v_seen   bigint := 0;
  v_sql    text;
  v_some   record;
begin
  if not coalesce(max_jobs between 1 and 100000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 100000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  -- Of every part so many rows are looked at, newest first, and as many as time allows in the next round. What
  -- is newer than all that is left to look at is known for sure.
  v_sql := format('select array_agg(r.part) filter (where r.seen = $3) as parts, array_agg(r.oldest) filter (where '
    'r.seen = $3) as oldest,'
    || ' coalesce(sum(r.seen), 0) as seen, (select array_agg(h) from unnest(array_agg(r.hits)) h) as hits from ('
    || 'select p.part, count(*) as seen, (array_agg(x.id order by x.id))[1] as oldest,'
    || ' array_to_string(array_agg(x.id) filter (where x.hit), '','') as hits'
    || ' from unnest($1, $2) p(part, start) cross join lateral ('
    || ' (select j.id, coalesce((%1$s), false) as hit from (%2$s) j where j.part = p.part and (p.start is null or '
       'j.id < p.start) order by j.id desc limit $3)'
    || ' union all select j.id, coalesce((%1$s), false) from holdfast.adopted_rows(p.part, null, p.start, $3) j where '
       'p.part >= 64) x'
    || ' group by p.part) r', holdfast.filter_sql(filter), holdfast.search_source(v_states));
  if v_ids is not null then
    select s.hits, s.bound, s.seen into v_found, v_bound, v_seen
    from holdfast.search_in(v_ids, filter, max_jobs, patience) s;
  end if;
  while v_ids is null loop
    execute v_sql into v_some using v_parts, v_from, v_step;
    v_hits := v_hits || array(select i::uuid from unnest(v_some.hits) h cross
      join lateral unnest(string_to_array(h, ',')) i);
    v_seen := v_seen + v_some.seen;
    v_parts := v_some.parts;
    v_from := v_some.oldest;
    v_bound := (select max(i::text)::uuid from unnest(v_from) i);
    v_found := array(select i from unnest(v_hits) i where v_bound is null or i >= v_bound order by i desc
      limit max_jobs);
    v_took := greatest(extract(epoch from clock_timestamp() - v_began), 0.000001);
    exit when v_bound is null or cardinality(v_found) >= max_jobs
      or v_until - clock_timestamp() < make_interval(secs => v_took / 2);
    -- The next round takes a tenth of the time, going by the last one: rows that lie further back may not be in
    -- memory, and take ten times as long.
    v_step := least(greatest(v_step * least(4, extract(epoch from patience) / 10 / v_took), 10), 100000);
    v_began := clock_timestamp();
  end loop;
  if cardinality(v_found) >= max_jobs then
    v_bound := null;
  end if;
  return query
    select j, v_bound, v_seen
    from unnest(v_found) with ordinality f(id, nth)
    cross join lateral holdfast.get(f.id) j
    order by f.nth;
  if not found and v_bound is not null then
    return query select null::holdfast.jobs, v_bound, v_seen;
  end if;
end
$$;

-- count_jobs: how many jobs match a filter, counted up to most and no longer than about patience. capped: there may
-- be more, for either reason.
create or replace function holdfast.count_jobs(
  filter text default '', most integer default 10000, patience interval default '50 milliseconds')
returns table (jobs bigint, capped boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
  v_until constant timestamptz := clock_timestamp() + patience;
  v_ids   constant uuid[] := holdfast.ids_in(filter, null);
  v_parts smallint[] := holdfast.parts_in(filter);
  v_from  uuid[] := array_fill(null::uuid, array[cardinality(v_parts)]);
  v_step  integer := 1000;
  v_sql   text;
  v_some  record;
begin
  if not coalesce(most between 1 and 1000000, false) then
    perform holdfast.refuse('HF204', format('most must be 1 to 1000000 (got %s)', coalesce(most::text, 'null')));
  end if;
  if v_ids is not null then
    select least(cardinality(s.hits), most), s.bound is not null or cardinality(s.hits) > most into jobs, capped
    from holdfast.search_in(v_ids, filter, most + 1, patience) s;
    return next;
    return;
  end if;
  v_sql := format('select array_agg(r.part) filter (where r.seen = $3) as parts, array_agg(r.oldest) filter (where '
    'r.seen = $3) as oldest,'
    || ' coalesce(sum(r.hits), 0) as hits from ('
    || 'select p.part, count(*) as seen, (array_agg(x.id order by x.id))[1] as oldest, count(*) filter (where x.hit) '
       'as hits'
    || ' from unnest($1, $2) p(part, start) cross join lateral ('
    || ' (select j.id, coalesce((%1$s), false) as hit from (%2$s) j where j.part = p.part and (p.start is null or '
       'j.id < p.start) order by j.id desc limit $3)'
    || ' union all select j.id, coalesce((%1$s), false) from holdfast.adopted_rows(p.part, null, p.start, $3) j where '
       'p.part >= 64) x'
    || ' group by p.part) r', holdfast.filter_sql(filter), holdfast.search_source(holdfast.states_in(filter)));
  jobs := 0;
  loop
    execute v_sql into v_some using v_parts, v_from, v_step;
    jobs := jobs + v_some.hits;
    v_parts := v_some.parts;
    v_from := v_some.oldest;
    exit when v_parts is null or jobs > most or clock_timestamp() > v_until;
    v_step := least(4 * v_step, 100000);
  end loop;
  capped := v_parts is not null or jobs > most;
  jobs := least(jobs, most);
  return next;
end
$$;

-- unquoted: a filter without its quoted parts, which contain no terms.
create or replace function holdfast.unquoted(filter text)
returns text
language sql immutable
as $$
  select regexp_replace(filter, '"(?:[^"\\]|\\.)*"', '""', 'g')
$$;

-- states_in: the states that a filter selects; null for all.
create or replace function holdfast.states_in(filter text)
returns text[]
language sql immutable
as $$
  select array_agg(s.state)
  from unnest('{queued,leased,done,dead,cancelled,archived}'::text[]) s(state)
  where not exists (
    select from regexp_matches(' ' || holdfast.unquoted(filter), '\sstate:([a-z,]+)(?=\s|$)', 'g') m
      where not s.state = any(string_to_array(m[1], ',')))
  having count(*) < 6
$$;

-- parts_in: the parts in which the jobs of a filter can be: those of the queues it names, or all.
create or replace function holdfast.parts_in(filter text)
returns smallint[]
language sql stable
as $$
  with named as (
    select q.name
    from regexp_matches(' ' || holdfast.unquoted(filter), '\squeue:([^\s"*,]+)(?=\s|$)', 'g') m
    cross join lateral (select m[1] as name) q
    limit 1
  )
  select coalesce(
    (select array[q.adopted] from named n join holdfast.queue q on q.name = n.name and q.adopted is not null),
    (select array_agg(distinct ((holdfast.queue_part(n.name) + step) % 64)::smallint)
     from named n
     cross join lateral generate_series(0, holdfast.fanout_of(n.name) - 1) step),
    holdfast.parts())
$$;

-- search_source: the tables that have jobs of these states, in the order of ids. The filter checks the state of each
-- row; a table without such states is left out, because it would be read to its end.
create or replace function holdfast.search_source(states text[])
returns text
language sql stable
as $$
  select concat_ws(' union all ',
    case when states is null or states && '{queued,leased}' then
      'select x.part, x.id, case when x.token is null then ''queued'' else ''leased'' end as state, x.queue, x.kind, '
      'x.priority, x.attempt, coalesce(x.attempts_before, 0) + x.attempt as total_attempts,'
      || ' x.created_at, x.worker, x.key, x.lane, x.tenant, x.subject, x.error, null::text as fingerprint, x.payload,'
      || ' null::timestamptz as ended_at, x.reason, case when x.link is not null then '
      || 'holdfast.workflow_of_link(x.link) end as workflow from holdfast.job x' end,
    (select string_agg(format('select e.part, e.id, e.state, e.queue, e.kind, e.priority, e.attempt, '
      'coalesce(e.attempts_before, 0) + e.attempt as total_attempts, e.created_at, e.worker, e.key, e.lane, e.tenant,'
       || ' e.subject, e.error, e.fingerprint, e.payload, e.ended_at, e.reason, case when e.link is not null '
       || 'then holdfast.workflow_of_link(e.link) end as workflow from holdfast.%I e', t.name),
       ' union all ')
     from (values ('dead', '{dead}'::text[]), ('archive', '{archived}'), ('history', '{done,cancelled}')) t(name,
       states)
     where search_source.states is null or search_source.states = '{}' or search_source.states && t.states))
$$;

-- find: the ids of list, for the verbs that take ids.
create or replace function holdfast.find(filter text default '', max_jobs integer default 1000,
  before uuid default null)
returns uuid[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(select l.id from holdfast.list(find.filter, find.max_jobs, find.before) l)
$$;

-- attempts: the attempts of a job that did not end with an ack, oldest first: failed, expired, or reconciled; only
-- some successful ones (done) are kept.
create or replace function holdfast.attempts(id uuid)
returns table (
  attempt smallint, outcome text, worker text, started_at timestamptz, ended_at timestamptz,
  error_kind text, message text, traceback text, fingerprint text, host text, version text, log text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select a.attempt, a.outcome, a.worker, a.started_at, a.ended_at, a.error_kind, a.message, a.traceback, a.fingerprint,
         a.host, a.version, a.log
  from holdfast.attempt a
  where a.id = coalesce(holdfast.locate(attempts.id), attempts.id)
    and a.part = holdfast.part_of(coalesce(holdfast.locate(attempts.id), attempts.id))
  order by a.ended_at, a.attempt
$$;

-- filter_sql: a filter as a condition over holdfast.jobs j. The language:
-- state:dead,cancelled kind:send* -queue:noise attempt:>2 attempts:>5 priority:>=5 age:<2h
-- created:>=2026-01-31T12:00:00Z id:1f00ab12
--   lane: worker: key: tenant: subject: error: group: reason: workflow: payload.user.id:42 "text in the last error"
-- Terms are and-ed, a comma is or, * matches anything, a leading - negates.
create or replace function holdfast.filter_sql(filter text)
returns text
language plpgsql stable
as $$
declare
  v_rest   text := coalesce(filter, '');
  v_terms  text[] := '{}';
  v_at     integer := 1;
  v_match  text[];
  v_field  text;
  v_value  text;
  v_quoted boolean;
  v_column text;
  v_any    text[];
  v_part   text;
  v_op     text;
  v_kinds  text[] := '{}';
  v_path   text;
begin
  loop
    v_at := v_at + length(v_rest) - length(ltrim(v_rest));
    v_rest := ltrim(v_rest);
    exit when v_rest = '';
    v_match := regexp_match(v_rest, '^(-?)(?:([a-z_]+(?:\.[^:\s"]+)?):)?("(?:[^"\\]|\\.)*"|[^\s"]+)(?=\s|$)');
    if v_match is null then
      perform holdfast.refuse('HF220', format('filter: cannot parse %L at position %s', left(v_rest, 30), v_at), null,
        'A term is field:value or "text"; see the filter language in the reference.');
    end if;
    v_field := v_match[2];
    v_quoted := left(v_match[3], 1) = '"';
    v_value := case when v_quoted then regexp_replace(substr(v_match[3], 2, length(v_match[3]) - 2), '\\(.)', '\1', 'g')
      else v_match[3] end;
    v_any := '{}';
    foreach v_part in array case when v_quoted then array[v_value] else string_to_array(v_value, ',') end loop
      if v_field is null then
        v_any := v_any || format('j.error ilike %L', '%' || holdfast.like_pattern(v_part) || '%');
      elsif v_field in ('state', 'kind', 'queue', 'lane', 'worker', 'key', 'tenant', 'subject', 'error', 'group',
        'reason') then
        if v_field = 'state' and not v_part in ('queued', 'leased', 'done', 'dead', 'cancelled', 'archived') then
          perform holdfast.refuse('HF220', format('filter: state %L at position %s does not exist', v_part, v_at), null,
            'States are queued, leased, done, dead, cancelled and archived.');
        end if;
        v_column := case v_field when 'group' then 'fingerprint' else v_field end;
        v_kinds := v_kinds || case when v_field = 'kind' and v_match[1] = '' then v_part end;
        v_any := v_any || case
          when position('*' in v_part) > 0 then format('j.%I like %L', v_column, holdfast.like_pattern(v_part))
          else format('j.%I = %L', v_column, v_part) end;
      elsif v_field = 'workflow' then
        if not holdfast.is_id(v_part) then
          perform holdfast.refuse('HF220', format('filter: workflow %L at position %s is not an id', v_part, v_at),
            null, 'See the ids: holdfast workflow list');
        end if;
        v_any := v_any || format('j.workflow = %L::uuid', v_part);
      elsif v_field = 'id' then
        if not v_part ~* '^[0-9a-f-]{4,36}$' then
          perform holdfast.refuse('HF220', format('filter: id %L at position %s is neither a UUID nor its last digits',
            v_part, v_at));
        end if;
        v_any := v_any || case
          when v_part ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
            then format('j.id = %L::uuid', v_part)
          else format('j.id::text like %L', '%' || lower(v_part)) end;
      elsif v_field in ('attempt', 'attempts', 'priority') then
        v_match := regexp_match(v_part, '^(>=|<=|>|<)?([0-9]{1,9})$');
        if v_match is null then
          perform holdfast.refuse('HF220', format('filter: %s %L at position %s should look like 3 or >=3',
            v_field, v_part, v_at));
        end if;
        v_column := case v_field when 'attempts' then 'total_attempts' else v_field end;   -- over all lives
        v_any := v_any || format('j.%I %s %s', v_column, coalesce(v_match[1], '='), v_match[2]);
      elsif v_field = 'age' then
        v_match := regexp_match(v_part, '^(>=|<=|>|<)([0-9]{1,9})(s|m|h|d|w)$');
        if v_match is null then
          perform holdfast.refuse('HF220', format('filter: age %L at position %s should look like <2h or >7d', v_part,
            v_at), null,
            'Units are s, m, h, d and w.');
        end if;
        v_any := v_any || format('holdfast.now() - j.created_at %s interval %L', v_match[1],
          v_match[2] || case v_match[3] when 's' then ' seconds' when 'm' then ' minutes' when 'h' then ' hours'
            when 'd' then ' days' else ' weeks' end);
      elsif v_field = 'created' then
        -- with its zone written out, so that it means the same in every session
        v_match := regexp_match(v_part,
          '^(>=|<=|>|<)(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d:\d\d))?$');
        if v_match is null or not holdfast.is_time(v_match[2] || 'T' || coalesce(v_match[3], '00:00')
          || coalesce(v_match[4], 'Z')) then
          perform holdfast.refuse('HF220',
            format('filter: created %L at position %s should look like >=2026-01-31T12:00:00Z', v_part, v_at), null,
            'A date alone means midnight UTC.');
        end if;
        v_any := v_any || format('j.created_at %s %L::timestamptz', v_match[1],
          v_match[2] || 'T' || coalesce(v_match[3], '00:00') || coalesce(v_match[4], 'Z'));
      elsif v_field like 'payload.%' then
        v_path := v_field;
        v_any := v_any || case
          when position('*' in v_part) > 0
          then format('j.payload #>> %L like %L', string_to_array(substr(v_field, 9), '.'),
            holdfast.like_pattern(v_part))
          else format('j.payload #>> %L = %L', string_to_array(substr(v_field, 9), '.'), v_part) end;
      else
        perform holdfast.refuse('HF220', format('filter: unknown field %L at position %s', v_field, v_at), null,
          'Fields are state, kind, queue, lane, worker, id, key, tenant, subject, error, group, reason, attempt, '
          'attempts, priority, age, created, workflow and payload.path.');
      end if;
    end loop;
    v_match := regexp_match(v_rest, '^(-?)((?:[a-z_]+(?:\.[^:\s"]+)?:)?(?:"(?:[^"\\]|\\.)*"|[^\s"]+))');
    v_terms := v_terms || format(case v_match[1] when '-' then 'not coalesce((%s), false)' else '(%s)' end,
      array_to_string(v_any, ' or '));
    v_at := v_at + length(v_match[1]) + length(v_match[2]);
    v_rest := substr(v_rest, length(v_match[1]) + length(v_match[2]) + 1);
  end loop;
  if v_path is not null then
    perform holdfast.refuse_coded(v_kinds, v_path);
  end if;
  return coalesce(nullif(array_to_string(v_terms, ' and '), ''), 'true');
end
$$;

-- refuse_coded: refuse to look into payloads of a kind that its tasks encrypt: nothing would ever be found.
create or replace function holdfast.refuse_coded(kinds text[], path text)
returns void
language plpgsql stable
as $$
declare
  v_kind text;
begin
  select k.name into v_kind
  from holdfast.kind k
  where k.name = any(kinds) and k.about #> '{schema,x-encrypted}' = 'true'
  limit 1;
  if v_kind is not null then
    perform holdfast.refuse('HF220', format('filter: %s cannot be searched: payloads of kind %L are encrypted', path,
      v_kind), null, 'Search by what is not: queue, key, lane, tenant, subject, state, error, age.');
  end if;
end
$$;

create or replace function holdfast.like_pattern(value text)
returns text
language sql immutable parallel safe
as $$
  select replace(replace(replace(replace(value, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
$$;

-- explain: one sentence: why a job is not running, or its state. Each of the functions below returns a sentence or
-- null; the first sentence is used.
create or replace function holdfast.explain(id uuid)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_id    constant uuid := holdfast.locate(id);
  v_queue holdfast.queue;
  j       holdfast.job;
begin
  select x.* into j from holdfast.job x where x.part = holdfast.part_of(v_id) and x.id = v_id;
  if exists (select from holdfast.adopted a where a.part = holdfast.part_of(explain.id)) then
    return holdfast.explain_adopted(id, v_now);
  elsif not found then
    return holdfast.explain_ended(id, v_id);
  elsif j.token is not null then
    return concat(holdfast.explain_held(j, v_now), holdfast.explain_workflow(j.link));
  end if;
  v_queue := holdfast.settings_of(j.queue);
  return coalesce(
    holdfast.explain_expired(j, v_now), holdfast.explain_stray(j, v_queue), holdfast.explain_links(j),
    holdfast.explain_wait(j, v_now),
    holdfast.explain_pause(v_queue, v_now), holdfast.explain_strike(j, v_now), holdfast.explain_unread(j, v_now),
    holdfast.explain_time(j, v_now),
    holdfast.explain_place_in_lane(j, v_queue, v_now), holdfast.explain_limit(v_queue, v_now),
    holdfast.explain_rate('Queue', j.queue, v_queue.rate_limit, v_queue.rate_period, holdfast.queue_part(j.queue),
      j.queue, '', v_now),
    holdfast.explain_nobody(j, v_now), holdfast.explain_place(j, v_queue, v_now))
    || case when j.expires_at > v_now then format(' It expires at %s.', holdfast.moment(j.expires_at)) else '' end
    || coalesce(holdfast.explain_workflow(j.link), '');
end
$$;

-- moment: a point in time for a sentence; hour: a time of today.
create or replace function holdfast.moment(at timestamptz)
returns text
language sql stable
as $$ select to_char(at, 'YYYY-MM-DD HH24:MI:SS TZ') $$;

create or replace function holdfast.hour(at timestamptz)
returns text
language sql stable
as $$ select to_char(at, 'HH24:MI:SS TZ') $$;

-- jobs_text: how many jobs, in words.
create or replace function holdfast.jobs_text(jobs bigint)
returns text
language sql immutable parallel safe
as $$ select case when jobs = 1 then '1 job' else jobs || ' jobs' end $$;

-- explain_ended: for a job that is not live.
create or replace function holdfast.explain_ended(asked uuid, id uuid)
returns text
language plpgsql stable
as $$
#variable_conflict use_column
declare
  e holdfast.ended;
begin
  select x.* into e
  from holdfast.ended x
  where x.part = holdfast.part_of(explain_ended.id) and x.id = explain_ended.id
  order by x.state = 'dead' desc, x.ended_at desc
  limit 1;
  return case
    when e.id is null then
      format('No job has the id %s: it never existed, or it is done and its queue does not keep done jobs.', asked)
    when e.state = 'dead' then format('Dead since %s after attempt %s of %s: %s%s', holdfast.moment(e.ended_at),
      e.attempt, e.max_attempts, coalesce(nullif(e.error, ''), 'no error was given'), (
        select format(' (its queue archives it at %s)', holdfast.moment(e.ended_at + q.archive_dead))
        from holdfast.queue q
        where q.name = e.queue and q.archive_dead is not null
          and not exists (select from holdfast.lane l where l.halted_by = e.id)))
    when e.state = 'done' then format('Done at %s by %s.', holdfast.moment(e.ended_at), e.worker)
    when e.state = 'cancelled' and e.reason = 'expired' and e.expires_at <= e.ended_at then
      format('Cancelled at %s: it expired at %s, before it could start%s.', holdfast.moment(e.ended_at),
        holdfast.moment(e.expires_at), case when e.attempt > 0 then ' again' else '' end)
    else format('%s at %s%s.', initcap(e.state), holdfast.moment(e.ended_at), coalesce(': ' || e.reason, ''))
  end;
end
$$;

-- explain_held: for a job that is leased, or whose lease has expired.
create or replace function holdfast.explain_held(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_over constant interval := date_trunc('second', at - j.lease_until);
  v_outside boolean;
  v_problem text;
begin
  select bool_or(l.outside), max(l.problem) into v_outside, v_problem
  from holdfast.lease l
  where l.token = j.token and l.open;
  return case
    when v_outside and j.lease_until > at then format('Waiting for an answer from %s until %s, attempt %s of %s.',
      j.worker, holdfast.moment(j.lease_until), j.attempt, j.max_attempts)
    when j.lease_until > at then format('Leased by %s until %s, attempt %s of %s.', j.worker,
      holdfast.hour(j.lease_until), j.attempt, j.max_attempts)
    when j.kind = any(holdfast.asked_kinds(at)) then format(
      'The lease of %s expired %s ago; a worker for kind %s will check whether the work is done.',
      j.worker, v_over, j.kind)
    when v_problem is not null then format('The lease of %s expired %s ago; it cannot be reclaimed (%s).',
      j.worker, v_over, v_problem)
    when v_outside then format('The time for %s to answer ended %s ago; the next reap reclaims the job.',
      j.worker, v_over)
    else format('The lease of %s expired %s ago; the next reap reclaims the job.', j.worker, v_over)
  end;
end
$$;

-- explain_expired: that it is too late to start it.
create or replace function holdfast.explain_expired(j holdfast.job, at timestamptz)
returns text
language sql stable
as $$
  select format('Expired at %s; the next claim or upkeep will cancel it.', holdfast.moment(j.expires_at))
  where j.expires_at <= at
$$;

-- explain_stray: that no claim finds it, because whoever copied it did not do what has to be done.
create or replace function holdfast.explain_stray(j holdfast.job, queue_row holdfast.queue)
returns text
language sql stable
as $$
  select case
    when (queue_row).adopted is not null then format(
      'Queue %s is a table, and no claim finds a job that was copied beside it. Delete the job.', j.queue)
    when (j.part - holdfast.queue_part(j.queue) + 64) % 64 >= (queue_row).fanout then format(
      'It was copied with the id of another queue, and no claim of queue %s finds it. Delete it, and enqueue it again.',
      j.queue)
    when (queue_row).fair and j.tenant is null or (queue_row).by_kind and not j.by_kind then format(
      'It was copied without a call of holdfast.copied, and no claim of queue %s finds it. Turn %s of the queue off '
      'and on again.', j.queue, case when (queue_row).fair and j.tenant is null then 'fair' else 'by_kind' end)
  end
$$;

-- explain_pause: that its queue is paused.
create or replace function holdfast.explain_pause(queue_row holdfast.queue, at timestamptz)
returns text
language sql stable
as $$
  select format('Queue %s has been paused%s since %s%s%s.', (queue_row).name,
    coalesce(' by ' || (queue_row).paused_by, ''), holdfast.moment((queue_row).paused_at),
    coalesce(' until ' || holdfast.moment((queue_row).paused_until), ''),
    coalesce(': ' || (queue_row).paused_reason, ''))
  where (queue_row).paused_at is not null and ((queue_row).paused_until is null or (queue_row).paused_until > at)
$$;

-- explain_strike: that a strike applies to it, or did.
create or replace function holdfast.explain_strike(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  s holdfast.strike;
begin
  select x.* into s
  from holdfast.strike x
  where x.number = holdfast.strike_of(j.queue, j.kind, j.payload, at);
  if found then
    return format(case s.mode
        when 'hold' then 'Held back by strike %s on %s%s%s%s.'
        else 'Matched by strike %s on %s%s%s%s: the next claim will cancel it.' end,
      s.number, concat_ws(', ', 'queue ' || s.queue, 'kind ' || s.kind,
        'payload fields ' || (select string_agg(k, ', ') from jsonb_object_keys(s.payload) k)),
      coalesce(' by ' || s.actor, ''),
      case when isfinite(s.expires_at) then ' until ' || holdfast.moment(s.expires_at) else ' until it is lifted' end,
      coalesce(' (' || s.reason || ')', ''));
  elsif j.strike is not null then
    return format(
      'Strike %s, which held it back, is over; a worker will pick it up shortly.', j.strike);
  end if;
  return null;
end
$$;

-- explain_time: that it follows another job, or that it is not due yet.
create or replace function holdfast.explain_time(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_left constant interval := date_trunc('second', j.run_at - at + interval '1 second');
  other  record;
begin
  if j.follow then
    select h.id, h.worker into other
    from holdfast.job h
    where h.part = j.part and h.queue = j.queue and h.kind = j.kind and h.key = j.key and not h.follow;
    if not found then
      return format('The job with the same key %L that it waited for has ended; the next upkeep makes it ready.',
        j.key);
    end if;
    return format('Duplicate of job %s, which has the same key %L%s; it runs after that job has ended.', other.id,
      j.key, coalesce(' and runs on ' || other.worker, ''));
  elsif j.run_at <= at or j.pos is not null then   -- one that was copied is ready, whatever time it has
    return null;
  elsif j.error is not null then
    return format('Attempt %s of %s failed (%s); the next is due in %s.', j.attempt, j.max_attempts,
      left(j.error, 200), v_left);
  end if;
  return format('Not due before %s (in %s).', holdfast.moment(j.run_at), v_left);
end
$$;

-- explain_place_in_lane: that its lane is halted, busy, at its rate limit, or has another job first.
create or replace function holdfast.explain_place_in_lane(j holdfast.job, queue_row holdfast.queue, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_lane  holdfast.lane;
  v_limit integer;
  v_count bigint;
  other   record;
begin
  if j.lane is null then
    return null;
  end if;
  select l.* into v_lane from holdfast.lane l where l.part = j.part and l.queue = j.queue and l.name = j.lane;
  if v_lane.halted_by is not null then
    return format('Lane %s is halted because job %s died; retry, archive or delete that job to continue.', j.lane,
      v_lane.halted_by);
  end if;
  v_limit := coalesce(v_lane.lane_limit, queue_row.lane_limit);
  v_count := (
    select count(*) from holdfast.job h
    where h.part = j.part and h.queue = j.queue and h.lane = j.lane and h.held) + (
    select count(*) from holdfast.leaving g where g.part = j.part and g.queue = j.queue and g.lane = j.lane);
  if v_count >= v_limit then
    return format('Lane %s is busy: %s (%s of %s at a time).', j.lane, holdfast.explain_holder(j, at), v_count,
      v_limit);
  end if;
  -- as many may start as there are free slots: it waits for the first of those before it if they take all of them
  select (array_agg(f.id order by f.lane_seq))[1] as id, (array_agg(f.run_at order by f.lane_seq))[1] as run_at
  into other
  from (
    select h.id, h.run_at, h.lane_seq
    from holdfast.job h
    where h.part = j.part and h.queue = j.queue and h.lane = j.lane and h.lane_seq < j.lane_seq and h.token is null
    order by h.lane_seq
    limit v_limit - v_count
  ) f
  having count(*) >= v_limit - v_count;
  if found and other.run_at > at then
    return format('Lane %s keeps its order: job %s is first and will be retried in %s.', j.lane, other.id,
      date_trunc('second', other.run_at - at + interval '1 second'));
  elsif found then
    return format('Lane %s keeps its order: job %s is first and waits to be claimed.', j.lane, other.id);
  end if;
  return holdfast.explain_rate(
    'Lane', j.lane, v_lane.rate_limit, v_lane.rate_period, j.part, j.queue, j.lane, at);
end
$$;

-- explain_holder: who holds the lane of a job.
create or replace function holdfast.explain_holder(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  other record;
begin
  select g.id, g.worker, g.until into other
  from holdfast.leaving g
  where g.part = j.part and g.queue = j.queue and g.lane = j.lane
  order by g.lane_seq
  limit 1;
  if found then
    return format('job %s was cancelled, and %s has until %s to stop its handler', other.id, other.worker,
      holdfast.hour(other.until));
  end if;
  select h.id, h.worker, h.lease_until into other
  from holdfast.job h
  where h.part = j.part and h.queue = j.queue and h.lane = j.lane and h.held
  order by h.lease_until > at, h.lane_seq
  limit 1;
  if other.lease_until <= at then
    return format('the lease of job %s on %s expired %s ago, and the next reap reclaims it', other.id, other.worker,
      date_trunc('second', at - other.lease_until));
  end if;
  return format('job %s runs on %s until %s', other.id, other.worker, holdfast.hour(other.lease_until));
end
$$;

-- explain_limit: that its queue has reached its limit.
create or replace function holdfast.explain_limit(queue_row holdfast.queue, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  runs record;
begin
  if queue_row.lease_limit is null then
    return null;
  end if;
  select count(*) as jobs, count(*) filter (where h.until <= at) as over into runs
  from generate_series(0, queue_row.fanout - 1) step
  cross join lateral (select ((holdfast.queue_part(queue_row.name) + step) % 64)::smallint as part) p
  cross join lateral (
    select h.lease_until as until from holdfast.job h where h.part = p.part and h.queue = queue_row.name and h.held
    union all
    select g.until from holdfast.leaving g where g.part = p.part and g.queue = queue_row.name) h;
  if runs.jobs < queue_row.lease_limit then
    return null;
  end if;
  return format('Queue %s has %s running; its limit is %s.', queue_row.name, holdfast.jobs_text(runs.jobs),
      queue_row.lease_limit)
    || case runs.over
         when 0 then ''
         when 1 then ' One of the leases has expired; the next reap reclaims it.'
         else format(' %s of the leases have expired; the next reap reclaims them.', runs.over) end;
end
$$;

-- explain_rate: that a queue, or a lane of it, has reached its rate.
create or replace function holdfast.explain_rate(
  what text, name text, rate_limit integer, rate_period interval, part smallint, queue text, lane text, at timestamptz)
returns text
language sql stable
as $$
  select format('%s %s has reached its rate of %s per %s; the next job may start at %s.', what, name, rate_limit,
    rate_period, holdfast.hour(min(u.at) + rate_period))
  from holdfast.rate_use u
  where rate_limit is not null and u.part = explain_rate.part and u.queue = explain_rate.queue
    and u.lane = explain_rate.lane and u.at > explain_rate.at - rate_period
  having coalesce(sum(u.starts), 0) >= rate_limit
$$;

-- explain_nobody: that no running worker handles its kind.
create or replace function holdfast.explain_nobody(j holdfast.job, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_living bigint;
begin
  if holdfast.is_handled(j.queue, j.kind, at) then
    return null;
  end if;
  select count(*) into v_living from holdfast.worker w where w.seen_at > at - interval '1 minute';
  -- who says nothing of itself may be about to claim: wait a minute before saying that nobody will
  if v_living > 0 or j.run_at < at - interval '1 minute' then
    return format('No running worker handles kind %s in queue %s (%s running). Waiting since %s.', j.kind, j.queue,
      case v_living when 1 then '1 worker' else v_living || ' workers' end, holdfast.moment(j.run_at));
  end if;
  return null;
end
$$;

-- explain_place: that it is ready, and how many are ahead of it.
create or replace function holdfast.explain_place(j holdfast.job, queue_row holdfast.queue, at timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_nobody constant text := case when holdfast.is_handled(j.queue, j.kind, at) then ''
    else ' No worker that handles it has reported itself.' end;
  v_ahead bigint;
begin
  if j.pos is null then
    return coalesce('Due now.' || nullif(v_nobody, ''), 'Due now; a worker will pick it up shortly.');
  elsif j.pos < holdfast.front(j.part, j.queue, j.priority) then
    return 'Claims start after its position, as can happen after a long transaction or a restore; '
      || 'upkeep moves it within a minute.';
  elsif queue_row.fair then
    select count(*) into v_ahead
    from (
      select from holdfast.job h
      where h.part = j.part and h.queue = j.queue and h.priority = j.priority and h.tenant = j.tenant
        and h.pos < j.pos and h.token is null
      limit 10001
    ) ahead;
    return format('Ready since %s; queue %s serves tenants in turn, and %s of tenant %L %s ahead of it.%s',
      holdfast.moment(j.run_at), j.queue, holdfast.ahead_text(v_ahead), j.tenant,
      case when v_ahead <= 1 then 'is' else 'are' end, v_nobody);
  end if;
  select count(*) into v_ahead
  from (
    select from holdfast.job h
    where h.part = j.part and h.queue = j.queue and h.token is null and h.pos is not null
      and (h.priority > j.priority or h.priority = j.priority and h.pos < j.pos)
    limit 10001
  ) ahead;
  return format('Ready since %s; %s %s ahead of it in queue %s.%s', holdfast.moment(j.run_at),
    holdfast.ahead_text(v_ahead), case when v_ahead <= 1 then 'is' else 'are' end, j.queue, v_nobody);
end
$$;

-- ahead_text: how many jobs are ahead, in words.
create or replace function holdfast.ahead_text(jobs bigint)
returns text
language sql immutable parallel safe
as $$
  select case when jobs > 10000 then 'more than 10000 jobs' when jobs = 0 then 'nothing'
         else holdfast.jobs_text(jobs) end
$$;

-- explain_queue: one sentence: the state of a queue, and what holds it up.
create or replace function holdfast.explain_queue(queue text)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_since timestamptz;
  v_text  text;
  q       holdfast.queues;
begin
  select v.* into q from holdfast.queues v where v.queue = explain_queue.queue;
  if not found then
    return format('No queue is named %s: it has no jobs and no settings.', queue);
  end if;
  if q.paused_at is not null then
    return format('Queue %s has been paused%s since %s%s%s; %s waiting.', q.queue, coalesce(' by ' || q.paused_by, ''),
      holdfast.moment(q.paused_at), coalesce(' until ' || holdfast.moment(q.paused_until), ''),
      coalesce(': ' || q.paused_reason, ''), q.queued);
  end if;
  if q.queued = 0 then
    return format('No jobs are waiting in queue %s; %s running.', q.queue, q.leased);
  end if;
  if q."limit" is not null and q.leased >= q."limit" then
    return format('Queue %s has %s running; its limit is %s. %s waiting, the first for %s.', q.queue,
      holdfast.jobs_text(q.leased), q."limit", q.queued, holdfast.span_text(q.oldest));
  end if;
  v_text := holdfast.explain_rate('Queue', q.queue, q.rate_limit, q.rate_period, q.part, q.queue, '', v_now);
  if v_text is not null then
    return v_text;
  end if;
  select string_agg(k.kind, ', ' order by k.kind), min(k.since) into v_text, v_since
  from holdfast.waiting_kinds(v_now) k
  where k.queue = q.queue and not holdfast.is_handled(k.queue, k.kind, v_now)
    and (k.since < v_now - interval '1 minute' or exists (select from holdfast.worker w
      where w.seen_at > v_now - interval '1 minute'));
  if v_text is not null then
    return format('No running worker handles %s in queue %s; %s waiting, the first of these for %s.', v_text, q.queue,
      q.queued, holdfast.span_text(v_now - v_since));
  end if;
  if q.oldest is null then
    return format('%s in queue %s, none is ready: they are due later, or wait for others in their lane or for a '
      'strike to be lifted.',
      case q.queued when 1 then '1 job waits' else q.queued || ' jobs wait' end, q.queue);
  end if;
  select f.sentence into v_text from holdfast.forecast(q.queue) f;
  return format('%s in queue %s, the first for %s; %s running. %s', case q.queued
    when 1 then '1 job waits' else q.queued || ' jobs wait' end,
    q.queue, holdfast.span_text(q.oldest), q.leased, v_text);
end
$$;

-- explain_lane: one sentence: which job holds a lane, and which is next.
create or replace function holdfast.explain_lane(queue text, lane text)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_text  text;
  head    record;
  l       holdfast.lanes;
  d       record;
begin
  select v.* into l from holdfast.lanes v where v.queue = explain_lane.queue and v.lane = explain_lane.lane;
  if not found then
    return format('Lane %s of queue %s has no jobs.', lane, queue);
  end if;
  if l.halted_by is not null then
    select x.ended_at, x.error into d from holdfast.dead x where x.part = holdfast.part_of(l.halted_by)
           and x.id = l.halted_by;
    return format('Lane %s was halted%s because job %s died%s; %s waiting. Retry, archive or delete that job to '
      'continue.', l.lane,
      coalesce(' at ' || holdfast.moment(d.ended_at), ''), l.halted_by, coalesce(' (' || left(d.error, 200) || ')', ''),
        l.waiting);
  end if;
  if exists (
    select from holdfast.queue q where q.name = l.queue and q.paused_at is not null
           and (q.paused_until is null or q.paused_until > v_now)) then
    return holdfast.explain_queue(l.queue);
  end if;
  if l.running >= l."limit" then
    return format('Lane %s is busy: job %s runs on %s until %s (%s of %s at a time); %s waiting.', l.lane, l.job,
      l.worker,
      holdfast.hour(l.lease_until), l.running, l."limit", l.waiting);
  end if;
  v_text := holdfast.explain_rate('Lane', l.lane, l.rate_limit, l.rate_period, (
    select x.part from holdfast.lane x where x.queue = l.queue and x.name = l.lane limit 1), l.queue, l.lane, v_now);
  if v_text is not null then
    return v_text;
  end if;
  select j.id into head
  from holdfast.lane x
  join holdfast.job j on j.part = x.part and j.queue = x.queue and j.lane = x.name and j.lane_seq is not null
    and j.token is null
  where x.queue = l.queue and x.name = l.lane
  order by j.lane_seq
  limit 1;
  if not found then
    return format('No jobs are waiting in lane %s; %s running.', l.lane, l.running);
  end if;
  return format('Job %s is next in lane %s: %s', head.id, l.lane, holdfast.explain(head.id));
end
$$;
