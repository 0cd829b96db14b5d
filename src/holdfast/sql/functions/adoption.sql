-- Adopted tables: a table of the application is the queue. For each, a view that shows its rows as jobs and the
-- verbs over it are generated, with names from the catalog; the verbs that everybody calls hand over to them
-- for a queue, or for ids of a part, that is adopted. The rows themselves say what state a job is in, so
-- whoever else writes them is understood.

-- adopted_words: the pieces of SQL that what is generated for a table is made of. prefix names the row: 'job.',
-- or '' where nothing else is in sight.
create or replace function holdfast.adopted_words(a holdfast.adopted, prefix text default 'job.')
returns jsonb
language plpgsql stable
as $$
#variable_conflict use_variable
declare
  v_columns constant jsonb := a.spec -> 'columns';
  v_states  constant jsonb := a.spec -> 'states';
  v_words   jsonb;
  v_key     text;
  v_zone    constant text := coalesce(a.spec ->> 'timezone', 'UTC');
  v_status  constant text := prefix || quote_ident(a.spec ->> 'status');
  -- the rows that are jobs, of a table that has others too
  v_mine    constant text := coalesce((
    select string_agg(format('%s%I = %L::%s', prefix, w.x ->> 'column', w.x ->> 'value', w.x ->> 'type'), ' and ' order by w.nth)
    from jsonb_array_elements(a.spec -> 'where') with ordinality w(x, nth)), 'true');
  v_one     record;
begin
  -- one column as it is; more of them with their lengths, so that no two keys read the same
  select case when count(*) = 1 then min(format('%s%I::text', prefix, k.name))
              else string_agg(format('length(%1$s%2$I::text)::text || '':'' || %1$s%2$I::text', prefix, k.name), ' || '','' || ' order by k.nth) end
  into v_key
  from jsonb_array_elements_text(a.spec -> 'key') with ordinality k(name, nth);
  v_words := jsonb_build_object(
    'table', a.relation, 'part', a.part::text, 'queue', quote_literal(a.queue), 'status', v_status,
    'status_name', quote_ident(a.spec ->> 'status'), 'key', v_key, 'mine', v_mine,
    'id', format('overlay(md5(%s) placing %L from 13 for 5)::uuid', v_key, '8' || lpad(to_hex(a.part::integer), 3, '0') || '8'),
    'order', (select string_agg(format('%s%I', prefix, o.name), ', ' order by o.nth)
              from jsonb_array_elements_text(a.spec -> 'order') with ordinality o(name, nth)),
    'since', quote_literal(a.adopted_at::text) || '::timestamptz',
    'schema', quote_ident((parse_ident(a.relation))[1]),
    'done_when', coalesce(a.spec ->> 'done_when', 'false'));
  -- what each state is called: the first value is written, all are understood
  for v_one in
    select s.state, string_agg(format('%L::%s', x.value, a.spec ->> 'status_type'), ', ' order by x.nth) as all_values,
           min(format('%L::%s', x.value, a.spec ->> 'status_type')) filter (where x.nth = 1) as first_value
    from (values ('queued'), ('leased'), ('done'), ('dead'), ('cancelled')) s(state)
    left join lateral jsonb_array_elements_text(v_states -> s.state) with ordinality x(value, nth) on true
    group by s.state
  loop
    v_words := v_words || jsonb_build_object(
      v_one.state, coalesce(v_one.first_value, v_words ->> 'dead'),
      'is_' || v_one.state, case when v_one.all_values is null then 'false'
                                 when v_one.all_values = v_one.first_value then format('%s = %s', v_status, v_one.first_value)
                                 else format('%s in (%s)', v_status, v_one.all_values) end
                           || case when a.spec ? 'where' and v_one.all_values is not null then ' and ' || v_mine else '' end);
  end loop;
  if a.spec ? 'where' then
    select v_words || jsonb_object_agg(w.key, '(' || w.value || ')') into v_words
    from jsonb_each_text(v_words) w
    where w.key like 'is\_%';
  end if;
  if jsonb_array_length(coalesce(v_states -> 'cancelled', '[]')) = 0 then
    v_words := v_words || jsonb_build_object('cancelled', v_words -> 'dead');
  end if;
  -- columns by their meaning; what the table does not have is null, or a constant
  for v_one in
    select m.meaning, v_columns ->> m.meaning as name, m.sort
    from (values ('token', 'uuid'), ('lease_until', 'timestamptz'), ('worker', 'text'), ('attempt', 'smallint'),
                 ('run_at', 'timestamptz'), ('error', 'text'), ('reason', 'text'), ('at', 'timestamptz'),
                 ('started_at', 'timestamptz'), ('ended_at', 'timestamptz'), ('failed_at', 'timestamptz'), ('created_at', 'timestamptz'),
                 ('max_attempts', 'smallint'),
                 ('priority', 'smallint'), ('lane', 'text'), ('tenant', 'text'), ('kind', 'text')) m(meaning, sort)
  loop
    v_words := v_words || jsonb_build_object(
      v_one.meaning || '_name', quote_ident(v_one.name),
      v_one.meaning, case
        when v_one.name is null then 'null::' || v_one.sort
        when a.spec -> 'types' ->> v_one.meaning like 'timestamp%without time zone' then format('(%s%I at time zone %L)', prefix, v_one.name, v_zone)
        else format('%s%I::%s', prefix, v_one.name, v_one.sort) end,
      -- the statement's time as that column has it
      v_one.meaning || '_now', case
        when a.spec -> 'types' ->> v_one.meaning like 'timestamp%without time zone' then format('(hf_at at time zone %L)', v_zone)
        else 'hf_at' end);
  end loop;
  return v_words || jsonb_build_object(
    'state', format('case when %1$s or %2$s then case when %3$s is not null or %2$s then ''leased'' else ''queued'' end'
      || ' when %4$s then ''done'' when %5$s then ''dead'' when %6$s then ''cancelled'' else ''archived'' end',
      v_words ->> 'is_queued', v_words ->> 'is_leased', v_words ->> 'token',
      v_words ->> 'is_done', v_words ->> 'is_dead', v_words ->> 'is_cancelled'),
    'kind', case when v_columns ? 'kind' then format('coalesce(nullif(%s, ''''), %L)', v_words ->> 'kind', coalesce(a.spec ->> 'kind', a.queue))
                 else quote_literal(coalesce(a.spec ->> 'kind', a.queue)) || '::text' end,
    'attempt', format('coalesce(%s, 0)::smallint', v_words ->> 'attempt'),
    'max_attempts', format('coalesce(%s, (select q.max_attempts from holdfast.queue q where q.name = %L), 3)::smallint',
      -- three retries are four attempts
      case when v_columns ? 'max_retries' and not v_columns ? 'max_attempts'
           then format('least(greatest(%s%I, 0), 32766) + 1', prefix, v_columns ->> 'max_retries') else v_words ->> 'max_attempts' end, a.queue),
    'priority', case when v_columns ? 'priority' then format('least(greatest(coalesce(%s, 0), 0), 9)::smallint', v_words ->> 'priority') else '0::smallint' end,
    'created_at', format('coalesce(%s, %s)', v_words ->> 'created_at', v_words ->> 'since'),
    'payload', case
      when a.spec ? 'payload_column' then format('coalesce(to_jsonb(%s%I), ''{}'')', prefix, a.spec ->> 'payload_column')
      when a.spec ? 'payload' then format('jsonb_build_object(%s)', (
        select string_agg(format('%L, %s%I', p.name, prefix, p.name), ', ' order by p.nth) from jsonb_array_elements_text(a.spec -> 'payload') with ordinality p(name, nth)))
      else format('to_jsonb(%s*) - %L::text[]', prefix, array(select jsonb_array_elements_text(a.spec -> 'hidden'))) end,
    'is_free', format('(%1$s%2$I is null or %1$s%2$I <= hf_at) and (%1$s%3$I is null or %1$s%3$I <= hf_at)',
      prefix, v_columns ->> 'lease_until', v_columns ->> 'run_at'),
    'set_started', case when v_columns ? 'started_at' then format('%I = %s,', v_columns ->> 'started_at', v_words ->> 'started_at_now') else '' end,
    'set_restarted', case when v_columns ? 'started_at' then
      format('%I = case when d.outcome = ''queued'' then null else %s%I end,', v_columns ->> 'started_at', prefix, v_columns ->> 'started_at') else '' end,
    'set_ended', case when v_columns ? 'ended_at' then
      format('%I = case when d.outcome <> ''queued'' then %s end,', v_columns ->> 'ended_at', v_words ->> 'ended_at_now') else '' end,
    'set_failed', case when v_columns ? 'failed_at' then
      format('%I = case when d.outcome = ''dead'' then %s end,', v_columns ->> 'failed_at', v_words ->> 'failed_at_now') else '' end,
    -- success deletes the row, if the table was adopted so
    'and_stays', case when a.spec ->> 'on_success' = 'delete' then ' and d.outcome <> ''done''' else '' end,
    'deleted', case when a.spec ->> 'on_success' = 'delete' then format(
      E', deleted as (\n      delete from %s job using d where job.ctid = d.place and d.outcome = ''done'''
      || E'\n      returning d.id, d.token, d.kind, d.worker, d.attempt, d.outcome\n    )', a.relation) else '' end,
    'and_deleted', case when a.spec ->> 'on_success' = 'delete' then
      E'\n    union all\n    select c.id, c.token, c.kind, c.worker, c.attempt, c.outcome from deleted c' else '' end,
    'error_type', coalesce(a.spec -> 'types' ->> 'error', 'text'),
    'by_priority', case when v_columns ? 'priority' then format('%s%I desc nulls last, ', prefix, v_columns ->> 'priority') else '' end);
end
$$;

-- adopted_code: what is generated for a table, as a script.
create or replace function holdfast.adopted_code(a holdfast.adopted)
returns text
language plpgsql stable
as $code$
declare
  v_script text := $template$
-- the rows of {table} as jobs
create or replace view holdfast_adopted."{part}" as
select
  {id} as id, {queue}::text collate "C" as queue, ({kind}) collate "C" as kind, {state} as state, {priority} as priority,
  {attempt} as attempt, {max_attempts} as max_attempts, coalesce({run_at}, {created_at}) as run_at, {created_at} as created_at,
  {lease_until} as lease_until, {worker} as worker, null::text collate "C" as key, ({lane}) collate "C" as lane, ({tenant}) collate "C" as tenant,
  ({key}) collate "C" as subject, null::jsonb as headers, {payload} as payload, {error} as error,
  case when {is_dead} then left(md5(':' || coalesce({error}, '')), 8) end as fingerprint,
  {reason} as reason, null::jsonb as result,
  case when not ({is_queued} or {is_leased}) then coalesce({ended_at}, {failed_at}, {at}, {created_at}) end as ended_at,
  null::interval as lease, {part}::smallint as part, null::jsonb as progress
from {table} job
where {mine};

create or replace function holdfast_adopted."{part}_claim"(
  hf_worker text, hf_token uuid, hf_max integer, hf_lease interval, hf_kinds text[], hf_lane_limit integer, hf_at timestamptz)
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, lease_for interval)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
#variable_conflict use_column
declare
  v_rows constant tid[] := array(
    {pick}
    for update of job skip locked);
begin
  return query
    with taken as (
      update {table} job
      set {status_name} = {leased}, {token_name} = hf_token, {worker_name} = hf_worker, {lease_until_name} = hf_at + hf_lease,
          {attempt_name} = {attempt} + 1, {run_at_name} = null, {set_started} {at_name} = clock_timestamp()
      where job.ctid = any(v_rows)
      returning {id} as id, {kind} as kind, {payload} as payload, {priority} as priority, {attempt} as attempt,
        {max_attempts} as max_attempts, {lease_until} as lease_until, coalesce({run_at}, {created_at}) as run_at,
        {created_at} as created_at, {lane} as lane, {tenant} as tenant, {key} as subject, row({order}) as place
    ), noted as (
      insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids)
      select hf_token, {part}, {queue}, hf_worker, hf_at, hf_lease, min(t.lease_until), array_agg(t.id)
      from taken t
      having count(*) > 0
    )
    select t.id, t.kind, t.payload, t.priority, t.attempt, t.max_attempts, t.lease_until, t.run_at, t.created_at, null::text,
           t.lane, t.tenant, t.subject, null::jsonb, null::interval
    from taken t
    order by t.priority desc, t.place;
end
$body$;

create or replace function holdfast_adopted."{part}_touch"(hf_ids uuid[], hf_tokens uuid[], hf_lease interval, hf_at timestamptz)
returns table (id uuid, token uuid, lease_until timestamptz)
language sql
set search_path = pg_catalog, pg_temp
as $body$
  update {table} job
  set {lease_until_name} = greatest(job.{lease_until_name}, hf_at + coalesce(hf_lease, (
        select l.length from holdfast.lease l where l.token = u.token limit 1), '30 seconds')),
      {at_name} = clock_timestamp()
  from (select x.id, x.token from unnest(hf_ids, hf_tokens) x(id, token) order by x.id) u
  where {id} = u.id and job.{token_name} = u.token and ({is_queued} or {is_leased})
  returning u.id, u.token, job.{lease_until_name}
$body$;

-- Who asks without a token is an operator: it may end what waits or runs, and retry what ended.
-- The rows are locked first; whether the work is done is asked in the statement that puts the job back.
create or replace function holdfast_adopted."{part}_settle"(
  hf_ids uuid[], hf_tokens uuid[], hf_verb text, hf_finals boolean[], hf_errors text[], hf_delays interval[], hf_reason text,
  hf_backoff interval, hf_cap interval, hf_at timestamptz)
returns table (id uuid, token uuid, kind text, worker text, attempt smallint, outcome text)
language plpgsql
set search_path = pg_catalog, {schema}, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
#variable_conflict use_column
begin
  if hf_verb <> 'expire' then   -- reap has locked them, and waits for nobody
    perform from (select distinct x.id from unnest(hf_ids) x(id) order by x.id) u
    cross join lateral (select from {table} job where {id} = u.id for update) l;
  end if;
  return query
    with d as materialized (
      select job.ctid as place, u.id, {token} as token, {kind} as kind, {worker} as worker,
        {attempt} + u.uncounted as attempt, u.error,
        case hf_verb
          when 'ack' then 'done' when 'release' then 'queued' when 'cancel' then 'cancelled' when 'retry' then 'queued'
          else case
            when hf_verb = 'expire' and ({done_when}) then 'done'
            when {attempt} + u.uncounted >= {max_attempts} or u.final then 'dead'
            else 'queued'
          end
        end as outcome,
        coalesce(u.delay, case when hf_verb = 'nack' then make_interval(secs => random() * least(
          extract(epoch from hf_backoff) * power(2, least({attempt}, 40) - 1), extract(epoch from hf_cap))::double precision)
          else '0' end) as delay
      from (
        select distinct on (x.id, x.token) x.id, x.token, coalesce(x.final, false) as final, x.error, x.delay,
               -- other code that took a row did not count it
               case when hf_verb = 'expire' and x.token is null then 1 else 0 end::smallint as uncounted
        from unnest(hf_ids, hf_tokens, hf_finals, hf_errors, hf_delays) x(id, token, final, error, delay)
      ) u
      join {table} job on {id} = u.id
      where case
        when u.token is not null then job.{token_name} = u.token and ({is_queued} or {is_leased})
        when hf_verb = 'retry' then {is_done} or {is_dead} or {is_cancelled}
        else ({is_queued} or {is_leased}) end
    ), changed as (
      update {table} job
      set {status_name} = case d.outcome when 'done' then {done} when 'dead' then {dead} when 'cancelled' then {cancelled} else {queued} end,
          {token_name} = null, {lease_until_name} = null, {worker_name} = case when d.outcome <> 'queued' then d.worker end,
          {attempt_name} = case hf_verb when 'release' then greatest(d.attempt - 1, 0) when 'retry' then 0 else d.attempt end,
          {run_at_name} = case when d.outcome = 'queued' and d.delay > '0' then hf_at + d.delay end,
          {error_name} = case when hf_verb in ('nack', 'expire') and d.outcome <> 'done' then d.error::{error_type} when hf_verb = 'retry' then null else job.{error_name} end,
          {reason_name} = coalesce(hf_reason, job.{reason_name}), {set_restarted} {set_ended} {set_failed}
          {at_name} = clock_timestamp()
      from d
      where job.ctid = d.place{and_stays}
      returning d.id, d.token, d.kind, d.worker, d.attempt, d.outcome
    ){deleted}
    select c.id, c.token, c.kind, c.worker, c.attempt, c.outcome from changed c{and_deleted};
end
$body$;

-- what of these leases has expired, locked; and how long the rest lasts
create or replace function holdfast_adopted."{part}_expired"(hf_ids uuid[], hf_tokens uuid[], hf_cut timestamptz)
returns table (id uuid, token uuid, lease_until timestamptz, expired boolean)
language sql
set search_path = pg_catalog, pg_temp
as $body$
  select u.id, u.token, x.{lease_until_name}, l.id is not null
  from unnest(hf_ids, hf_tokens) u(id, token)
  join lateral (
    select job.{lease_until_name} from {table} job
    where {id} = u.id and job.{token_name} = u.token and ({is_queued} or {is_leased}) limit 1) x on true
  left join lateral (
    select u.id from {table} job
    where {id} = u.id and job.{token_name} = u.token and job.{lease_until_name} <= hf_cut
    for update skip locked) l on true
$body$;

-- rows that other code took and left: nobody holds them, and they have not ended
create or replace function holdfast_adopted."{part}_stuck"(hf_max integer, hf_since timestamptz)
returns setof uuid
language sql
set search_path = pg_catalog, pg_temp
as $body$
  select {id} from {table} job
  where {is_leased} and job.{token_name} is null and {started_at} <= hf_since
  order by {started_at}
  limit hf_max
  for update skip locked
$body$;

create or replace function holdfast_adopted."{part}_hand_over"(
  hf_id uuid, hf_token uuid, hf_new_token uuid, hf_until timestamptz, hf_holder text)
returns timestamptz
language sql
set search_path = pg_catalog, pg_temp
as $body$
  update {table} job
  set {token_name} = hf_new_token, {worker_name} = hf_holder, {lease_until_name} = hf_until, {at_name} = clock_timestamp()
  where {id} = hf_id and job.{token_name} = hf_token and ({is_queued} or {is_leased})
  returning job.{lease_until_name}
$body$;

create or replace function holdfast_adopted."{part}_oldest"()
returns timestamptz
language sql stable
set search_path = pg_catalog, pg_temp
as $body$
  select coalesce({run_at}, {created_at}) from {table} job where {is_queued} order by {by_priority}{order} limit 1
$body$;

create or replace function holdfast_adopted."{part}_leased"()
returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $body$
  select count(*)::integer from {table} job where {is_leased}
$body$;

create or replace function holdfast_adopted."{part}_taken"(hf_max integer)
returns setof uuid
language sql stable
set search_path = pg_catalog, pg_temp
as $body$
  select {id} from {table} job where {is_leased} limit hf_max
$body$;

create or replace function holdfast_adopted."{part}_held"(hf_ids uuid[], hf_token uuid)
returns setof uuid
language sql stable
set search_path = pg_catalog, pg_temp
as $body$
  select {id} from {table} job where {id} = any(hf_ids) and job.{token_name} = hf_token and ({is_queued} or {is_leased})
$body$;

create or replace function holdfast_adopted."{part}_done"(hf_ids uuid[])
returns table (id uuid, done boolean)
language sql
set search_path = pg_catalog, {schema}, pg_temp
as $body$
  select u.id, coalesce(({done_when}), false)
  from unnest(hf_ids) u(id)
  join {table} job on {id} = u.id
$body$;

create or replace function holdfast_adopted."{part}_guard"(hf_id uuid, hf_token uuid)
returns boolean
language plpgsql
set search_path = pg_catalog, {schema}, pg_temp
as $body$
#variable_conflict use_column
begin
  -- held to the end of the caller's transaction: whoever else does this job waits here, and then sees
  perform from {table} job
  where {id} = hf_id and job.{token_name} = hf_token and ({is_queued} or {is_leased})
  for update;
  if not found then
    return null;
  end if;
  return (select coalesce(({done_when}), false) from {table} job where {id} = hf_id);
end
$body$;

create or replace function holdfast_adopted."{part}_track"()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_hashjoin = on set enable_sort = on set enable_seqscan = on   -- whatever the writer has set
as $body$
declare
  v_ready bigint;
begin
  if tg_op = 'TRUNCATE' then
    perform holdfast.recount_adopted({part}::smallint);
    return null;
  end if;
  with rows as (
    {rows}
  )
  insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
  select {part}, {queue}, c.* from (
    select r.kind, coalesce(sum(r.n) filter (where r.state = 'queued'), 0) as queued, coalesce(sum(r.n) filter (where r.state = 'leased'), 0) as leased,
           coalesce(sum(r.n) filter (where r.state = 'dead'), 0) as dead, coalesce(sum(r.n) filter (where r.state = 'done'), 0) as done,
           coalesce(sum(r.n) filter (where r.state = 'cancelled'), 0) as cancelled, coalesce(sum(r.n) filter (where r.state = 'archived'), 0) as archived
    from rows r
    group by r.kind
  ) c
  where (c.queued, c.leased, c.dead, c.done, c.cancelled, c.archived) <> (0, 0, 0, 0, 0, 0);
  {wake}
  {notes}
  return null;
end
$body$;
$template$;
  v_first constant text := $pick$select job.ctid
    from {table} job
    where {is_queued} and {is_free} and (hf_kinds is null or {kind} = any(hf_kinds))
    order by {by_priority}{order}
    limit hf_max$pick$;
  -- Of each lane the first that is due, if the lane has room; a lane is found by one probe from the one before.
  v_heads constant text := $pick$select job.ctid
    from {table} job
    where job.ctid = any(array(
      with recursive lanes as (
        (select job.{lane_name} as name from {table} job where {is_queued} and job.{lane_name} is not null order by job.{lane_name} limit 1)
        union all
        select (select job.{lane_name} from {table} job where {is_queued} and job.{lane_name} > l.name order by job.{lane_name} limit 1)
        from lanes l
        where l.name is not null
      ), heads as (
        select h.*
        from lanes l
        cross join lateral (
          select job.ctid as place, {priority} as priority, row({order}) as nth, {kind} as kind
          from {table} job
          where {is_queued} and {is_free} and job.{lane_name} = l.name
          order by {order}
          limit 1
        ) h
        where (select count(*) from {table} job where {is_leased} and job.{lane_name} = l.name) < hf_lane_limit
        union all
        (select job.ctid, {priority}, row({order}), {kind}
         from {table} job
         where {is_queued} and {is_free} and job.{lane_name} is null
         order by {order}
         limit hf_max)
      )
      select h.place
      from heads h
      where hf_kinds is null or h.kind = any(hf_kinds)
      order by h.priority desc, h.nth
      limit hf_max)) and {is_queued} and {is_free}$pick$;
  v_track  text;
  v_start  integer;
  v_tracks text := '';
  v_words  constant jsonb := holdfast.adopted_words(a);
  v_rows   jsonb;
  v_one    record;
begin
  -- one function for each sort of statement: each sees its own rows
  v_start := position('create or replace function holdfast_adopted."{part}_track"' in v_script);
  v_track := substr(v_script, v_start);
  v_script := left(v_script, v_start - 1);
  v_rows := jsonb_build_object(
    'inserted', 'select {kind} as kind, {state} as state, 1 as n from new_rows job where {mine}',
    'updated', 'select {kind} as kind, {state} as state, 1 as n from new_rows job where {mine}'
      || ' union all select {kind}, {state}, -1 from old_rows job where {mine}',
    'deleted', 'select {kind} as kind, {state} as state, -1 as n from old_rows job where {mine}');
  for v_one in select e.key, e.value from jsonb_each_text(v_rows) e order by e.key loop
    v_tracks := v_tracks || replace(replace(replace(replace(v_track, '_track"', '_' || v_one.key || '"'), '{rows}', v_one.value),
      '{wake}', case when v_one.key = 'deleted' then '' else
        'select count(*) into v_ready from new_rows job where {is_queued} and job.{token_name} is null;'
        || E'\n  if v_ready > 0 then\n    perform holdfast.wake(array[{queue}], v_ready::integer);\n  end if;' end),
      '{notes}', case when v_one.key = 'updated' then $notes$insert into holdfast.adopted_note (part, hour, who, what, jobs, sample)
  select {part}, date_trunc('hour', holdfast.now()), concat_ws(' as ', nullif(current_setting('application_name', true), ''), session_user), w.what, count(*), min(w.key)
  from (
    select n.key, case
      when o.held and n.state = 'leased' and o.status is not distinct from n.status then 'took a row that Holdfast had leased'
      when o.held and o.status is distinct from n.status then 'set a row that Holdfast had leased to ' || n.status
      when o.state = 'queued' and n.state = 'leased' then 'took'
      else 'set ' || coalesce(o.status, 'null') || ' to ' || coalesce(n.status, 'null') end as what
    from (select {key} as key, {status}::text as status, {state} as state, {token} is not null as held, job.{at_name} as at, {started_at} as started from old_rows job) o
    join (select {key} as key, {status}::text as status, {state} as state, job.{at_name} as at, {started_at} as started from new_rows job where {mine}) n on n.key = o.key
    where n.at is not distinct from o.at and (o.status is distinct from n.status or o.held and o.started is distinct from n.started)
  ) w
  group by w.what;$notes$ else '' end);
  end loop;
  v_script := replace(v_script || v_tracks, '{pick}', case when a.spec -> 'columns' ? 'lane' then v_heads else v_first end);
  -- No name of a column can end a body early, and what is put in is not looked at again: it may have braces.
  v_script := replace(v_script, '$body$', '$hf' || md5(v_words::text) || '$');
  return (
    select string_agg(t.piece || case when t.word is null then '' else coalesce(v_words ->> t.word, 'null') end, '' order by t.nth)
    from unnest(
      regexp_split_to_array(v_script, '\{[a-z_]+\}'),
      array(select m.found[1] from regexp_matches(v_script, '\{([a-z_]+)\}', 'g') with ordinality m(found, nth) order by m.nth)
    ) with ordinality t(piece, word, nth));
end
$code$;

-- readopt: generate what adopted tables need anew, and let the view of all jobs show them. Part of every
-- migration, so that they speak as the rest does.
create or replace function holdfast.readopt()
returns void
language plpgsql
as $$
declare
  v_views text := 'create or replace view holdfast.jobs as select j.* from holdfast.own_jobs j';
  a       holdfast.adopted;
begin
  for a in select x.* from holdfast.adopted x where x.live order by x.part loop
    execute holdfast.adopted_code(a);
    v_views := v_views || format(' union all select j.* from holdfast_adopted.%I j', a.part::text);
  end loop;
  execute v_views;
  revoke all on all functions in schema holdfast_adopted from public;
end
$$;

-- claim_adopted: claim, of a queue that is a table. Limits, rates and lanes take turns at the gate.
create or replace function holdfast.claim_adopted(
  queue_row holdfast.queue, worker text, token uuid, max_jobs integer, lease interval, kinds text[], at timestamptz)
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, lease_for interval)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_lanes  constant boolean := (select a.spec -> 'columns' ? 'lane' from holdfast.adopted a where a.part = queue_row.adopted);
  v_left   integer := max_jobs;
  v_want   integer;
  v_leased integer;
  v_got    integer;
begin
  for turn in 1 .. 2 loop
    loop
      v_want := v_left;
      if queue_row.lease_limit is not null or queue_row.rate_limit is not null or v_lanes then
        v_want := least(v_want, holdfast.pass_gate(queue_row, queue_row.adopted, at));
        if queue_row.lease_limit is not null then
          execute format('select holdfast_adopted.%I()', queue_row.adopted || '_leased') into v_leased;
          v_want := least(v_want, queue_row.lease_limit - v_leased);
        end if;
      end if;
      exit when v_want <= 0;
      return query execute format('select c.* from holdfast_adopted.%I($1, $2, $3, $4, $5, $6, $7) c', queue_row.adopted || '_claim')
        using worker, token, v_want, lease, kinds, coalesce(queue_row.lane_limit, 1), at;
      get diagnostics v_got = row_count;
      v_left := v_left - v_got;
      if queue_row.rate_limit is not null and v_got > 0 then
        insert into holdfast.rate_use (part, queue, lane, at, starts)
        values (queue_row.adopted, queue_row.name, '', claim_adopted.at, v_got);
      end if;
      -- of each lane one at a time: only those with room for more can give another
      exit when v_left <= 0 or v_got = 0 or not v_lanes or coalesce(queue_row.lane_limit, 1) = 1;
    end loop;
    exit when v_left <= 0 or turn = 2;
    exit when not exists (select from holdfast.reap(v_left, queue_row.name));
  end loop;
end
$$;

create or replace function holdfast.touch_adopted(ids uuid[], tokens uuid[], lease interval, at timestamptz)
returns table (id uuid, token uuid, lease_until timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_part smallint;
begin
  for v_part in
    select a.part from holdfast.adopted a
    where a.live and a.part in (select holdfast.part_of(i) from unnest(ids) i) order by a.part
  loop
    return query execute format('select t.id, t.token, t.lease_until from holdfast_adopted.%I($1, $2, $3, $4) t', v_part || '_touch')
      using ids, tokens, lease, at;
  end loop;
end
$$;

-- settle_adopted: what ack, nack, release, cancel, retry and an expired lease do to rows of adopted tables; the
-- ids of others are left alone. tokens null: an operator asks.
create or replace function holdfast.settle_adopted(
  ids uuid[], tokens uuid[], verb text, at timestamptz, error_kinds text[] default null, messages text[] default null,
  tracebacks text[] default null, delays interval[] default null, finals boolean[] default null, reason text default null)
returns table (id uuid, token uuid, queue text, kind text, worker text, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_how constant text := case verb
    when 'ack' then 'acked' when 'nack' then 'failed' when 'release' then 'released' when 'expire' then 'expired'
    when 'cancel' then case when tokens is null then 'cancelled' else 'cancelled by its holder' end end;
  a     holdfast.adopted;
  q     holdfast.queue;
  these record;
begin
  for a in
    select x.* from holdfast.adopted x
    where x.live and x.part in (select holdfast.part_of(i) from unnest(ids) i) order by x.part
  loop
    select x.* into q from holdfast.queue x where x.name = a.queue;
    execute format(
      'select array_agg(s.id) as ids, array_agg(s.token) as tokens, array_agg(s.kind) as kinds, array_agg(s.worker) as workers,'
      || ' array_agg(s.attempt) as attempts, array_agg(s.outcome) as outcomes from holdfast_adopted.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) s',
      a.part || '_settle')
    into these
    using ids, coalesce(tokens, array_fill(null::uuid, array[cardinality(ids)])), verb, finals,
      array(select left(concat_ws(': ', u.error_kind, u.message), 2000)
            from unnest(ids, error_kinds, messages) with ordinality u(id, error_kind, message, nth) order by u.nth),
      delays, reason, coalesce(q.backoff, '1 second'), coalesce(q.backoff_cap, '1 hour'), at;
    continue when these.ids is null;

    if verb in ('nack', 'expire') then
      insert into holdfast.attempt (
        part, id, attempt, token, outcome, worker, started_at, ended_at, error_kind, message, traceback, fingerprint)
      select a.part, t.id, t.attempt, t.token, case when t.outcome = 'done' then 'reconciled' else v_how end, t.worker,
             (select max(l.claimed_at) from holdfast.lease l where l.token = t.token and l.part = a.part), settle_adopted.at,
             case when t.outcome <> 'done' then left(u.error_kind, 200) end,
             case when t.outcome = 'done' then 'its work was found done' else left(u.message, 10000) end,
             left(u.traceback, 100000), case when t.outcome <> 'done' then holdfast.fingerprint(u.error_kind, u.message) end
      from unnest(these.ids, these.tokens, these.workers, these.attempts, these.outcomes) t(id, token, worker, attempt, outcome)
      cross join lateral (
        select x.error_kind, x.message, x.traceback
        from unnest(ids, error_kinds, messages, tracebacks) x(id, error_kind, message, traceback)
        where x.id = t.id limit 1) u
      where t.token is not null;
    end if;
    if v_how is not null then
      perform holdfast.mark_taken(array_agg(t.id), array_agg(t.token), case when verb = 'expire' and t.outcome = 'done' then 'reconciled' else v_how end)
      from unnest(these.ids, these.tokens, these.outcomes) t(id, token, outcome)
      where t.token is not null
      group by case when verb = 'expire' and t.outcome = 'done' then 'reconciled' else v_how end;
    end if;
    if 'done' = any(these.outcomes) and (verb = 'expire' or a.spec ->> 'on_success' = 'delete') then
      insert into holdfast.tally (part, queue, kind, reconciled, done)
      select a.part, a.queue, t.kind, case when verb = 'expire' then count(*) else 0 end,
             -- rows that were deleted count as done no longer; the jobs do
             case when a.spec ->> 'on_success' = 'delete' then count(*) else 0 end
      from unnest(these.kinds, these.outcomes) t(kind, outcome)
      where t.outcome = 'done'
      group by t.kind;
    end if;
    return query
      select t.id, t.token, a.queue, t.kind, t.worker, t.outcome
      from unnest(these.ids, these.tokens, these.kinds, these.workers, these.outcomes) t(id, token, kind, worker, outcome);
  end loop;
end
$$;

-- reap_adopted: what has expired of these claims, in adopted tables. Where the output of a job is there, it is done.
create or replace function holdfast.reap_adopted(tokens uuid[], at timestamptz, cut timestamptz, back timestamptz)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  l     record;
  these record;
begin
  for l in
    select x.token, x.part, x.ids, x.claimed_at, x.outside, x.worker, x.length, coalesce(a.live, false) as live
    from holdfast.lease x
    left join holdfast.adopted a on a.part = x.part
    where x.token = any(reap_adopted.tokens) and x.open and x.part >= 64
  loop
    select null::uuid[] as ids, null::timestamptz as until into these;
    if l.live then
      execute format(
        'select array_agg(e.id) filter (where e.expired) as ids, min(e.lease_until) filter (where not e.expired) as until'
        || ' from holdfast_adopted.%I($1, $2, $3) e', l.part || '_expired')
      into these
      using l.ids, array_fill(l.token, array[cardinality(l.ids)]), case when l.claimed_at >= back then at else cut end;
    end if;
    if these.ids is not null then
      return query
        select s.id, s.queue, s.kind, s.worker, s.outcome
        from holdfast.settle_adopted(these.ids, array_fill(l.token, array[cardinality(these.ids)]), 'expire', at,
          array_fill(case when l.outside then 'NoAnswer' else 'LeaseExpired' end, array[cardinality(these.ids)]),
          array_fill(case when l.outside then format('no answer from %s within %s', l.worker, l.length)
                          else 'the lease ran out and nobody renewed it' end, array[cardinality(these.ids)])) s;
    end if;
    update holdfast.lease x
    set open = these.until is not null, until = coalesce(greatest(these.until, at + interval '1 second'), at + interval '5 minutes')
    where x.token = l.token and x.part = l.part and x.open;
  end loop;
end
$$;

create or replace function holdfast.hand_over_adopted(id uuid, token uuid, new_token uuid, until timestamptz, holder text)
returns table (queue text, lease_until timestamptz)
language plpgsql
as $$
declare
  a holdfast.adopted;
begin
  select x.* into a from holdfast.adopted x where x.part = holdfast.part_of(hand_over_adopted.id) and x.live;
  if found then
    return query execute format('select $6::text, h from holdfast_adopted.%I($1, $2, $3, $4, $5) h where h is not null', a.part || '_hand_over')
      using id, token, new_token, until, holder, a.queue;
  end if;
end
$$;

-- refuse_adopted: a job of a queue that is a table is a row of it.
create or replace function holdfast.refuse_adopted(queue text)
returns void
language plpgsql
as $$
declare
  v_table constant text := (select a.relation from holdfast.adopted a where a.queue = refuse_adopted.queue);
begin
  perform holdfast.refuse('HF226', format('queue %L is table %s', queue, v_table), null,
    format('Insert a row into %s: it is a job as soon as its status says so.', v_table));
end
$$;

-- held_adopted: held, of adopted tables.
create or replace function holdfast.held_adopted(tokens uuid[])
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, token uuid, queue text, worker text, lease_for interval)
language plpgsql stable
as $$
declare
  l record;
begin
  for l in
    select x.token, x.part, x.ids from holdfast.lease x
    join holdfast.adopted a on a.part = x.part and a.live
    where x.token = any(tokens)
  loop
    return query execute format(
      'select j.id, j.kind, j.payload, j.priority, j.attempt, j.max_attempts, j.lease_until, j.run_at, j.created_at, j.key, j.lane,'
      || ' j.tenant, j.subject, j.headers, $2, j.queue, j.worker, null::interval'
      || ' from holdfast_adopted.%I($1, $2) h(id) join holdfast_adopted.%I j on j.id = h.id', l.part || '_held', l.part::text)
    using l.ids, l.token;
  end loop;
end
$$;

-- rescue: rows of adopted tables that other code took and left, longer ago than their table was told to wait.
create or replace function holdfast.rescue(max_jobs integer default 1000)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_ids   uuid[];
  v_saved integer := 0;
  a       holdfast.adopted;
begin
  for a in select x.* from holdfast.adopted x where x.live and x.spec ? 'stuck_after' order by x.part loop
    execute format('select array(select s from holdfast_adopted.%I($1, $2) s)', a.part || '_stuck')
    into v_ids
    using max_jobs, v_now - (a.spec ->> 'stuck_after')::interval;
    continue when cardinality(v_ids) = 0;
    with saved as materialized (
      select s.outcome
      from holdfast.settle_adopted(v_ids, null, 'expire', v_now,
        array_fill('Stuck'::text, array[cardinality(v_ids)]),
        array_fill('other code took the row and left it'::text, array[cardinality(v_ids)])) s
    ), noted as (
      insert into holdfast.adopted_note (part, hour, who, what, jobs)
      select a.part, date_trunc('hour', v_now), 'holdfast', 'found a row left by other code: ' || s.outcome, count(*)
      from saved s
      group by s.outcome
    )
    select v_saved + count(*) into v_saved from saved;
  end loop;
  return v_saved;
end
$$;

-- guard: whether the output of a job that the token holds is still to be made. Whoever else does the job waits
-- until the caller's transaction ends, and then sees the output. Null: the token does not hold it.
create or replace function holdfast.guard(id uuid, token uuid)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_part constant smallint := holdfast.part_of(id);
  v_done boolean;
begin
  if v_part < 64 then
    perform from holdfast.job j where j.part = v_part and j.id = guard.id and j.token = guard.token for update;
    return case when found then true end;
  end if;
  if not exists (select from holdfast.adopted a where a.part = v_part and a.live) then
    return null;
  end if;
  execute format('select holdfast_adopted.%I($1, $2)', v_part || '_guard') into v_done using id, token;
  if v_done then
    insert into holdfast.adopted_note (part, hour, who, what, jobs, sample)
    values (v_part, date_trunc('hour', holdfast.now()), 'holdfast', 'duplicate prevented', 1, id::text);
  end if;
  return not v_done;
end
$$;

-- explain_adopted: one sentence, for a row of an adopted table.
create or replace function holdfast.explain_adopted(id uuid, at timestamptz)
returns text
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_table   text;
  v_deletes boolean;
  q         holdfast.queue;
  j         record;
begin
  select a.relation, a.spec ->> 'on_success' = 'delete' into v_table, v_deletes from holdfast.adopted a where a.part = holdfast.part_of(explain_adopted.id);
  select x.* into j from holdfast.get(explain_adopted.id) x;
  if j.id is null then
    if v_deletes then
      return format('There is no job %s: its row in %s is gone. Rows are deleted when they are done.', id, v_table);
    end if;
    return format('There is no job %s: its row in %s is gone, or the table is no queue any more.', id, coalesce(v_table, 'an adopted table'));
  end if;
  select x.* into q from holdfast.queue x where x.name = j.queue;
  return case
    when j.state = 'leased' and j.lease_until is null then format('Other code has row %s of %s.', j.subject, v_table)
    when j.state = 'leased' and j.lease_until > at then format('Leased by %s until %s, attempt %s of %s.', j.worker,
      to_char(j.lease_until, 'HH24:MI:SS TZ'), j.attempt, j.max_attempts)
    when j.state = 'leased' then format('The lease of %s ran out %s ago; the next reap takes row %s of %s back.', j.worker,
      date_trunc('second', at - j.lease_until), j.subject, v_table)
    when j.state = 'dead' then format('Dead since %s after attempt %s of %s: %s', to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
      j.attempt, j.max_attempts, coalesce(nullif(j.error, ''), 'no error was given'))
    when j.state = 'done' then format('Done since %s%s.', to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'), coalesce(' by ' || j.worker, ''))
    when j.state = 'cancelled' then format('Cancelled since %s%s.', to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'), coalesce(': ' || j.reason, ''))
    when j.state = 'archived' then format('Row %s of %s has a status that is no state of a job.', j.subject, v_table)
    when q.paused_at is not null and (q.paused_until is null or q.paused_until > at) then format('Queue %s is paused%s since %s%s.', j.queue,
      coalesce(' by ' || q.paused_by, ''), to_char(q.paused_at, 'YYYY-MM-DD HH24:MI:SS TZ'), coalesce(': ' || q.paused_reason, ''))
    when j.run_at > at and j.error is not null then format('Attempt %s of %s failed (%s); the next is due in %s.', j.attempt, j.max_attempts,
      left(j.error, 200), date_trunc('second', j.run_at - at + interval '1 second'))
    when j.run_at > at then format('Not due before %s.', to_char(j.run_at, 'YYYY-MM-DD HH24:MI:SS TZ'))
    else format('Ready: row %s of %s waits to be claimed%s.', j.subject, v_table, coalesce(', in lane ' || j.lane, ''))
  end;
end
$$;

-- recount_adopted: make the counters of an adopted table what its rows say, in one snapshot.
create or replace function holdfast.recount_adopted(part smallint)
returns table (queue text, kind text, queued bigint, leased bigint, dead bigint, cancelled bigint, archived bigint)
language plpgsql
as $$
declare
  -- rows that success deleted cannot be counted again: once there are counters, those of done stay
  v_gone constant boolean := exists (select from holdfast.adopted a where a.part = recount_adopted.part and a.spec ->> 'on_success' = 'delete')
    and (exists (select from holdfast.total t where t.part = recount_adopted.part)
         or exists (select from holdfast.tally t where t.part = recount_adopted.part));
begin
  return query execute format($sql$
    with found as (
      select j.kind, j.state, count(*) as n from holdfast_adopted.%1$I j where not ($1 and j.state = 'done') group by j.kind, j.state
      union all
      select c.kind, s.state, -sum(s.n)
      from (
        select t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.total t where t.part = %1$s
        union all
        select t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.tally t where t.part = %1$s
      ) c
      cross join lateral (values ('queued', c.queued), ('leased', c.leased), ('dead', c.dead),
        ('done', c.done), ('cancelled', c.cancelled), ('archived', c.archived)) s(state, n)
      where not ($1 and s.state = 'done')
      group by c.kind, s.state
    )
    insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
    select %1$s, (select a.queue from holdfast.adopted a where a.part = %1$s), d.* from (
      select f.kind, coalesce(sum(f.n) filter (where f.state = 'queued'), 0) as queued, coalesce(sum(f.n) filter (where f.state = 'leased'), 0) as leased,
        coalesce(sum(f.n) filter (where f.state = 'dead'), 0) as dead, coalesce(sum(f.n) filter (where f.state = 'done'), 0) as done,
        coalesce(sum(f.n) filter (where f.state = 'cancelled'), 0) as cancelled, coalesce(sum(f.n) filter (where f.state = 'archived'), 0) as archived
      from found f
      group by f.kind
    ) d
    where (d.queued, d.leased, d.dead, d.done, d.cancelled, d.archived) <> (0, 0, 0, 0, 0, 0)
    returning queue::text, kind::text, queued::bigint, leased::bigint, dead::bigint, cancelled::bigint, archived::bigint
  $sql$, part::text) using v_gone;
end
$$;

-- fold_notes: one row for each hour of what was noted.
create or replace function holdfast.fold_notes()
returns void
language sql
as $$
  with gone as (
    delete from holdfast.adopted_note n
    where n.ctid = any(array(
      select x.ctid from holdfast.adopted_note x
      where not x.folded or x.hour > holdfast.now() - interval '2 hours' or x.hour < holdfast.now() - interval '30 days'
      for update skip locked))
    returning n.*
  )
  insert into holdfast.adopted_note (part, hour, who, what, jobs, sample, folded)
  select g.part, g.hour, g.who, g.what, sum(g.jobs), min(g.sample), true
  from gone g
  where g.hour >= holdfast.now() - interval '30 days'
  group by g.part, g.hour, g.who, g.what
$$;

-- linked: forget jobs that wait for a subject that was deleted. Arguments of the trigger: what subjects start with,
-- then the columns of the key.
create or replace function holdfast.linked()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[];
begin
  select array_agg(j.id) into v_ids
  from gone_rows o
  cross join lateral (
    select tg_argv[0] || string_agg(to_jsonb(o) ->> c.name, ',' order by c.nth) as subject
    from unnest(tg_argv[1:]) with ordinality c(name, nth)
  ) s
  join holdfast.job j on j.subject = s.subject
  where j.token is null;
  if v_ids is not null then
    perform holdfast.purge(v_ids, 'its subject was deleted');
  end if;
  return null;
end
$$;

-- forget_adopted: drop what was generated for a table.
create or replace function holdfast.forget_adopted(part smallint)
returns void
language plpgsql
as $$
declare
  v_routine regprocedure;
begin
  execute format('drop view if exists holdfast_adopted.%I', part::text);
  for v_routine in
    select p.oid from pg_proc p
    where p.pronamespace = 'holdfast_adopted'::regnamespace and p.proname like part || '\_%'
  loop
    execute format('drop routine %s', v_routine);
  end loop;
end
$$;

-- reconcile_adopted: look at the rows of a table that are taken. Those nobody holds any more are settled by
-- whether their output exists; dry_run only says how.
create or replace function holdfast.reconcile_adopted(part smallint, dry_run boolean default true, max_jobs integer default 10000)
returns table (id uuid, subject text, worker text, since timestamptz, output boolean, verdict text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.now();
  v_free uuid[];
  a      holdfast.adopted;
  said   record;
begin
  select x.* into a from holdfast.adopted x where x.part = reconcile_adopted.part;
  execute format(
    'select array_agg(j.id) as ids, array_agg(d.done) as done, array_agg(j.subject) as subjects, array_agg(j.worker) as workers,'
    || ' array_agg(j.lease_until) as untils, array_agg(j.attempt >= j.max_attempts) as last'
    || ' from holdfast_adopted.%3$I($1) t(id) join holdfast_adopted.%1$I j on j.id = t.id'
    || ' join lateral holdfast_adopted.%2$I(array[j.id]) d on true', part::text, part || '_done', part || '_taken')
  into said using max_jobs;
  if not dry_run then
    perform from holdfast.reap(max_jobs, a.queue);
    perform holdfast.rescue(max_jobs);
  end if;
  return query
    select s.id, s.subject, s.worker, s.until, s.done, case
      when s.until > v_now then 'held'
      when s.until is null and not a.spec ? 'stuck_after' then 'held'
      when s.done then 'done' when s.last then 'dead' else 'queued' end
    from unnest(said.ids, said.subjects, said.workers, said.untils, said.done, said.last) s(id, subject, worker, until, done, last);
end
$$;

select holdfast.readopt();
