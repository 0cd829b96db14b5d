-- Recovery: jobs that are finished by another process than the one that claimed them. A lease can be handed over to
-- an external system; and if a kind has a check of its output, workers run it before a job whose worker disappeared
-- runs again.

-- hand_over: pass a lease to a new token, created by the caller, for timeout from now. The old token is no longer
-- valid; the external system acks, nacks or touches with the new one. If it does not settle the job in time, the
-- attempt fails.
create or replace function holdfast.hand_over(
  id uuid, token uuid, new_token uuid, timeout interval, holder text default 'outside')
returns table (outcome text, lease_until timestamptz, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now  timestamptz;
  v_part constant smallint := holdfast.part_of(id);
  v_job  record;
begin
  if id is null then
    perform holdfast.refuse('HF208', 'id must not be null');
  end if;
  if token is null or new_token is null or token = new_token then
    perform holdfast.refuse('HF207', 'hand_over needs the token of the lease and a new token', null,
      'Create a new one for each call, for example new_token => gen_random_uuid().');
  end if;
  if timeout is null then
    perform holdfast.refuse('HF204', 'timeout is missing', null,
      'Give the time to wait for an answer, for example ''10 minutes''.');
  end if;
  perform holdfast.check_length('timeout', timeout, '1 year');
  perform holdfast.named('holder', holder);

  perform holdfast.lock_jobs(array[id]);
  v_now := holdfast.clock();   -- behind what may wait: the timeout is counted from now
  if v_part < 64 then
    update holdfast.job j
    set token = hand_over.new_token, worker = hand_over.holder, lease_until = v_now + timeout
    where j.part = v_part and j.id = hand_over.id and j.token = hand_over.token
    returning j.queue, j.kind, j.attempt, j.lease_until into v_job;
  else
    select a.queue, null::text as kind, null::smallint as attempt, a.lease_until into v_job
    from holdfast.hand_over_adopted(id, token, new_token, v_now + timeout, holder) a;
    if found and holdfast.clock() - v_now >= interval '1 second' then   -- it waited for the row
      v_now := holdfast.clock();
      select a.queue, null::text as kind, null::smallint as attempt, a.lease_until into v_job
      from holdfast.hand_over_adopted(id, new_token, new_token, v_now + timeout, holder) a;
    end if;
  end if;
  if v_job.queue is not null then
    -- claimed_at stays that of the attempt
    insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids, outside)
    select hand_over.new_token, v_part, v_job.queue, hand_over.holder, coalesce(max(l.claimed_at), v_now), timeout,
           v_job.lease_until, array[hand_over.id], true
    from holdfast.lease l
    where l.token = hand_over.token and l.part = v_part;
    perform holdfast.mark_taken(array[id], array[token], 'handed over');
    insert into holdfast.event (at, slot, part, job, event, state, queue, kind, attempt, worker)
    select v_now, holdfast.event_slot(v_now), v_part, hand_over.id, 'handed_over', 'leased', v_job.queue, v_job.kind,
           v_job.attempt,
           hand_over.holder
    where holdfast.is_told(v_job.queue);
    return query select 'leased', v_job.lease_until, null::text;
    return;
  end if;

  return query
    select 'already', coalesce(j.lease_until, n.until), null::text
    from holdfast.lease o
    cross join lateral (
      select x.until from holdfast.lease x
      where x.token = hand_over.new_token and x.outside and hand_over.id = any(x.ids)
      limit 1) n
    left join lateral (
      select x.lease_until from holdfast.job x
      where x.part = v_part and x.id = hand_over.id and x.token = hand_over.new_token
      limit 1) j on true
    where o.token = hand_over.token and holdfast.how_taken(o.taken, hand_over.id) = 'handed over'
    limit 1;
  if not found then
    return query
      select l.outcome, null::timestamptz, l.detail
      from holdfast.lost('hand_over', array[hand_over.id], array[hand_over.token]) l;
  end if;
end
$$;

-- declare_kinds: declare kinds, and whether they have a check that their work is done. kinds: [{"kind", "done_when":
-- true | false, …}]; other fields of an item are stored with the kind. Returns how many were new or changed.
create or replace function holdfast.declare_kinds(kinds jsonb)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_bad     record;
  v_changed integer;
begin
  if kinds is null or jsonb_typeof(kinds) <> 'array' then
    perform holdfast.refuse('HF201', 'kinds must be a JSON array of objects', null,
      'For example [{"kind": "invoice", "done_when": true}].');
  end if;
  select i.item, i.ord into v_bad
  from jsonb_array_elements(kinds) with ordinality i(item, ord)
  where jsonb_typeof(i.item) <> 'object' or coalesce(jsonb_typeof(i.item -> 'kind'), '') <> 'string'
     or not coalesce(jsonb_typeof(i.item -> 'done_when'), 'boolean') = 'boolean'
     or pg_column_size(i.item) > 10000
  limit 1;
  if found then
    perform holdfast.refuse('HF201', format('item %s is not a valid kind: %s', v_bad.ord,
      holdfast.told(v_bad.item, 200)), null,
      'For example {"kind": "invoice", "done_when": true}.');
  end if;
  perform holdfast.named('kind', i.item ->> 'kind') from jsonb_array_elements(kinds) i(item);
  perform holdfast.check_value(format('declaration of kind %L', i.item ->> 'kind'), i.item, 20000)
  from jsonb_array_elements(kinds) i(item);

  insert into holdfast.kind as k (name, done_when, about, declared_at)
  select distinct on (i.item ->> 'kind')
         i.item ->> 'kind', coalesce((i.item -> 'done_when')::boolean, false), i.item - '{kind,done_when}'::text[],
           holdfast.now()
  from jsonb_array_elements(kinds) with ordinality i(item, ord)
  order by i.item ->> 'kind', i.ord desc
  on conflict (name) do update
  set done_when = excluded.done_when, about = excluded.about, declared_at = excluded.declared_at
  where (k.done_when, k.about) is distinct from (excluded.done_when, excluded.about);
  get diagnostics v_changed = row_count;
  return v_changed;
end
$$;

-- doubtful: jobs of these kinds whose lease has expired but whose output may exist; null: of all kinds with a check.
-- It only reads: report the result with reconcile.
create or replace function holdfast.doubtful(kinds text[] default null, max_jobs integer default 100)
returns table (
  id uuid, token uuid, queue text, kind text, payload jsonb, headers jsonb, subject text, key text,
  attempt smallint, worker text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_kinds constant text[] := array(
    select k.name from holdfast.kind k where k.done_when and (doubtful.kinds is null or k.name = any(doubtful.kinds)));
  v_cut   timestamptz;
  v_back  timestamptz;
begin
  if not coalesce(max_jobs between 1 and 10000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 10000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  if cardinality(v_kinds) = 0 then
    return;
  end if;
  select e.cut, e.back into v_cut, v_back from holdfast.expired_before(v_now) e;
  return query
    select j.id, j.token, j.queue, j.kind, j.payload, j.headers, j.subject, j.key, j.attempt, j.worker
    from (
      (select l.token, l.part, l.ids, l.claimed_at
       from holdfast.lease l
       where l.open and l.asked_at is not null
       order by l.asked_at)
      union all
      (select l.token, l.part, l.ids, l.claimed_at
       from holdfast.lease l
       where l.open and l.asked_at is null and l.until <= v_now
       order by l.until)
    ) l
    cross join lateral unnest(l.ids) i(id)
    cross join lateral (
      select x.*
      from holdfast.job x
      where x.part = l.part and x.id = i.id and x.token = l.token and x.kind = any(v_kinds)
        and x.lease_until <= case when l.claimed_at >= v_back then v_now else v_cut end
      limit 1
    ) j
    limit max_jobs;
end
$$;

-- reconcile: report whether the work of expired leases is done. Token and expiry are checked again under the lock: a
-- worker that came back in between, or is settling right now, keeps the job, and the outcome is 'lost'. done ends the
-- job as an ack would; otherwise the attempt has failed, as if reaped.
create or replace function holdfast.reconcile(ids uuid[], tokens uuid[], done boolean[])
returns table (id uuid, outcome text, detail text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_ids  uuid[] := '{}';
  v_toks uuid[] := '{}';
  v_outs text[] := '{}';
  v_part smallint;
  v_cut  timestamptz;
  v_back timestamptz;
  held   record;
  gone   record;
  these  record;
begin
  tokens := holdfast.paired(ids, tokens);
  if cardinality(done) is distinct from cardinality(ids) or array_position(done, null) is not null then
    perform holdfast.refuse('HF208', format('done must be %s booleans, one per id', cardinality(ids)));
  end if;
  select e.cut, e.back into v_cut, v_back from holdfast.expired_before(v_now) e;
  -- locked and judged in one statement; what is being settled at this moment is left alone, as by a reap
  select array_agg(j.id) as ids, array_agg(j.token) as tokens, array_agg(u.done) as done
  into held
  from (
    select distinct on (x.id, x.token) holdfast.part_of(x.id) as part, x.id, x.token, x.done,
           case when (select max(l.claimed_at) from holdfast.lease l where l.token = x.token
             and l.part = holdfast.part_of(x.id)) >= v_back
                then v_now else v_cut end as cut
    from unnest(ids, tokens, done) x(id, token, done)
    order by x.id, x.token, x.done desc
  ) u
  cross join lateral (
    select x.id, x.token
    from holdfast.job x
    where x.part = u.part and x.id = u.id and x.token = u.token and x.lease_until <= u.cut
    for update skip locked
  ) j;
  if held.ids is not null then
    perform holdfast.lock_ledger(held.tokens);
    perform holdfast.lock_counts(array_agg(h.id) filter (where h.done), array_agg(h.id) filter (where not h.done))
    from unnest(held.ids, held.done) h(id, done);
  end if;
  for v_part in select distinct holdfast.part_of(i) from unnest(held.ids) i order by 1 loop
    select array_agg(h.id) filter (where h.done) as done_ids, array_agg(h.token) filter (where h.done) as done_tokens,
           array_agg(h.id) filter (where not h.done) as open_ids,
           array_agg(h.token) filter (where not h.done) as open_tokens
    into gone
    from unnest(held.ids, held.tokens, held.done) h(id, token, done)
    where holdfast.part_of(h.id) = v_part;
    if gone.done_ids is not null then
      perform holdfast.end_done(v_part, gone.done_ids, gone.done_tokens, v_now);
      v_ids := v_ids || gone.done_ids;
      v_toks := v_toks || gone.done_tokens;
      v_outs := v_outs || array_fill('done'::text, array[cardinality(gone.done_ids)]);
    end if;
    if gone.open_ids is not null then
      select array_agg(e.id) as ids, array_agg(e.token) as tokens, array_agg(e.outcome) as outs into these
      from holdfast.expire(v_part, gone.open_ids, gone.open_tokens, v_now) e;
      v_ids := v_ids || these.ids;
      v_toks := v_toks || these.tokens;
      v_outs := v_outs || these.outs;
    end if;
  end loop;
  return query
    select s.id, s.outcome, s.detail from holdfast.settled('reconcile', ids, tokens, v_ids, v_toks, v_outs) s;
end
$$;

-- asked_kinds: kinds with a check, and with a worker that was seen within a minute and can run it.
create or replace function holdfast.asked_kinds(at timestamptz)
returns text[]
language sql stable
as $$
  select array(
    select k.name
    from holdfast.kind k
    where k.done_when and exists (
      select from holdfast.worker w where w.seen_at > asked_kinds.at - interval '1 minute' and k.name = any(w.kinds)))
$$;

-- expire: fail the attempts of jobs whose lease has expired, with an error. The caller has locked the rows.
create or replace function holdfast.expire(part smallint, ids uuid[], tokens uuid[], at timestamptz)
returns table (id uuid, token uuid, queue text, kind text, worker text, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  these record;
begin
  select array_agg(u.id) as ids, array_agg(u.token) as tokens,
         array_agg(case when l.outside then 'NoAnswer' else 'LeaseExpired' end) as kinds,
         array_agg(case when l.outside then format('no answer from %s within %s', l.worker, l.length)
                        else 'the lease expired without being renewed' end) as messages
  into these
  from unnest(expire.ids, expire.tokens) u(id, token)
  left join lateral (
    select x.outside, x.worker, x.length from holdfast.lease x where x.token = u.token and x.outside limit 1) l on true;
  return query
    select u.id, u.token, u.queue, u.kind, u.worker, u.outcome
    from holdfast.fail(part, these.ids, these.tokens, these.kinds, these.messages, null,
      array_fill(interval '0', array[cardinality(these.ids)]), null, 'expired', at, null, false) f
    cross join lateral unnest(f.failed_ids, f.failed_tokens, f.queues, f.kinds, f.workers, f.outcomes)
      u(id, token, queue, kind, worker, outcome);
end
$$;

-- end_done: end jobs of one part whose work turned out to be done, as an ack would have. The caller has
-- locked the rows.
create or replace function holdfast.end_done(part smallint, ids uuid[], tokens uuid[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  gone record;
begin
  perform holdfast.keep_done(ids, tokens, null, false, at);
  with ended as (
    delete from holdfast.job j
    using unnest(ids, tokens) u(id, token)
    where j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.token = u.token
    returning j.part, j.id, j.token, j.attempt, j.worker, j.queue, j.kind, j.lane, j.key, j.steps, j.link
  ), noted as (
    insert into holdfast.attempt (part, id, attempt, token, outcome, worker, started_at, ended_at, message)
    select e.part, e.id, e.attempt, e.token, 'reconciled', e.worker,
           (select max(l.claimed_at) from holdfast.lease l where l.token = e.token and l.part = e.part),
           end_done.at, 'its work was found to be done'
    from ended e
  ), counted as (
    insert into holdfast.tally (part, queue, kind, leased, done, reconciled)
    select e.part, e.queue, e.kind, -count(*), count(*), count(*)
    from ended e
    group by e.part, e.queue, e.kind
  ), told as (
    insert into holdfast.event (at, slot, part, job, event, state, queue, kind, attempt, worker, actor)
    select end_done.at, holdfast.event_slot(end_done.at), e.part, e.id, 'reconciled', 'done', e.queue, e.kind,
           e.attempt, e.worker, 'upkeep'
    from ended e
    left join holdfast.queue q on q.name = e.queue
    where coalesce(q.activity, (holdfast.unset_queue(null)).activity) <> 'off'
  )
  select array_agg(e.id) as ids, array_agg(e.token) as tokens,
         jsonb_agg(holdfast.place_of(e.part, e.queue, e.kind, e.key, e.lane))
           filter (where e.key is not null or e.lane is not null) as places,
         array_agg(array[e.id, e.token, e.link, case when e.steps is not null then e.id end])
           filter (where e.link is not null or e.steps is not null) as more
  into gone
  from ended e;
  if gone.ids is null then
    return;
  end if;
  perform holdfast.tell_awaited(gone.ids);
  perform holdfast.mark_taken(gone.ids, gone.tokens, 'reconciled');
  if gone.places is not null then
    perform holdfast.let_next_in(gone.places, at);
  end if;
  if gone.more is not null then
    perform holdfast.clear_done(gone.more, null, null, null, true, at);
  end if;
end
$$;
