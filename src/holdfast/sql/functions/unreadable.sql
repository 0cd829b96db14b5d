-- Jobs that a worker cannot read: given back, uncounted, for another that can. While old and new workers run side by
-- side, each may get jobs that only the other one knows the arguments of.

-- unread: note jobs of these leases that cannot be read, before they are released; returns how long each should wait.
-- unread has for each id null, or {"shape", "problem"}: the declaration that could not read it, and why. Another
-- worker may get it soon; if no running one could read it, it waits for a minute, or for one that comes.
create or replace function holdfast.unread(ids uuid[], tokens uuid[], unread jsonb[], delays interval[])
returns interval[]
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  lock table holdfast.releases in row share mode;   -- as a release does, before the jobs
  perform holdfast.lock_loose(ids);
  v_now := holdfast.clock();
  insert into holdfast.unreadable as n (part, id, queue, kind, attempt, payload, shapes, problem, since, at)
  select distinct on (j.part, j.id) j.part, j.id, j.queue, j.kind, j.attempt - 1, md5(j.payload::text),
         array[left(u.said ->> 'shape', 100)], left(u.said ->> 'problem', 1000), v_now, v_now
  from unnest(ids, tokens, unread) u(id, token, said)
  join holdfast.job j on j.part = holdfast.part_of(u.id) and j.id = u.id and j.token = u.token
  where u.said is not null
  on conflict (part, id) do update
  set attempt = excluded.attempt, payload = excluded.payload, problem = excluded.problem, at = v_now,
      shapes = case
        when (n.attempt, n.payload) is distinct from (excluded.attempt, excluded.payload) then excluded.shapes
        when excluded.shapes[1] = any(n.shapes) then n.shapes
        else n.shapes || excluded.shapes end,
      since = case
        when (n.attempt, n.payload) is distinct from (excluded.attempt, excluded.payload) then v_now
        else n.since end,
      times = case
        when (n.attempt, n.payload) is distinct from (excluded.attempt, excluded.payload) then 1
        else n.times + 1 end;
  return array(
    select case
        when u.said is null then u.delay
        when n.id is null or not holdfast.may_read(n.queue, n.kind, n.shapes, v_now) then interval '1 minute'
        else make_interval(secs => least(0.25 * 2 ^ least(n.times, 6), 5) * (0.75 + random() / 2))
      end
    from unnest(ids, unread, delays) with ordinality u(id, said, delay, nth)
    left join holdfast.unreadable n on n.part = holdfast.part_of(u.id) and n.id = u.id
    order by u.nth);
end
$$;

-- unread_ok: whether an item of settle that has unread is a release, and says what could not be read and why.
create or replace function holdfast.unread_ok(item jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select coalesce(jsonb_typeof(item -> 'unread'), 'null') = 'null' or coalesce(
    jsonb_typeof(item -> 'unread' -> 'shape') = 'string' and item ->> 'verb' = 'release'
    and jsonb_typeof(item -> 'unread' -> 'problem') = 'string', false)
$$;

-- may_read: whether a running worker takes this kind from this queue and has not said that it cannot read such a job.
create or replace function holdfast.may_read(queue text, kind text, shapes text[], at timestamptz)
returns boolean
language sql stable
as $$
  select exists (
    select from holdfast.worker w
    where w.seen_at > at - interval '1 minute' and w.stop_at is null
      and (w.queues = '{}' or may_read.queue = any(w.queues))
      and (w.kinds = '{}' or may_read.kind = any(w.kinds))
      and coalesce(w.shapes ->> may_read.kind, '') <> all(may_read.shapes))
$$;

-- unread_now: what is noted about a waiting job and still true of it: it has not run since, and was not edited.
create or replace function holdfast.unread_now(j holdfast.job)
returns setof holdfast.unreadable
language sql stable
as $$
  select n.*
  from holdfast.unreadable n
  where n.part = j.part and n.id = j.id and n.attempt = j.attempt and j.token is null
    and n.payload = md5(j.payload::text)
$$;

-- offer_unread: make jobs due that a worker with these declarations has not tried to read yet, now that it is here.
create or replace function holdfast.offer_unread(shapes jsonb)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_jobs bigint;
begin
  if not exists (select from holdfast.unreadable n where offer_unread.shapes ? n.kind) then
    return 0;
  end if;
  lock table holdfast.job in row exclusive mode;
  with chosen as materialized (
    select j.part, j.id
    from holdfast.unreadable n
    join holdfast.job j on j.part = n.part and j.id = n.id
    where offer_unread.shapes ->> n.kind <> all(n.shapes)
      and j.token is null and j.pos is null and j.run_at > v_now and j.attempt = n.attempt
    order by j.id
    for update of j skip locked
  )
  update holdfast.job j
  set run_at = v_now
  from chosen c
  where j.part = c.part and j.id = c.id;
  get diagnostics v_jobs = row_count;
  return v_jobs;
end
$$;

-- forget_unreadable: forget what was noted about jobs that are gone, or have run since.
create or replace function holdfast.forget_unreadable()
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_gone bigint;
begin
  delete from holdfast.unreadable n
  where n.ctid = any(array(
    select x.ctid
    from holdfast.unreadable x
    left join holdfast.job j on j.part = x.part and j.id = x.id
    where j.id is null or j.token is null and j.attempt <> x.attempt
    limit 5000
    for update of x skip locked));
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;

-- explain_unread: that workers could not read its arguments.
create or replace function holdfast.explain_unread(j holdfast.job, at timestamptz)
returns text
language sql stable
as $$
  select case when holdfast.may_read(n.queue, n.kind, n.shapes, at)
    then format('A worker could not read it and gave it back, %s so far: %s. Another running worker may be able to; '
      'it is offered again in %s.', case n.times when 1 then 'once' else n.times || ' times' end,
      rtrim(n.problem, '.'), date_trunc('second', greatest(j.run_at - at, '0') + interval '1 second'))
    else format('No running worker can read it: %s. It waits, uncounted, since %s. %s', rtrim(n.problem, '.'),
      holdfast.moment(n.since), case when holdfast.is_coded(j.payload)
        then 'It is offered to each worker that starts with other keys.'
        else 'Start a worker whose function takes these arguments, or edit the payload.' end)
  end
  from holdfast.unread_now(j) n
$$;
