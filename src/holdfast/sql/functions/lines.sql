-- Lines: what a handler logs while its job runs, stored under the token of its lease and shown with the job. The job
-- itself is not changed: lines cost the queue nothing but their own rows.

-- log: store lines of jobs, of one job or of many. lines is a JSON array, one array of texts per id. firsts says which
-- of the sender's lines each of these begins with, counted from 1 in each attempt; lines that were stored before are
-- then left out, so that the call can be repeated. A job keeps its newest 1000 lines, each up to 1000 characters.
-- Outcomes: logged; busy: another call is at the job, send the lines again; lost.
create or replace function holdfast.log(ids uuid[], tokens uuid[], lines jsonb, firsts bigint[] default null)
returns table (id uuid, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_busy bigint[];
  kept   record;
begin
  tokens := holdfast.paired(ids, tokens);
  perform holdfast.check_lines(lines, cardinality(ids), firsts);
  lock table holdfast.job in row exclusive mode;
  -- Locked, so that two calls do not give the same number, and nobody else has the job before these are stored. Never
  -- waited for: who renews leases calls this, too.
  with held as materialized (
    select j.part, j.id, j.token, j.attempt, u.nth
    from (
      select holdfast.part_of(x.id) as part, x.id, x.token, x.nth
      from unnest(ids, tokens) with ordinality x(id, token, nth)
      order by x.id
    ) u
    join holdfast.job j on j.part = any(array[u.part]) and j.id = u.id and j.token = u.token
    for no key update of j skip locked
  )
  select array_agg(h.part) as parts, array_agg(h.id) as ids, array_agg(h.token) as tokens,
         array_agg(h.attempt) as attempts, array_agg(h.nth) as nths
  into kept
  from (
    select h.* from held h
    union all
    select holdfast.part_of(x.id), x.id, x.token, a.attempt, x.nth
    from unnest(ids, tokens) with ordinality x(id, token, nth)
    cross join lateral (
      select y.attempt from holdfast.held(array[x.token]) y where y.id = x.id limit 1) a
    where holdfast.part_of(x.id) >= 64
  ) h;
  with known as materialized (
    select k.part, k.id, k.token, k.attempt, k.nth, coalesce(l.nth, 0) as last,
           case when l.token = k.token then l.own end as own
    from unnest(kept.parts, kept.ids, kept.tokens, kept.attempts, kept.nths) k(part, id, token, attempt, nth)
    left join lateral (
      select x.nth, x.token, x.own from holdfast.line x
      where x.part = k.part and x.id = k.id
      order by x.nth desc
      limit 1) l on true
  ), fresh as (
    select k.*, t.text, firsts[k.nth] + t.n - 1 as number,
           row_number() over (partition by k.id order by k.nth, t.n) as place
    from known k
    cross join lateral jsonb_array_elements_text(log.lines -> (k.nth - 1)::integer) with ordinality t(text, n)
    where coalesce(firsts[k.nth] + t.n - 1 > k.own, true)
  ), stored as (
    insert into holdfast.line (part, id, nth, attempt, at, text, token, own)
    select f.part, f.id, f.last + f.place, f.attempt, v_now, left(f.text, 1000), f.token, f.number
    from fresh f
    on conflict do nothing
    returning part, id, nth
  )
  delete from holdfast.line x
  using (select s.part, s.id, max(s.nth) as top from stored s group by s.part, s.id) n
  where x.part = n.part and x.id = n.id and x.nth <= n.top - 1000;
  if cardinality(kept.ids) is distinct from cardinality(ids) then
    v_busy := array(
      select x.nth from unnest(ids, tokens) with ordinality x(id, token, nth)
      join holdfast.job j on j.part = any(array[holdfast.part_of(x.id)]) and j.id = x.id and j.token = x.token);
  end if;
  return query
    select x.id, case when x.nth = any(kept.nths) then 'logged' when x.nth = any(v_busy) then 'busy' else 'lost' end
    from unnest(ids) with ordinality x(id, nth)
    order by x.nth;
end
$$;

-- lines: what the handlers of a job have logged, behind a number, oldest first. newest: only so many of them, the last.
create or replace function holdfast.lines(id uuid, after integer default 0, newest integer default 1000)
returns table (nth integer, attempt smallint, at timestamptz, text text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select n.nth, n.attempt, n.at, n.text
  from (
    select l.nth, l.attempt, l.at, l.text
    from holdfast.line l
    cross join (select coalesce(holdfast.locate(lines.id), lines.id) as id) s
    where l.part = holdfast.part_of(s.id) and l.id = s.id and l.nth > lines.after
    order by l.nth desc
    limit lines.newest
  ) n
  order by n.nth
$$;

-- last_lines: the number of the last line of each of these jobs that has any.
create or replace function holdfast.last_lines(ids uuid[])
returns table (id uuid, nth integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select u.id, l.nth
  from unnest(ids) u(id)
  cross join lateral (
    select x.nth from holdfast.line x
    where x.part = holdfast.part_of(u.id) and x.id = u.id
    order by x.nth desc
    limit 1) l
$$;

-- forget_lines: delete the lines of jobs that are gone, ten minutes after the last one, so that whoever follows a job
-- can read its end. Looks at up to most jobs, and goes on where it stopped; returns how many lines it deleted.
create or replace function holdfast.forget_lines(most integer default 5000)
returns bigint
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_from text[];
  v_seen integer := 0;
  v_gone bigint := 0;
  v_one  bigint;
  job    record;
begin
  select c.cursor into v_from from holdfast.chore c where c.name = 'lines' for update skip locked;
  if not found then
    return 0;
  end if;
  loop
    select l.part, l.id into job from holdfast.line l
    where (l.part, l.id) > (coalesce(v_from[1]::smallint, 0::smallint),
      coalesce(v_from[2]::uuid, '00000000-0000-0000-0000-000000000000'))
    order by l.part, l.id
    limit 1;
    exit when not found;
    v_from := array[job.part::text, job.id::text];
    v_seen := v_seen + 1;
    if not holdfast.is_there(job.id) then
      delete from holdfast.line l
      where l.part = job.part and l.id = job.id and not exists (
        select from holdfast.line x
        where x.part = job.part and x.id = job.id and x.at > holdfast.now() - interval '10 minutes');
      get diagnostics v_one = row_count;
      v_gone := v_gone + v_one;
    end if;
    exit when v_seen >= most;
  end loop;
  update holdfast.chore c set cursor = case when v_seen < most then '{}' else v_from end where c.name = 'lines';
  return v_gone;
end
$$;

-- is_there: whether a job exists, live or ended, or is a row of an adopted table.
create or replace function holdfast.is_there(id uuid)
returns boolean
language sql stable
as $$
  select case
    when holdfast.part_of(is_there.id) < 64 then holdfast.locate(is_there.id) is not null
    else exists (select from holdfast.get(is_there.id))
  end
$$;

-- check_lines: refuse what is not one array of texts per id.
create or replace function holdfast.check_lines(lines jsonb, jobs integer, firsts bigint[])
returns void
language plpgsql
as $$
declare
  v_bad record;
begin
  if jsonb_typeof(lines) is distinct from 'array' or jsonb_array_length(lines) <> jobs then
    perform holdfast.refuse('HF208', format('lines must be a JSON array of %s values, one per id', jobs));
  end if;
  if cardinality(firsts) <> jobs then
    perform holdfast.refuse('HF208', format('%s ids but %s firsts', jobs, cardinality(firsts)));
  end if;
  select l.said, l.ord into v_bad
  from jsonb_array_elements(lines) with ordinality l(said, ord)
  where jsonb_typeof(l.said) <> 'array' or jsonb_array_length(l.said) > 1000
    or jsonb_path_exists(l.said, 'strict $[*] ? (@.type() <> "string")')
  limit 1;
  if found then
    perform holdfast.refuse('HF208', format('lines %s is not valid: %s', v_bad.ord, holdfast.told(v_bad.said, 200)),
      null, 'It must be an array of up to 1000 texts such as ["page 3 of 20"].');
  end if;
end
$$;
