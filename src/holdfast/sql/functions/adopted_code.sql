-- What is generated for an adopted table: the few functions that name its columns. Each is a template; {words} in it
-- stand for what the table calls things. All that needs no name of the table is in adoption.sql, and is not generated.

-- adopted_mine: the condition for rows that are jobs, of a table that has others too. prefix names the row, as below.
create or replace function holdfast.adopted_mine(a holdfast.adopted, prefix text)
returns text
language sql stable
as $$
  select coalesce(string_agg(
    format('%s%I = %L::%s', prefix, w.x ->> 'column', w.x ->> 'value', w.x ->> 'type'), ' and ' order by w.nth), 'true')
  from jsonb_array_elements(a.spec -> 'where') with ordinality w(x, nth)
$$;

-- adopted_states: how a table says each state, and how one asks for it: of several values the first is written, all
-- are understood. What it has no word for is dead.
create or replace function holdfast.adopted_states(a holdfast.adopted, prefix text)
returns jsonb
language sql stable
as $$
  with told as (
    select s.state, string_agg(format('%L::%s', x.value, a.spec ->> 'status_type'), ', ' order by x.nth)
             filter (where x.value is not null) as all_values,
           min(format('%L::%s', x.value, a.spec ->> 'status_type')) filter (where x.nth = 1) as first_value
    from (values ('queued'), ('leased'), ('done'), ('dead'), ('cancelled')) s(state)
    left join lateral jsonb_array_elements_text(a.spec -> 'states' -> s.state) with ordinality x(value, nth) on true
    group by s.state
  ), asked as (
    select t.state, coalesce(t.first_value, (select d.first_value from told d where d.state = 'dead')) as written,
           case when t.all_values is null then 'false'
                when t.all_values = t.first_value then format('%s%I = %s', prefix, a.spec ->> 'status', t.first_value)
                else format('%s%I in (%s)', prefix, a.spec ->> 'status', t.all_values) end as holds,
           case when t.all_values is not null then ' and ' || holdfast.adopted_mine(a, prefix) else '' end as and_mine
    from told t
  )
  select jsonb_object_agg(s.state, s.written) || jsonb_object_agg('is_' || s.state,
           case when a.spec ? 'where' then '(' || s.holds || s.and_mine || ')' else s.holds end)
  from asked s
$$;

-- adopted_columns: columns by their meaning: the name, the type, how it is read, and the statement's time as such a
-- column has it. What the table does not have is null; numbers are cut to what fits.
create or replace function holdfast.adopted_columns(a holdfast.adopted, prefix text)
returns jsonb
language sql stable
as $$
  select jsonb_object_agg(w.word, w.says)
  from (values
    ('token', 'uuid'), ('lease_until', 'timestamptz'), ('worker', 'text'), ('attempt', 'smallint'),
    ('run_at', 'timestamptz'), ('error', 'text'), ('reason', 'text'), ('at', 'timestamptz'),
    ('started_at', 'timestamptz'), ('ended_at', 'timestamptz'), ('failed_at', 'timestamptz'),
    ('created_at', 'timestamptz'), ('max_attempts', 'smallint'), ('priority', 'smallint'), ('lane', 'text'),
    ('tenant', 'text'), ('kind', 'text')) m(meaning, sort)
  cross join lateral (
    select prefix || quote_ident(a.spec -> 'columns' ->> m.meaning) as name, a.spec -> 'types' ->> m.meaning as type,
           coalesce(a.spec ->> 'timezone', 'UTC') as zone
  ) c
  cross join lateral (select coalesce(c.type like 'timestamp%without time zone', false) as zoneless) z
  cross join lateral (values
    (m.meaning || '_name', quote_ident(a.spec -> 'columns' ->> m.meaning)),
    (m.meaning || '_type', coalesce(c.type, m.sort)),
    (m.meaning || '_now', case when z.zoneless then format('(hf_at at time zone %L)', c.zone) else 'hf_at' end),
    (m.meaning, case
      when c.name is null then 'null::' || m.sort
      when m.sort = 'smallint' then
        format('case when %1$s is not null then least(greatest(%1$s, 0), 30000)::smallint end', c.name)
      -- infinity, and years that no client can read, are as none
      when m.sort = 'timestamptz' and m.meaning <> 'started_at' then format(case when z.zoneless
        then 'case when %1$s between ''0001-01-03'' and ''9999-12-29'' then %1$s at time zone %2$L end'
        else 'case when %1$s between ''0001-01-03 UTC'' and ''9999-12-29 UTC'' then %1$s end' end, c.name, c.zone)
      when z.zoneless then format('(%s at time zone %L)', c.name, c.zone)
      else format('%s::%s', c.name, m.sort) end)) w(word, says)
$$;

-- adopted_words: the pieces of SQL that what is generated for a table is made of. prefix names the row: 'job.',
-- or '' where nothing else is in sight.
create or replace function holdfast.adopted_words(a holdfast.adopted, prefix text default 'job.')
returns jsonb
language plpgsql stable
as $$
declare
  v_columns constant jsonb := a.spec -> 'columns';
  v_deletes constant boolean := coalesce(a.spec ->> 'on_success' = 'delete', false);
  v_words   jsonb := holdfast.adopted_states(a, prefix) || holdfast.adopted_columns(a, prefix);
  v_key     text;
begin
  -- one column as it is; more of them with their lengths, so that no two keys read the same
  select case when count(*) = 1 then min(format('%s%I::text', prefix, k.name))
              else string_agg(format('length(%1$s%2$I::text)::text || '':'' || %1$s%2$I::text', prefix, k.name),
                     ' || '','' || ' order by k.nth) end
  into v_key
  from jsonb_array_elements_text(a.spec -> 'key') with ordinality k(name, nth);
  return v_words || jsonb_build_object(
    'table', a.relation, 'part', a.part::text, 'status', prefix || quote_ident(a.spec ->> 'status'),
    'status_name', quote_ident(a.spec ->> 'status'), 'key', v_key, 'mine', holdfast.adopted_mine(a, prefix),
    'id', format('overlay(md5(%s) placing %L from 13 for 5)::uuid', v_key,
      '8' || lpad(to_hex(a.part::integer), 3, '0') || '8'),
    'order', (select string_agg(format('%s%I', prefix, o.name), ', ' order by o.nth)
              from jsonb_array_elements_text(a.spec -> 'order') with ordinality o(name, nth)),
    'by_priority', case when v_columns ? 'priority'
      then format('%s%I desc nulls last, ', prefix, v_columns ->> 'priority') else '' end,
    'done_when', coalesce(a.spec ->> 'done_when_sql', 'false'),
    'state', holdfast.filled('case when {is_queued} or {is_leased}'
      || ' then case when {token} is not null or {is_leased} then ''leased'' else ''queued'' end'
      || ' when {is_done} then ''done'' when {is_dead} then ''dead'' when {is_cancelled} then ''cancelled'''
      || ' else ''archived'' end', v_words),
    'kind', case when v_columns ? 'kind'
      then format('coalesce(nullif(%s, ''''), %L)', v_words ->> 'kind', coalesce(a.spec ->> 'kind', a.queue))
      else quote_literal(coalesce(a.spec ->> 'kind', a.queue)) || '::text' end,
    'attempt', format('coalesce(%s, 0)::smallint', v_words ->> 'attempt'),
    -- three retries are four attempts
    'max_attempts', case when v_columns ? 'max_retries' and not v_columns ? 'max_attempts'
      then format('case when %1$s%2$I is not null then least(greatest(%1$s%2$I, 0), 30000)::smallint + 1::smallint end',
        prefix, v_columns ->> 'max_retries')
      else v_words ->> 'max_attempts' end,
    'priority', format('least(coalesce(%s, 0), 9)::smallint', v_words ->> 'priority'),
    'created_at', format('coalesce(%s, %L::timestamptz)', v_words ->> 'created_at', a.adopted_at::text),
    -- columns that come later are not told: handlers do not know them
    'payload', case
      when a.spec ? 'payload_column' then
        format('coalesce(to_jsonb(%s%I), ''{}'')', prefix, a.spec ->> 'payload_column')
      when a.spec ?| '{payload,row}' then format('(select coalesce(jsonb_object_agg(hf_e.key, hf_e.value), ''{}'')'
        || ' from jsonb_each(to_jsonb(%s*)) hf_e where hf_e.key = any(%L::text[]))', prefix,
        array(select jsonb_array_elements_text(coalesce(a.spec -> 'payload', a.spec -> 'row'))))
      else format('to_jsonb(%s*) - %L::text[]', prefix,
        array(select jsonb_array_elements_text(a.spec -> 'hidden'))) end,
    'is_free', format('(%1$s%2$I is null or %1$s%2$I <= hf_at) and (%1$s%3$I is null or %1$s%3$I <= hf_at)',
      prefix, v_columns ->> 'lease_until', v_columns ->> 'run_at'),
    'set_started', case when v_columns ? 'started_at'
      then holdfast.filled('{started_at_name} = {started_at_now},', v_words) else '' end,
    'set_restarted', case when v_columns ? 'started_at' then format(
      '%I = case when d.outcome = ''queued'' then null else %s%1$I end,', v_columns ->> 'started_at', prefix)
        else '' end,
    'set_ended', case when v_columns ? 'ended_at' then holdfast.filled(
      '{ended_at_name} = case when d.outcome <> ''queued'' then {ended_at_now} end,', v_words) else '' end,
    'set_failed', case when v_columns ? 'failed_at' then holdfast.filled(
      '{failed_at_name} = case when d.outcome = ''dead'' then {failed_at_now} end,', v_words) else '' end,
    -- success deletes the row, if the table was adopted so
    'and_stays', case when v_deletes then ' and d.outcome <> ''done''' else '' end,
    'deleted', case when v_deletes then format(
      E', deleted as (\n      delete from only %s job using d where job.ctid = d.place and d.outcome = ''done'''
      || E'\n      returning d.id, d.token, d.kind, d.worker, d.attempt, d.outcome\n    )', a.relation) else '' end,
    'and_deleted', case when v_deletes then
      E'\n    union all\n    select c.id, c.token, c.kind, c.worker, c.attempt, c.outcome from deleted c' else '' end);
end
$$;

-- filled: a template with its {words} replaced, each once: what a word brings along is not looked at again.
create or replace function holdfast.filled(template text, words jsonb)
returns text
language sql immutable
as $$
  select string_agg(t.piece || coalesce(words ->> w.word[1], case when w.word is null then '' else 'null' end), ''
           order by t.nth)
  from regexp_split_to_table(template, '\{[a-z_]+\}') with ordinality t(piece, nth)
  left join regexp_matches(template, '\{([a-z_]+)\}', 'g') with ordinality w(word, nth) on w.nth = t.nth
$$;

-- rows_template, and its like: functions of a table. This one: its rows as jobs, some of them or all.
create or replace function holdfast.rows_template()
returns text
language sql immutable
as $template$ select $code$
-- rows of {table} as jobs: those with these ids, or else a page, newest first; bare: without what may not be readable
create or replace function holdfast_adopted."{part}_rows"(
  hf_ids uuid[], hf_before uuid, hf_max integer, hf_bare boolean)
returns setof holdfast_adopted.job_row
language plpgsql stable {rights}
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
begin
  if hf_bare then
    return query select {bare_columns} from only {table} job
      where (hf_ids is null or {id} = any(hf_ids)) and {mine}
        and {id} < coalesce(hf_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      order by {id} desc limit hf_max;
  elsif hf_ids is not null then
    return query select {columns} from only {table} job where {id} = any(hf_ids) and {mine};
  else
    return query select {columns} from only {table} job
      where {id} < coalesce(hf_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff') and {mine} order by {id} desc
        limit hf_max;
  end if;
end
$body$;

create or replace function holdfast_adopted."{part}_oldest"()
returns timestamptz
language sql stable {rights}
as $body$
  select coalesce({run_at}, {created_at}) from only {table} job where {is_queued} order by {by_priority}{order} limit 1
$body$;

-- how many are taken, and which of them
create or replace function holdfast_adopted."{part}_leased"()
returns integer
language sql stable {rights}
as $body$
  select count(*)::integer from only {table} job where {is_leased}
$body$;

create or replace function holdfast_adopted."{part}_taken"(hf_max integer)
returns setof uuid
language sql stable {rights}
as $body$
  select {id} from only {table} job where {is_leased} limit "{part}_taken".hf_max
$body$;

create or replace function holdfast_adopted."{part}_count"()
returns table (kind text, state text, jobs bigint)
language sql stable {rights}
as $body$
  select {kind}, {state}, count(*) from only {table} job where {mine} group by 1, 2
$body$;

create or replace function holdfast_adopted."{part}_done"(hf_ids uuid[])
returns table (id uuid, done boolean)
language sql {rights}
as $body$
  select u.id, coalesce(({done_when}), false)
  from unnest(hf_ids) u(id)
  join only {table} job on {id} = u.id
$body$;
$code$::text $template$;

-- claim_template: {pick} is which rows.
create or replace function holdfast.claim_template()
returns text
language sql immutable
as $template$ select $code$
-- without a token it only looks which rows would be taken, and reads nothing else of them
create or replace function holdfast_adopted."{part}_claim"(
  hf_worker text, hf_token uuid, hf_max integer, hf_lease interval, hf_kinds text[], hf_lane_limit integer,
  hf_skip uuid[], hf_only uuid, hf_at timestamptz, hf_leaving text[])
returns setof holdfast_adopted.job_row
language plpgsql {rights}
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
declare
  v_rows  tid[];
  v_taken integer;
begin
  if hf_only is not null then
    v_rows := array(select job.ctid from only {table} job where {id} = hf_only and {is_queued} and {is_free}
      for update of job skip locked);
  else
    v_rows := array(
    {pick}
    for update of job skip locked);
  end if;
  if hf_token is null then
    return query select {id}, null::uuid, null::text, null::text, null::smallint, null::smallint, null::smallint,
      null::timestamptz, null::timestamptz, null::timestamptz, null::text, null::text, null::text, null::text,
      null::jsonb, null::text, null::text, null::timestamptz
      from unnest(v_rows) with ordinality p(place, nth) join only {table} job on job.ctid = p.place order by p.nth;
    return;
  end if;
  return query
    with taken as (
      update only {table} job
      set {status_name} = {leased}, {token_name} = hf_token, {worker_name} = hf_worker::{worker_type},
          {lease_until_name} = hf_at + hf_lease,
          {attempt_name} = {attempt} + 1, {run_at_name} = null, {set_started} {at_name} = clock_timestamp()
      from unnest(v_rows) with ordinality p(place, nth)
      where job.ctid = p.place
      returning p.nth as hf_nth, {columns}
    )
    select {names} from taken where token = hf_token and state = 'leased' order by hf_nth;
  get diagnostics v_taken = row_count;
  if v_taken < cardinality(v_rows) then
    raise exception using errcode = 'triggered_data_change_violation', message = 'a trigger suppressed the update';
  end if;
end
$body$;
$code$::text $template$;

-- pick_template: the rows that are next.
create or replace function holdfast.pick_template()
returns text
language sql immutable
as $template$ select $code$
select job.ctid
    from only {table} job
    where {is_queued} and {is_free} and (hf_kinds is null or {kind} = any(hf_kinds))
      and {id} not in (select k.id from unnest(hf_skip) k(id))
    order by {by_priority}{order}
    limit hf_max
$code$::text $template$;

-- pick_lanes_template: of each lane the first that is due, if the lane has room; a lane is found by one probe from the
-- one before.
create or replace function holdfast.pick_lanes_template()
returns text
language sql immutable
as $template$ select $code$
select job.ctid
    from only {table} job
    where job.ctid = any(array(
      with recursive lanes as (
        (select job.{lane_name} as name from only {table} job where {is_queued} and job.{lane_name} is not null
          order by job.{lane_name} limit 1)
        union all
        select (select job.{lane_name} from only {table} job where {is_queued} and job.{lane_name} > l.name
               order by job.{lane_name} limit 1)
        from lanes l
        where l.name is not null
      ), heads as (
        select h.*
        from lanes l
        cross join lateral (
          select job.ctid as place, {priority} as priority, row({order}) as nth, {kind} as kind
          from only {table} job
          where {is_queued} and {is_free} and job.{lane_name} = l.name
            and {id} not in (select k.id from unnest(hf_skip) k(id))
          order by {order}
          limit 1
        ) h
        -- jobs that were cancelled while they ran keep their place until their holders let go
        where (select count(*) from only {table} job where {is_leased} and job.{lane_name} = l.name)
          + (select count(*) from unnest(hf_leaving) g(lane) where g.lane = l.name::text) < hf_lane_limit
        union all
        (select job.ctid, {priority}, row({order}), {kind}
         from only {table} job
         where {is_queued} and {is_free} and job.{lane_name} is null
           and {id} not in (select k.id from unnest(hf_skip) k(id))
         order by {order}
         limit hf_max)
      )
      select h.place
      from heads h
      where hf_kinds is null or h.kind = any(hf_kinds)
      order by h.priority desc, h.nth
      limit hf_max)) and {is_queued} and {is_free}
$code$::text $template$;

-- settle_template: what a verb makes of rows, decided and written in one statement. Its backoff is that of `fail`
-- (settle.sql).
create or replace function holdfast.settle_template()
returns text
language sql immutable
as $template$ select $code$
-- Who asks without a token is an operator: it may end what waits or runs, and retry what ended.
-- The rows are locked first; whether the work is done is asked in the statement that puts the job back.
create or replace function holdfast_adopted."{part}_settle"(
  hf_ids uuid[], hf_tokens uuid[], hf_verb text, hf_finals boolean[], hf_errors text[], hf_delays interval[],
  hf_reason text,
  hf_max_attempts smallint, hf_backoff interval, hf_cap interval, hf_at timestamptz)
returns table (id uuid, token uuid, kind text, worker text, attempt smallint, outcome text)
language plpgsql {rights}
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
begin
  if hf_verb <> 'expire' then   -- reap has locked them, and waits for nobody
    perform from (select distinct x.id from unnest(hf_ids) x(id) order by x.id) u
    cross join lateral (select from only {table} job where {id} = u.id for update) l;
  end if;
  return query
    with d as materialized (
      select job.ctid as place, u.id, {token} as token, {kind} as kind, {worker} as worker,
        ({attempt} + u.uncounted)::smallint as attempt, u.error,
        case
          when hf_verb = 'ack' then 'done'
          when hf_verb in ('release', 'retry', 'reset') then 'queued'
          when hf_verb = 'cancel' then 'cancelled'
          when hf_verb = 'expire' and ({done_when}) then 'done'
          when {attempt} + u.uncounted >= coalesce({max_attempts}, hf_max_attempts) or u.final then 'dead'
          else 'queued'
        end as outcome,
        coalesce(u.delay, case when hf_verb = 'nack' then make_interval(secs => random() * least(
          extract(epoch from hf_backoff) * power(2, least({attempt}, 40) - 1),
            extract(epoch from hf_cap))::double precision)
          else '0' end) as delay
      from (
        select distinct on (x.id, x.token) x.id, x.token, coalesce(x.final, false) as final, x.error, x.delay,
               -- other code that took a row did not count it
               case when hf_verb = 'expire' and x.token is null then 1 else 0 end as uncounted
        from unnest(hf_ids, hf_tokens, hf_finals, hf_errors, hf_delays) x(id, token, final, error, delay)
      ) u
      join only {table} job on {id} = u.id
      where case
        when u.token is not null then job.{token_name} = u.token and ({is_queued} or {is_leased})
        when hf_verb = 'retry' then {is_done} or {is_dead} or {is_cancelled}
        else ({is_queued} or {is_leased}) end
    ), changed as (
      update only {table} job
      set {status_name} = case d.outcome
            when 'done' then {done} when 'dead' then {dead} when 'cancelled' then {cancelled} else {queued} end,
          {token_name} = null, {lease_until_name} = null,
          {worker_name} = case when d.outcome <> 'queued' then d.worker::{worker_type} end,
          {attempt_name} = case when hf_verb = 'release' then greatest(d.attempt - 1, 0)
            when hf_verb in ('retry', 'reset') then 0 else d.attempt end,
          {run_at_name} = case when d.outcome = 'queued' and d.delay > '0' then hf_at + d.delay end,
          {error_name} = case when hf_verb in ('nack', 'expire') and d.outcome <> 'done' then d.error::{error_type}
                              when hf_verb in ('retry', 'reset') then null else job.{error_name} end,
          {reason_name} = coalesce(hf_reason::{reason_type}, job.{reason_name}),
          {set_restarted} {set_ended} {set_failed}
          {at_name} = clock_timestamp()
      from d
      where job.ctid = d.place{and_stays}
      returning d.id, d.token, d.kind, d.worker, d.attempt,
        case when job.{token_name} is null then d.outcome end as outcome
    ){deleted}
    select x.id, x.token, min(x.kind), min(x.worker), min(x.attempt), coalesce(min(x.outcome), 'suppressed')
    from (
      select c.id, c.token, c.kind, c.worker, c.attempt, c.outcome from changed c{and_deleted}
      union all
      -- what a trigger kept as it was
      select d.id, d.token, d.kind, d.worker, d.attempt, null from d
    ) x
    group by x.id, x.token;
end
$body$;
$code$::text $template$;

-- lease_template: what happens to rows that are taken.
create or replace function holdfast.lease_template()
returns text
language sql immutable
as $template$ select $code$
-- rows locked in the order of their ids, as every verb that waits for them does; none: the table alone
create or replace function holdfast_adopted."{part}_lock"(hf_ids uuid[])
returns void
language plpgsql {rights}
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
begin
  perform from (select distinct x.id from unnest(hf_ids) x(id) order by x.id) u
  cross join lateral (select from only {table} job where {id} = u.id for update) l;
end
$body$;

create or replace function holdfast_adopted."{part}_touch"(hf_ids uuid[], hf_tokens uuid[], hf_untils timestamptz[])
returns table (id uuid, token uuid, lease_until timestamptz)
language plpgsql {rights}
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
begin
  perform from (select distinct x.id from unnest(hf_ids) x(id) order by x.id) u
  cross join lateral (select from only {table} job where {id} = u.id for no key update) l;
  return query
    with held as materialized (
      select job.ctid as place, u.id, u.token, u.until
      from (
        select distinct on (x.id, x.token) x.id, x.token, x.until
        from unnest(hf_ids, hf_tokens, hf_untils) x(id, token, until)
      ) u
      join only {table} job on {id} = u.id
      where job.{token_name} = u.token and ({is_queued} or {is_leased})
    ), kept as (
      update only {table} job
      set {lease_until_name} = greatest(job.{lease_until_name}, h.until), {at_name} = clock_timestamp()
      from held h
      where job.ctid = h.place
      returning h.id, h.token, job.{lease_until_name}::timestamptz as until
    )
    -- what a trigger kept as it was is returned without a time
    select x.id, x.token, max(x.until)
    from (
      select k.id, k.token, k.until from kept k
      union all
      select h.id, h.token, null from held h
    ) x
    group by x.id, x.token;
end
$body$;
$code$::text $template$;

-- taken_template: the same, for who takes leases back and who ends them elsewhere.
create or replace function holdfast.taken_template()
returns text
language sql immutable
as $template$ select $code$
-- what of these leases has expired, locked; and how long the rest lasts
create or replace function holdfast_adopted."{part}_expired"(hf_ids uuid[], hf_token uuid, hf_cut timestamptz)
returns table (id uuid, lease_until timestamptz, expired boolean)
language sql {rights}
as $body$
  select u.id, x.{lease_until_name}, l.id is not null
  from unnest(hf_ids) u(id)
  join lateral (
    select job.{lease_until_name} from only {table} job
    where {id} = u.id and job.{token_name} = "{part}_expired".hf_token and ({is_queued} or {is_leased})
    limit 1) x on true
  left join lateral (
    select u.id from only {table} job
    where {id} = u.id and job.{token_name} = "{part}_expired".hf_token
      and job.{lease_until_name} <= "{part}_expired".hf_cut
    for update skip locked) l on true
$body$;

-- rows that other code took and left: nobody holds them, and they have not ended
create or replace function holdfast_adopted."{part}_stuck"(hf_max integer, hf_since timestamptz)
returns setof uuid
language sql {rights}
as $body$
  select {id} from only {table} job
  where {is_leased} and job.{token_name} is null and {started_at} <= "{part}_stuck".hf_since
  order by {started_at}
  limit "{part}_stuck".hf_max
  for update skip locked
$body$;

create or replace function holdfast_adopted."{part}_hand_over"(
  hf_id uuid, hf_token uuid, hf_new_token uuid, hf_until timestamptz, hf_holder text)
returns timestamptz
language plpgsql {rights}
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
declare
  v_place tid;
  v_until timestamptz;
begin
  select job.ctid into v_place from only {table} job
  where {id} = hf_id and job.{token_name} = hf_token and ({is_queued} or {is_leased})
  for update;
  update only {table} job
  set {token_name} = hf_new_token, {worker_name} = hf_holder::{worker_type}, {lease_until_name} = hf_until,
    {at_name} = clock_timestamp()
  where job.ctid = v_place
  returning case when job.{token_name} = hf_new_token then job.{lease_until_name} end into v_until;
  if v_place is not null and v_until is null then
    raise exception using errcode = 'triggered_data_change_violation', message = 'a trigger suppressed the update';
  end if;
  return v_until;
end
$body$;

create or replace function holdfast_adopted."{part}_guard"(hf_id uuid, hf_token uuid)
returns boolean
language plpgsql {rights}
as $body$
#variable_conflict use_variable   -- a column may have come to be called as a parameter
begin
  -- held to the end of the caller's transaction: whoever else does this job waits here, and then sees
  perform from only {table} job
  where {id} = hf_id and job.{token_name} = hf_token and ({is_queued} or {is_leased})
  for update;
  if not found then
    return null;
  end if;
  return (select coalesce(({done_when}), false) from only {table} job where {id} = hf_id);
end
$body$;
$code$::text $template$;

-- trigger_template: one for each sort of statement: each sees its own rows. The application's write must not fail
-- because of what Holdfast cannot read any more.
create or replace function holdfast.trigger_template()
returns text
language sql immutable
as $template$ select $code$
create or replace function holdfast_adopted."{part}_{event}"()
returns trigger
language plpgsql {rights}
set enable_hashjoin = on set enable_sort = on set enable_seqscan = on   -- whatever the writer has set
as $body$
declare
  v_kinds text[]; v_states text[]; v_counts bigint[]; v_ready bigint; v_whats text[]; v_jobs bigint[];
  v_samples text[]; v_ids uuid[];
begin
  if tg_op = 'TRUNCATE' then
    perform holdfast_told."{part}_mended"(null);
    return null;
  end if;
  begin
    select array_agg(c.kind), array_agg(c.state), array_agg(c.n) into v_kinds, v_states, v_counts
    from (
      select r.kind, r.state, sum(r.n) as n
      from ({rows}) r
      group by r.kind, r.state
      having sum(r.n) <> 0
    ) c;
    {ready}
    {notes}
  exception when others then
    return null;
  end;
  if holdfast_told."{part}_wrote"(v_kinds, v_states, v_counts, v_ready, v_whats, v_jobs, v_samples) then
    begin
      v_ids := array(select {id} from {before} job);
    exception when others then
      return null;
    end;
    perform holdfast_told."{part}_mended"(v_ids);
  end if;
  return null;
end
$body$;
$code$::text $template$;

-- notes_template: what other code did to rows: Holdfast marks what it writes itself.
create or replace function holdfast.notes_template()
returns text
language sql immutable
as $template$ select $code$
select array_agg(w.what), array_agg(w.jobs), array_agg(w.sample) into v_whats, v_jobs, v_samples
    from (
      select w.what, count(*) as jobs, min(w.key) as sample
      from (
        select n.key, case
          when o.held and n.state = 'leased' and o.status is not distinct from n.status
            then 'took a row that Holdfast had leased'
          when o.held and o.status is distinct from n.status then 'set a row that Holdfast had leased to ' || n.status
          when o.state = 'queued' and n.state = 'leased' then 'took'
          else 'set ' || coalesce(o.status, 'null') || ' to ' || coalesce(n.status, 'null') end as what
        from (select {key} as key, {status}::text as status, {state} as state, {token} is not null as held,
          job.{at_name} as at, {started_at} as started from old_rows job) o
        join (select {key} as key, {status}::text as status, {state} as state, job.{at_name} as at,
          {started_at} as started from new_rows job where {mine}) n on n.key = o.key
        where n.at is not distinct from o.at
          and (o.status is distinct from n.status or o.held and o.started is distinct from n.started)
      ) w
      group by w.what
    ) w;
$code$::text $template$;

-- adopted_code: what is generated for a table, as a script for its owner to run.
create or replace function holdfast.adopted_code(a holdfast.adopted)
returns text
language plpgsql stable
as $$
declare
  v_now    constant text := 'select {kind} as kind, {state} as state, 1 as n from new_rows job where {mine}';
  v_before constant text := 'select {kind} as kind, {state} as state, -1 as n from old_rows job where {mine}';
  v_ready  constant text := 'select count(*) into v_ready from new_rows job'
    || ' where {is_queued} and job.{token_name} is null;';
  v_words  jsonb := holdfast.adopted_words(a) || '{"rights": "security definer set search_path = pg_catalog, pg_temp"}';
  v_script text := holdfast.rows_template() || holdfast.lease_template() || holdfast.taken_template()
    || holdfast.settle_template() || replace(holdfast.claim_template(), '{pick}', case when a.spec -> 'columns' ? 'lane'
         then holdfast.pick_lanes_template() else holdfast.pick_template() end);
  v_columns constant text := $columns${id} as id, {token} as token, {kind} as kind, {state} as state,
        {priority} as priority, {attempt} as attempt, {max_attempts} as max_attempts,
        coalesce({run_at}, {created_at}) as run_at, {created_at} as created_at, {lease_until} as lease_until,
        {worker} as worker, {lane} as lane, {tenant} as tenant, {key} as subject, {payload} as payload,
        {error} as error, {reason} as reason, case when not ({is_queued} or {is_leased})
          then coalesce({ended_at}, {failed_at}, {at}, {created_at}) end as ended_at$columns$;
  v_one    record;
begin
  for v_one in
    select * from (values
      ('inserted', v_now, v_ready, '', 'new_rows'),
      ('updated', v_now || ' union all ' || v_before, v_ready, holdfast.notes_template(), 'old_rows'),
      ('deleted', v_before, '', '', 'old_rows')) x(event, rows, ready, notes, before)
  loop
    v_script := v_script || replace(replace(replace(replace(replace(holdfast.trigger_template(),
      '{event}', v_one.event), '{rows}', v_one.rows), '{ready}', v_one.ready), '{notes}', v_one.notes),
      '{before}', v_one.before);
  end loop;
  v_words := v_words || jsonb_build_object(
    'names', 'id, token, kind, state, priority, attempt, max_attempts, run_at, created_at, lease_until, worker, lane,'
      || ' tenant, subject, payload, error, reason, ended_at',
    'columns', holdfast.filled(v_columns, v_words),
    'bare_columns', holdfast.filled(replace(v_columns, '{payload}', '''{}''::jsonb'), v_words));
  -- no name or value of the table can end a body
  return holdfast.filled(replace(v_script, '$body$', '$hf' || md5(v_words::text) || '$'), v_words);
end
$$;
