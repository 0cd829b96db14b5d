-- Order between jobs. A follower waits, blocked and with a number of what it waits for (waits), until the jobs that its
-- links name have ended. Whoever ends one of them marks its links and counts down, in the same transaction: under
-- READ COMMITTED a count that two change at once is changed by one after the other, so one of them reaches zero, and
-- that one releases the follower. See docs/decisions for the cost.

-- order_ok: whether what an item says about order is valid; what it refers to is looked up later.
create or replace function holdfast.order_ok(item jsonb)
returns boolean
language sql stable
as $$
  select coalesce(jsonb_typeof(item -> 'after') in ('array', 'null'), true)
     and not exists (
       select
       from jsonb_array_elements(case jsonb_typeof(item -> 'after') when 'array' then item -> 'after' else '[]' end) a
       where case jsonb_typeof(a)
         when 'string' then not holdfast.is_id(a #>> '{}')
         when 'number' then not (a #>> '{}')::numeric between 1 and 1000000000 or (a #>> '{}')::numeric % 1 <> 0
         else true end)
     and coalesce(item ->> 'if_failed' in ('wait', 'cancel', 'run'), true)
     and coalesce(jsonb_typeof(item -> 'take') in ('object', 'null'), true)
     and not exists (
       select
       from jsonb_each(case jsonb_typeof(item -> 'take') when 'object' then item -> 'take' else '{}' end) t
       where case jsonb_typeof(t.value)
         when 'string' then t.value <> '"all"'
         when 'number' then not (t.value #>> '{}')::numeric between 1 and 1000000000
           or (t.value #>> '{}')::numeric % 1 <> 0
         else true end)
     and (coalesce(item ->> 'take', 'null') = 'null' or coalesce(jsonb_typeof(item -> 'payload'), 'object') = 'object')
     and (coalesce(item -> 'after', '[]') in ('[]', 'null') or coalesce(item ->> 'on_conflict', 'skip') = 'skip')
$$;

-- takes_ok: whether an item takes results only of jobs that it waits for.
create or replace function holdfast.takes_ok(item jsonb)
returns boolean
language sql stable
as $$
  select not exists (
    select
    from jsonb_each(case jsonb_typeof(item -> 'take') when 'object' then item -> 'take' else '{}' end) t
    where jsonb_array_length(case jsonb_typeof(item -> 'after') when 'array' then item -> 'after' else '[]' end)
      < case jsonb_typeof(t.value) when 'number' then (t.value #>> '{}')::numeric else 0 end)
$$;

-- refuse_order: refuse what order_ok does not accept, with the reason.
create or replace function holdfast.refuse_order(item jsonb, what text)
returns void
language plpgsql
as $$
begin
  if not coalesce(item ->> 'if_failed', 'wait') in ('wait', 'cancel', 'run') then
    perform holdfast.refuse('HF205', format('if_failed %L of %s is not wait, cancel or run', item ->> 'if_failed',
      what));
  elsif not holdfast.order_ok(jsonb_build_object('after', item -> 'after')) then
    perform holdfast.refuse('HF204', format('after %s of %s is not a list of jobs', holdfast.told(item -> 'after'),
      what), null, 'It has ids of jobs, or numbers: 1 is the first item of this call.');
  elsif not holdfast.order_ok(jsonb_build_object('take', item -> 'take')) then
    perform holdfast.refuse('HF204', format('take %s of %s cannot be understood', holdfast.told(item -> 'take'), what),
      null, 'It says for fields of the payload whose result they are: {"total": 1, "rows": "all"}.');
  elsif not holdfast.takes_ok(item) then
    perform holdfast.refuse('HF204', format('take %s of %s names more jobs than its after does', holdfast.told(
      item -> 'take'), what), null, '1 is the first job of after. "all" is the list of all results.');
  elsif not holdfast.order_ok(jsonb_build_object('take', item -> 'take', 'payload', item -> 'payload')) then
    perform holdfast.refuse('HF204', format('payload of %s must be an object, since take sets fields of it', what));
  elsif not holdfast.order_ok(jsonb_build_object('after', item -> 'after', 'on_conflict', item -> 'on_conflict')) then
    perform holdfast.refuse('HF205', format('%s has both after and on_conflict %L', what, item ->> 'on_conflict'), null,
      'A job that waits for others can only be skipped if its key is in use.');
  end if;
end
$$;

-- enqueue_linked: an enqueue of which some items wait for others. Those of other calls are locked first, before any
-- key, together with the jobs that it may change; those that wait themselves, after the keys. If an item of this call
-- turns out to be a job that exists, because of its key, or one that was to be waited for has ended, and somebody is at
-- that job, everything is undone and done again behind them.
create or replace function holdfast.enqueue_linked(
  items jsonb, repeat boolean, names text[], given bigint, largest bigint, at timestamptz, seed bigint)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ords    integer[];   -- for each link, its follower's item, …
  v_refs    integer[];   -- … the item that it waits for, or …
  v_asked   uuid[];      -- … the job of another call, and what is known of that
  v_links   uuid[];
  v_states  text[];
  v_results jsonb[];
  v_gone    boolean[];
  v_later   uuid[] := '{}';   -- jobs to be waited for that wait themselves
  v_first   uuid[] := '{}';
  v_mine    uuid[];
  v_before  integer[];
  v_rivals  constant boolean := items @? '$[*].key' or repeat;
  v_items   jsonb;
  v_flows   constant uuid[] := holdfast.workflows_of(items);
  done      record;
begin
  -- Asked once, not for each link: it looks at every item.
  v_before := case when repeat then holdfast.stored_before(items, names, at, seed) else '{}' end;
  if v_flows is not null then
    perform holdfast.open_to_items(v_flows, v_before);
  end if;
  select array_agg(w.ord), array_agg(w.ref), array_agg(w.asked) into v_ords, v_refs, v_asked
  from holdfast.refs_of(items) w
  left join unnest(v_before) b(ord) on b.ord = w.ord
  where b.ord is null;
  for turn in 1 .. 100 loop
    begin
      perform holdfast.let_pass(v_later);
      v_later := '{}';
      if v_rivals then
        lock table holdfast.job in row exclusive mode;   -- before the settings are read: see enqueue_any
        v_mine := v_first || holdfast.rivals_of(items, holdfast.ids_of(items, names, at, seed), repeat or given > 0);
        if cardinality(v_mine) > 0 then
          perform holdfast.let_pass(v_mine);
          perform holdfast.lock_loose(v_mine || holdfast.located(array_remove(v_asked, null)));
        end if;
      end if;
      if num_nonnulls(variadic v_asked) > 0 then
        select p.links, p.states, p.results, p.gone, p.later into v_links, v_states, v_results, v_gone, v_later
        from holdfast.known_parents(v_asked) p;
        if true = any(v_gone) then
          perform holdfast.refuse_gone(items, v_ords, v_asked, v_gone);
        end if;
      end if;
      v_items := holdfast.linked_items(items, v_ords, v_refs, v_states);
      select e.* into done
      from holdfast.enqueue_any(
        v_items, repeat, names, given, largest, at, seed, null, in_order => v_rivals, locked => true) e;
      v_first := v_first || array_remove(done.rivals, null);
      perform holdfast.hold_parents(v_later);
      perform holdfast.link_items(
        items, v_items, v_ords, v_refs, v_links, v_states, v_results, done.ids, done.rivals, at);
      if v_flows is not null then
        perform holdfast.join_workflows(items, v_flows, v_ords, v_refs, v_links, done.ids, done.rivals, at);
      end if;
      return query
        select a.ord, a.id, a.created, a.duplicate_of, a.behind, a.holder, a.held_since
        from holdfast.enqueue_answers(done.ids, done.rivals, done.lanes, done.limited, done.helds) a;
      return;
    exception when sqlstate 'HFAGN' then
      null;
    end;
  end loop;
  raise exception using
    errcode = 'serialization_failure',
    message = 'the keys of jobs that others wait for changed hands too often to be enqueued',
    hint = 'Repeat the transaction.';
end
$$;

-- stored_before: the items of a repeated call whose jobs were stored by an earlier one. What they waited for may be
-- gone by now.
create or replace function holdfast.stored_before(items jsonb, names text[], at timestamptz, seed bigint)
returns integer[]
language plpgsql stable
as $$
declare
  v_ids  constant uuid[] := holdfast.ids_of(items, names, at, seed);
  v_past constant uuid[] := holdfast.known_before(v_ids, items);
begin
  return array(
    select i.ord::integer
    from unnest(v_ids) with ordinality i(id, ord)
    where i.id = any(v_past)
       or exists (select from holdfast.job j where j.part = holdfast.part_of(i.id) and j.id = i.id));
end
$$;

-- refs_of: what the items of a call wait for, in order: an item before them in the call, or a job by its id.
create or replace function holdfast.refs_of(items jsonb)
returns table (ord integer, ref integer, asked uuid)
language plpgsql
as $$
#variable_conflict use_column
begin
  if items @? '$[*].id' then
    return query
      with given as materialized (
        select i.item, i.ord, (i.item ->> 'id')::uuid as id
        from jsonb_array_elements(items) with ordinality i(item, ord)
      )
      select g.ord::integer, coalesce(case when jsonb_typeof(a.value) = 'number'
               then (a.value #>> '{}')::numeric::integer end, b.ord::integer),
             case when jsonb_typeof(a.value) = 'string' and b.ord is null then (a.value #>> '{}')::uuid end
      from given g
      cross join lateral jsonb_array_elements(nullif(g.item -> 'after', 'null')) with ordinality a(value, nth)
      left join given b on b.id = case when jsonb_typeof(a.value) = 'string' then (a.value #>> '{}')::uuid end
      order by g.ord, a.nth;
  else
    return query
      select i.ord::integer, case when jsonb_typeof(a.value) = 'number' then (a.value #>> '{}')::numeric::integer end,
             case when jsonb_typeof(a.value) = 'string' then (a.value #>> '{}')::uuid end
      from jsonb_array_elements(items) with ordinality i(item, ord)
      cross join lateral jsonb_array_elements(nullif(i.item -> 'after', 'null')) with ordinality a(value, nth)
      where i.item ? 'after'
      order by i.ord, a.nth;
  end if;
end
$$;

-- known_parents: what is known of jobs that a new one is to wait for: the ids that links know them by, how they ended
-- (null: they have not), and their results; gone: those are not known any more. They are locked, so that none of them
-- ends or comes back unnoticed, except those that wait themselves (later): the caller holds them when it has its keys.
-- Parallel to ids, in which some may be null.
create or replace function holdfast.known_parents(
  ids uuid[], out links uuid[], out states text[], out results jsonb[], out gone boolean[], out later uuid[])
language plpgsql
as $$
#variable_conflict use_column
declare
  v_asked   constant uuid[] := array(select distinct x from unnest(ids) x where x is not null);
  v_found   uuid[];
  v_locked  uuid[];
  v_ended   uuid[];
  v_missing uuid;
begin
  select x into v_missing from unnest(v_asked) x join holdfast.adopted a on a.part = holdfast.part_of(x) limit 1;
  if found then
    perform holdfast.refuse('HF214', format('job %s is a row of an adopted table and cannot be waited for', v_missing),
      null, 'Other code may end it unseen. Wait for a job that its handler enqueues.');
  end if;
  for turn in 1 .. 3 loop   -- one that was just moved or retried is found on the second
    v_found := holdfast.located(v_asked);
    v_locked := holdfast.lock_loose(v_found);
    update holdfast.job j set link = j.id
    from (select holdfast.part_of(x) as part, x as id from unnest(v_locked) x order by x) u
    where j.part = any(array[u.part]) and j.id = u.id and j.link is null;
    v_ended := holdfast.lock_ended(v_found);
    update holdfast.ended e set link = e.id
    from (select holdfast.part_of(x) as part, x as id from unnest(v_found) x order by x) u
    where e.part = any(array[u.part]) and e.id = u.id and e.link is null and e.state <> 'done';
    select array_agg(k.link order by a.nth), array_agg(k.state order by a.nth), array_agg(k.result order by a.nth),
           array_agg(k.gone order by a.nth),
           coalesce(array_agg(distinct f.stored) filter (where k.live and f.stored <> all(v_locked)), '{}'),
           min(a.id::text) filter (where a.id is not null and (k.link is null
             or not k.live and k.gone is null and f.stored <> all(v_ended)))::uuid   -- it has ended just now
    into links, states, results, gone, later, v_missing
    from unnest(ids) with ordinality a(id, nth)
    left join unnest(v_asked, v_found) f(asked, stored) on f.asked = a.id
    left join lateral holdfast.known_parent(f.asked, f.stored) k on true;
    exit when v_missing is null;
  end loop;
  if v_missing is not null then
    perform holdfast.refuse('HF214', format('job %s is not known, so nothing can wait for it', v_missing),
      'It never existed, or it is done and was not kept (a job that is kept as recent does not count).',
      'Enqueue it and what follows in one call or transaction, or set keep_done of its queue.');
  end if;
end
$$;

create or replace function holdfast.known_parent(
  asked uuid, stored uuid, out link uuid, out state text, out result jsonb, out gone boolean, out live boolean)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  select coalesce(j.link, j.id) into link from holdfast.job j where j.part = holdfast.part_of(stored) and j.id = stored;
  live := found;
  if found then
    return;
  end if;
  select coalesce(e.link, e.id), e.state, e.result into link, state, result
  from holdfast.ended e
  -- Not one that is there only because it is recent: what can be waited for must not depend on how much else ran.
  where e.part = holdfast.part_of(stored) and e.id = stored and (e.state = 'done' and e.recent) is not true
  order by e.state = 'dead' desc, e.ended_at desc
  limit 1;
  if found then
    return;
  end if;
  -- a done job that was not kept, for as long as the receipt of its claim is
  select asked, 'done', true into link, state, gone
  from holdfast.lease l
  where asked = any(l.ids) and l.part = holdfast.part_of(asked) and holdfast.how_taken(l.taken, asked) is null
  limit 1;
end
$$;

-- hold_parents: lock jobs that are to be waited for and wait themselves, or did a moment ago. Behind keys: whoever ends
-- what they wait for has freed its key and then counts. Raises HFAGN if one has ended, or somebody else has it and it
-- waits no longer; and if it takes them long, since whoever comes behind them may want what the caller has.
create or replace function holdfast.hold_parents(ids uuid[])
returns void
language plpgsql
set enable_seqscan = off
set lock_timeout = '20ms'
as $$
declare
  v_id uuid;
begin
  for v_id in select x from unnest(ids) x order by x loop
    perform from holdfast.job j
    where j.part = holdfast.part_of(v_id) and j.id = v_id and j.waits is not null for update;
    perform from holdfast.job j where j.part = holdfast.part_of(v_id) and j.id = v_id for update skip locked;
    if not found then
      raise exception using errcode = 'HFAGN', message = 'somebody is at a job that is to be waited for';
    end if;
    update holdfast.job j set link = j.id
    where j.part = holdfast.part_of(v_id) and j.id = v_id and j.link is null;
  end loop;
exception when lock_not_available then
  raise exception using errcode = 'HFAGN', message = 'somebody is at a job that is to be waited for, and waits';
end
$$;

-- refuse_gone: refuse an item that takes the result of a job whose result is gone: it would get null in its place.
-- Parallel arrays, as in enqueue_linked.
create or replace function holdfast.refuse_gone(items jsonb, ords integer[], asked uuid[], gone boolean[])
returns void
language plpgsql
as $$
declare
  v_job uuid;
begin
  select l.asked into v_job
  from (
    select x.ord, x.asked, x.gone, row_number() over (partition by x.ord order by x.place) as nth
    from unnest(ords, asked, gone) with ordinality x(ord, asked, gone, place)
  ) l
  cross join lateral jsonb_each(nullif(items -> (l.ord - 1) -> 'take', 'null')) t
  where l.gone and case jsonb_typeof(t.value) when 'number' then (t.value #>> '{}')::numeric = l.nth else true end
  limit 1;
  if found then
    perform holdfast.refuse('HF214', format('job %s is done and its result was not kept, so nothing can take it',
      v_job), null, 'Enqueue it and what follows in one call or transaction, or set keep_done of its queue.');
  end if;
end
$$;

-- leaves: over how many rows a follower of this many jobs spreads their count; 0: it counts them itself. Ends that come
-- at the same time should meet at few of them, and the follower's own row should be written seldom.
create or replace function holdfast.leaves(jobs bigint)
returns integer
language sql immutable parallel safe
as $$ select case when jobs <= 6 then 0 else least(ceil(sqrt(jobs)), 32)::integer end $$;

-- linked_items: the items of a call as they are stored: what they wait for as a number, and a mark for all that have
-- links. states are those of jobs of other calls, parallel to ords and refs.
create or replace function holdfast.linked_items(items jsonb, ords integer[], refs integer[], states text[])
returns jsonb
language plpgsql
as $$
#variable_conflict use_column
declare
  v_bad record;
begin
  select r.ord, r.ref into v_bad from unnest(ords, refs) r(ord, ref) where r.ref >= r.ord limit 1;
  if found then
    perform holdfast.refuse('HF214', format('item %s waits for item %s, which is not before it', v_bad.ord, v_bad.ref),
      null, 'A number in after counts the items of the call from 1. Put the item that is waited for before this one.');
  end if;
  return (
    with links as materialized (
      select r.ord, r.ref, case
          when r.ref is not null or r.state is null then true
          when r.state = 'done' then false
          else coalesce(items -> (r.ord - 1) ->> 'if_failed', 'wait') <> 'run' end as open
      from unnest(ords, refs, states) r(ord, ref, state)
    ), followers as materialized (
      select l.ord, count(*) filter (where l.open) as open from links l group by l.ord
    ), parents as materialized (
      select distinct l.ref from links l where l.ref is not null
    )
    select jsonb_agg(case
      when f.ord is null and p.ref is null and not i.item ?| '{workflow,child_of}' then
        i.item - '{after,if_failed,take}'::text[]
      when coalesce(f.open, 0) = 0 then i.item - '{after,if_failed,workflow,child_of}'::text[] || '{"linked": true}'
      else i.item - '{after,if_failed,workflow,child_of}'::text[] || jsonb_build_object('linked', true, 'waits',
        coalesce(nullif(holdfast.leaves(f.open), 0), f.open)) end order by i.ord)
    from jsonb_array_elements(items) with ordinality i(item, ord)
    left join followers f on f.ord = i.ord
    left join parents p on p.ref = i.ord);
end
$$;

-- link_items: store the links of items that this call has just stored. An item that was there before, because the call
-- is a repeat or its key is in use, has its own.
create or replace function holdfast.link_items(
  items jsonb, stored jsonb, ords integer[], refs integer[], links uuid[], states text[], results jsonb[],
  ids uuid[], rivals uuid[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_new integer[];
  ended record;
begin
  v_new := array(
    select o.ord
    from (select distinct x as ord from unnest(ords) x) o
    where rivals[o.ord] is null
      and exists (select from holdfast.job j where j.part = holdfast.part_of(ids[o.ord]) and j.id = ids[o.ord])
      and not exists (select from holdfast.link l where l.follower = ids[o.ord])
    order by o.ord);
  if rivals is not null then
    perform holdfast.link_rival(rivals[r.ref])
    from (select distinct x.ref from unnest(ords, refs) x(ord, ref) where x.ord = any(v_new)) r
    where rivals[r.ref] is not null;
  end if;
  with found as materialized (
    select r.ord, coalesce(r.link, k.link, ids[r.ref]) as parent, r.state, r.result, r.place,
           coalesce(items -> (r.ord - 1) ->> 'if_failed', 'wait') as if_failed
    from unnest(ords, refs, links, states, results) with ordinality r(ord, ref, link, state, result, place)
    join unnest(v_new) n(ord) on n.ord = r.ord
    left join lateral (
      select j.link from holdfast.job j
      where rivals[r.ref] is not null and j.part = holdfast.part_of(rivals[r.ref]) and j.id = rivals[r.ref]
    ) k on true
  ), counted as materialized (
    select f.*, f.state is not null and (f.state = 'done' or f.if_failed = 'run') as done,
           row_number() over (partition by f.ord order by f.place) as nth,
           row_number() over (partition by f.ord, f.state is not null and (f.state = 'done' or f.if_failed = 'run')
             order by f.place) - 1 as open_nth,
           count(*) filter (where f.state is null or f.state <> 'done' and f.if_failed <> 'run')
             over (partition by f.ord) as open
    from found f
  ), placed as materialized (
    select c.*, ids[c.ord] as follower,
           case when not c.done then c.open_nth % nullif(holdfast.leaves(c.open), 0) end as leaf
    from counted c
  ), kept as (
    insert into holdfast.link (part, parent, follower, nth, leaf, if_failed, state, counted, result)
    select holdfast.part_of(p.parent), p.parent, p.follower, p.nth, p.leaf, p.if_failed, p.state, p.done, p.result
    from placed p
    order by p.ord, p.nth
  ), spread as (
    insert into holdfast.countdown (part, follower, leaf, jobs)
    select holdfast.part_of(p.follower), p.follower, p.leaf, count(*)
    from placed p
    where p.leaf is not null
    group by p.follower, p.leaf
  )
  select array_agg(p.follower) as stopped, array_agg(p.parent) as stoppers,
         array_agg(holdfast.failed_text(p.parent, p.state)) as reasons
  into ended
  from placed p
  where p.state is not null and not p.done and p.if_failed = 'cancel';
  -- Only these: others that have waited for the same jobs may have been brought back by hand.
  if ended.stopped is not null then
    perform holdfast.settle_links(c.links, array_fill('cancelled'::text, array[cardinality(c.links)]), null, at)
    from (select holdfast.cancel_followers(ended.stopped, ended.stoppers, ended.reasons, at) as links) c
    where c.links is not null;
  end if;
end
$$;

-- failed_text: why a follower is cancelled.
create or replace function holdfast.failed_text(parent uuid, state text)
returns text
language sql stable
as $$
  select format('job %s, which it waited for, %s', parent, case state when 'dead' then 'died' else 'was ' || state end)
$$;

-- link_rival: an item that others of its call wait for is a job that exists. It gets a link, unless somebody is at it
-- or it has just ended: then the call begins anew (HFAGN).
create or replace function holdfast.link_rival(id uuid)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  perform from holdfast.job j where j.part = holdfast.part_of(link_rival.id) and j.id = link_rival.id
  for update skip locked;
  if not found then
    raise exception using errcode = 'HFAGN', message = 'somebody is at a job that is to be waited for';
  end if;
  update holdfast.job j set link = j.id
  where j.part = holdfast.part_of(link_rival.id) and j.id = link_rival.id and j.link is null;
end
$$;

-- end_links: jobs that have links have ended otherwise than done.
create or replace function holdfast.end_links(links uuid[], state text, at timestamptz)
returns void
language plpgsql
as $$
begin
  if cardinality(links) > 0 then
    perform holdfast.settle_links(links, array_fill(state, array[cardinality(links)]), null, at);
    if state = 'deleted' then
      perform holdfast.drop_links(links);
    end if;
  end if;
end
$$;

-- clear_done: jobs are done that have links or steps: [id, token, link, id again if it has steps] of each. Their links
-- are settled, and the steps forgotten. ids, tokens and results are those of the call, parallel. kept: some of them may
-- be in the history, where they keep what they took.
create or replace function holdfast.clear_done(
  more uuid[], ids uuid[], tokens uuid[], results jsonb, kept boolean, at timestamptz)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off set enable_hashjoin = on set enable_nestloop = off
as $$
#variable_conflict use_column
declare
  these record;
begin
  select array_agg(x.link) filter (where x.link is not null) as links,
         array_agg(nullif(clear_done.results -> r.nth, 'null')) filter (where x.link is not null) as results,
         array_agg(x.id) filter (where x.link is not null) as ids,
         array_agg(x.token) filter (where x.link is not null) as tokens,
         array_agg(x.stepped) filter (where x.stepped is not null) as stepped
  into these
  from (select more[n][1] as id, more[n][2] as token, more[n][3] as link, more[n][4] as stepped
    from generate_subscripts(more, 1) n) x
  left join (
    -- one that is named twice has its first result
    select u.id, u.token, min(u.nth)::integer - 1 as nth
    from unnest(ids, tokens) with ordinality u(id, token, nth)
    where clear_done.results is not null
    group by u.id, u.token
  ) r on r.id = x.id and r.token = x.token;
  if these.links is not null then
    perform holdfast.settle_links(these.links, array_fill('done'::text, array[cardinality(these.links)]), these.results,
      at, these.tokens);
    perform holdfast.drop_links(case when coalesce(kept, false) then holdfast.not_kept(these.links, these.ids)
      else these.links end);
  end if;
  if these.stepped is not null then
    perform holdfast.forget_steps(these.stepped);
  end if;
end
$$;

-- not_kept: the links of those of these jobs that are not in the history.
create or replace function holdfast.not_kept(links uuid[], ids uuid[])
returns uuid[]
language plpgsql stable
set enable_seqscan = off set enable_nestloop = on
as $$
begin
  return array(
    select u.link from unnest(links, ids) u(link, id)
    where not exists (select from holdfast.ended e where e.part = holdfast.part_of(u.id) and e.id = u.id));
end
$$;

-- drop_links: forget what jobs that are gone have waited for. What they still wait for is left to those who end it; and
-- what somebody has who waited for it to be counted, to upkeep (forget_links).
create or replace function holdfast.drop_links(followers uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
begin
  delete from holdfast.link l using (
    select x.ctid as place
    from unnest(followers) u(id)
    join holdfast.link x on x.follower = u.id and x.counted
    where not exists (select from holdfast.member m where m.part = holdfast.part_of(u.id) and m.id = u.id)
    for update of x skip locked
  ) o
  where l.ctid = o.place;
  delete from holdfast.countdown c using (
    select x.ctid as place
    from unnest(followers) u(id)
    join holdfast.countdown x on x.part = any(array[holdfast.part_of(u.id)]) and x.follower = u.id and x.jobs = 0
    for update of x skip locked
  ) o
  where c.ctid = o.place;
end
$$;

-- settle_links: jobs have ended. Their followers count them, and are released when nothing is left, or are cancelled if
-- they ask for that; which is the end of those, and so on. parents are known by their links; parallel arrays.
create or replace function holdfast.settle_links(
  parents uuid[], states text[], results jsonb[], at timestamptz, tokens uuid[] default null)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  ended record;
begin
  -- Whoever is cancelled because of them is counted by its own followers: in another step, but locked in one order.
  if tokens is null then   -- otherwise all are done
    perform holdfast.lock_cancelled(parents, states);
  end if;
  loop
    perform holdfast.end_members(parents, states, tokens, at);
    if tokens is null then
      perform holdfast.note_orphans(parents, states);
    end if;
    with marked as (
      update holdfast.link l
      set state = u.state, result = u.result, counted = u.state = 'done' or l.if_failed = 'run',
          -- nothing comes back with a job that cannot, even if that was itself cancelled because of one that does
          stopped = l.stopped and u.state <> 'deleted'
      from (
        select holdfast.part_of(x.parent) as part, x.parent, x.state, x.result
        from unnest(parents, states, results) x(parent, state, result)
        order by x.parent
      ) u
      where l.part = any(array[u.part]) and l.parent = u.parent and not l.counted
      returning l.follower, l.leaf, l.counted, l.if_failed, l.parent, l.state
    )
    select array_agg(m.follower) filter (where m.counted) as followers,
           array_agg(m.leaf) filter (where m.counted) as leaves,
           array_agg(m.follower) filter (where not m.counted and m.if_failed = 'cancel') as stopped,
           array_agg(m.parent) filter (where not m.counted and m.if_failed = 'cancel') as stoppers,
           array_agg(holdfast.failed_text(m.parent, m.state)) filter (where not m.counted and m.if_failed = 'cancel')
             as reasons
    into ended
    from marked m;
    if ended.followers is not null then
      perform holdfast.count_down(ended.followers, ended.leaves, at);
    end if;
    exit when ended.stopped is null;
    parents := holdfast.cancel_followers(ended.stopped, ended.stoppers, ended.reasons, at);
    exit when parents is null;
    states := array_fill('cancelled'::text, array[cardinality(parents)]);
    results := null;
    tokens := null;
  end loop;
end
$$;

-- count_down: one that they waited for has ended, for each of these followers, which may be named several times.
-- Counters are locked in order, the follower itself after them.
create or replace function holdfast.count_down(followers uuid[], leaves smallint[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  these record;
begin
  with asked as materialized (
    select u.follower, u.leaf, count(*)::integer as jobs
    from unnest(followers, leaves) u(follower, leaf)
    group by u.follower, u.leaf
  ), lower as (
    update holdfast.countdown c
    set jobs = c.jobs - a.jobs
    from (
      select holdfast.part_of(x.follower) as part, x.follower, x.leaf, x.jobs
      from asked x
      where x.leaf is not null
      order by x.follower, x.leaf
    ) a
    where c.part = any(array[a.part]) and c.follower = a.follower and c.leaf = a.leaf
    returning c.follower, c.jobs
  ), units as (
    select a.follower, a.jobs from asked a where a.leaf is null
    union all
    select l.follower, 1 from lower l where l.jobs = 0
  )
  select array_agg(f.follower order by f.follower) as followers, array_agg(f.units order by f.follower) as units
  into these
  from (select u.follower, sum(u.jobs)::integer as units from units u group by u.follower) f;
  if these.followers is not null then
    perform holdfast.let_followers_in(these.followers, these.units, at);
  end if;
end
$$;

-- lock_counts: lock what the ends of these jobs may count down, for a call that ends them in several steps, or ends
-- jobs that wait for others: in the order in which one step would. done: followers count them. failed: followers
-- may also be cancelled because of them, which ends those. gone: links of jobs that have ended and are to be deleted.
create or replace function holdfast.lock_counts(
  done uuid[], failed uuid[], gone uuid[] default '{}')
returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_failed constant uuid[] := holdfast.links_of(failed) || gone;
  v_done   constant uuid[] := holdfast.links_of(done);
begin
  perform holdfast.lock_reached(v_failed, v_done) where cardinality(v_failed) + cardinality(v_done) > 0;
end
$$;

-- lock_cancelled: the same for jobs that are ending in these states, by their links, if others are cancelled because of
-- them. Parallel arrays.
create or replace function holdfast.lock_cancelled(links uuid[], states text[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_nestloop = on
as $$
#variable_conflict use_column
begin
  if exists (
    select from unnest(links, states) u(link, state)
    join holdfast.link l on l.part = any(array[holdfast.part_of(u.link)]) and l.parent = u.link
    where u.state <> 'done' and l.if_failed = 'cancel' and not l.counted) then
    perform holdfast.lock_reached(
      array(select u.link from unnest(links, states) u(link, state) where u.state <> 'done'),
      array(select u.link from unnest(links, states) u(link, state) where u.state = 'done'));
  end if;
end
$$;

-- links_of: the links of those of these live jobs that have one.
create or replace function holdfast.links_of(ids uuid[])
returns uuid[]
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  return array(
    select j.link
    from unnest(ids) u(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.link is not null);
end
$$;

-- lock_reached: lock links, then counters, then jobs that wait, the links by parent and the others in the order of
-- followers: what the ends of these links count (done), what the failed ends of these count and cancel, what the ends
-- of those do, and so on.
create or replace function holdfast.lock_reached(failed uuid[], done uuid[])
returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_reached   uuid[];
  v_followers uuid[];
  followers   uuid[];
  leaves      smallint[];
begin
  v_reached := array(
    with recursive reached as (
      select x.link from unnest(failed) x(link)
      union
      select l.follower
      from reached r
      join holdfast.link l on l.part = any(array[holdfast.part_of(r.link)]) and l.parent = r.link and not l.counted
      where l.if_failed = 'cancel'
    )
    select r.link from reached r);
  -- Whoever brings jobs back has locked links, and then waits for what is locked here.
  with locked as materialized (
    select l.follower, l.leaf
    from (select distinct x.link from unnest(v_reached || done) x(link) order by x.link) u
    cross join lateral (
      select x.follower, x.leaf from holdfast.link x
      where x.part = holdfast.part_of(u.link) and x.parent = u.link and not x.counted
      order by x.follower, x.nth for update) l
  )
  select array_agg(c.follower), array_agg(c.leaf) into followers, leaves
  from (select distinct l.follower, l.leaf from locked l) c;
  perform from (
    select u.follower, u.leaf from unnest(followers, leaves) u(follower, leaf) where u.leaf is not null
    order by u.follower, u.leaf
  ) a
  cross join lateral (
    select from holdfast.countdown c
    where c.part = holdfast.part_of(a.follower) and c.follower = a.follower and c.leaf = a.leaf for update) c;
  v_followers := array(
    select distinct x from unnest(followers) x where x is not null and x <> all(coalesce(failed, '{}')));
  -- Those that were moved come last, as when they are let in.
  v_followers := array(
    select f.stored
    from unnest(v_followers, holdfast.located(v_followers)) f(link, stored)
    order by f.stored <> f.link, f.stored);
  lock table holdfast.job in row exclusive mode;
  -- One whose link is locked waits until the caller has counted, so somebody who is at it goes on.
  perform from unnest(v_followers) u(id)
  cross join lateral (
    select from holdfast.job j
    where j.part = holdfast.part_of(u.id) and j.id = u.id and j.waits is not null for update) j;
end
$$;

-- lock_ends: the same for expired jobs, [part, id, …] each, of which the first ones are about to be taken back. Those
-- that are dead then count down in the order in which an ack does, whatever parts they are in. ends: there are some,
-- and the caller ends no others in this transaction. It waits for nobody, because claims and all of upkeep would: a job
-- is left out of jobs, and has its turn later, if somebody is at what it counts.
create or replace function holdfast.lock_ends(inout jobs jsonb, most integer, out ends boolean)
language plpgsql
set enable_seqscan = off
set lock_timeout = '10ms'
as $$
declare
  v_ends  constant uuid[] := array(
    select j.id
    from jsonb_array_elements(jobs) with ordinality x(e, nth)
    join holdfast.job j on j.part = any(array[(x.e ->> 0)::smallint]) and j.id = (x.e ->> 1)::uuid
    where x.nth <= most and j.link is not null and j.attempt >= j.max_attempts);
  v_stuck uuid[] := '{}';
  v_one   uuid;
begin
  ends := cardinality(v_ends) > 0;
  if not ends then
    return;
  end if;
  begin
    perform holdfast.lock_counts('{}', v_ends);
    return;
  exception when lock_not_available then
    null;   -- one by one, so that one of them holds up no other
  end;
  foreach v_one in array v_ends loop
    if cardinality(v_stuck) < 5 then
      begin
        perform holdfast.lock_counts('{}', array[v_one]);
        continue;
      exception when lock_not_available then
        null;
      end;
    end if;
    v_stuck := v_stuck || v_one;
  end loop;
  ends := cardinality(v_stuck) < cardinality(v_ends);
  jobs := (select jsonb_agg(e) from jsonb_array_elements(jobs) e where (e ->> 1)::uuid <> all(v_stuck));
end
$$;

-- let_followers_in: followers have this much less to wait for; those with nothing left take their places. One that was
-- moved meanwhile is looked for once more. One that has ended counts anew if it comes back: whoever brings it back has
-- waited for the links that the caller has marked, or the caller for theirs.
create or replace function holdfast.let_followers_in(followers uuid[], units integer[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ids uuid[] := followers;
  these record;
begin
  for turn in 1 .. 3 loop
    with counted as (
      update holdfast.job j
      set waits = nullif(j.waits - u.units, 0)::smallint,
          blocked = j.waits > u.units or j.follow,
          run_at = case when j.waits > u.units then j.run_at else greatest(j.run_at, let_followers_in.at) end,
          lane_seq = case when j.waits <= u.units and not j.follow and j.lane is not null
            and j.run_at <= let_followers_in.at then nextval('holdfast.pos') end,
          pos = case when j.waits <= u.units and not j.follow and j.run_at <= let_followers_in.at
            then nextval('holdfast.pos') end
      from (
        select holdfast.part_of(x.id) as part, x.id, x.follower, x.units
        from unnest(v_ids, followers, units) x(id, follower, units)
        order by x.id
      ) u
      where j.part = any(array[u.part]) and j.id = u.id and j.waits is not null
      returning u.follower, j.queue, j.pos is not null as ready
    )
    select array_agg(c.follower) as found, array_agg(distinct c.queue) filter (where c.ready) as queues,
           count(*) filter (where c.ready) as ready
    into these
    from counted c;
    if these.ready > 0 then
      perform holdfast.wake(these.queues, these.ready::integer);
    end if;
    exit when cardinality(these.found) = cardinality(followers);
    select array_agg(x.follower), array_agg(x.units) into followers, units
    from unnest(followers, units) x(follower, units)
    where x.follower <> all(coalesce(these.found, '{}'));
    v_ids := holdfast.located(followers);
  end loop;
end
$$;

-- cancel_followers: cancel followers with all that is cancelled because of them. Returns their links, or null.
create or replace function holdfast.cancel_followers(
  followers uuid[], parents uuid[], reasons text[], at timestamptz)
returns uuid[]
language sql
as $$
  select holdfast.stop_followers(w.followers, w.parents, w.reasons, at)
  from holdfast.stopped_with(followers, parents, reasons) w
$$;

-- stopped_with: followers that are about to be cancelled, and those that are cancelled with them, however far behind,
-- so that all can be cancelled at once. Each has those because of which it is cancelled first, since it comes back
-- with them alone. Parallel arrays, as of stop_followers.
create or replace function holdfast.stopped_with(
  inout followers uuid[], inout parents uuid[], inout reasons text[])
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_nestloop = on
as $$
declare
  v_seen uuid[] := followers;
  v_next uuid[] := followers;
  v_by   uuid[];
begin
  loop
    select array_agg(l.follower), array_agg(l.parent) into v_next, v_by
    from (select distinct x.id from unnest(v_next) x(id)) u
    join holdfast.link l on l.part = any(array[holdfast.part_of(u.id)]) and l.parent = u.id
    -- one that has ended before has had its followers cancelled, and they may have been brought back
    where l.if_failed = 'cancel' and not l.counted and l.state is null and l.follower <> all(v_seen);
    exit when v_next is null;
    v_seen := v_seen || v_next;
    followers := followers || v_next;
    parents := parents || v_by;
  end loop;
  reasons := reasons || array(
    select format('job %s, which it waited for, was cancelled', p.parent)
    from unnest(parents[cardinality(reasons) + 1 :]) with ordinality p(parent, nth)
    order by p.nth);
end
$$;

-- stop_followers: cancel followers, if they still wait. They come back with those because of which they are cancelled:
-- parents, parallel. Returns their links, or null.
create or replace function holdfast.stop_followers(
  followers uuid[], parents uuid[], reasons text[], at timestamptz)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_stored constant uuid[] := holdfast.located(followers);
  v_links  uuid[];
  these    record;
begin
  perform holdfast.lock_jobs(v_stored);
  for these in
    select holdfast.part_of(x.id) as part, array_agg(x.id) as ids, array_agg(x.reason) as reasons
    from (
      select distinct on (j.id) j.id, u.reason
      from unnest(v_stored, reasons) u(id, reason)
      cross join lateral (
        select y.id from holdfast.job y
        where y.part = holdfast.part_of(u.id) and y.id = u.id and y.waits is not null) j
      order by j.id, u.reason
    ) x
    group by 1
    order by 1
  loop
    v_links := v_links || array(
      select c.link
      from holdfast.end_cancelled(these.part, these.ids, array_fill(null::uuid, array[cardinality(these.ids)]),
        these.reasons, 'cancelled', at, null, alone => true) c);
  end loop;
  update holdfast.link l
  set stopped = true
  from unnest(followers, parents) u(follower, parent)
  where l.part = any(array[holdfast.part_of(u.parent)]) and l.parent = u.parent and l.follower = u.follower
    and u.follower = any(v_links) and l.state is distinct from 'deleted';
  return v_links;
end
$$;

-- keep_waiting: jobs that were just stored still wait for others.
create or replace function holdfast.keep_waiting(ids uuid[], waits integer[])
returns void
language sql
as $$
  update holdfast.job j
  set waits = u.waits, blocked = true, pos = null, lane_seq = null
  from unnest(ids, keep_waiting.waits) u(id, waits)
  where j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id
$$;

-- back_to_links: jobs that have links were retried, with those that were cancelled because of them; links has the id
-- and the link of each. They wait again for what they waited for, and are waited for again.
create or replace function holdfast.back_to_links(links uuid[], reason text, as_before boolean)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_links constant uuid[] := array(select links[n][2] from generate_subscripts(links, 1) n);
begin
  perform holdfast.lock_links(v_links);
  perform holdfast.back_to_workflows(v_links, reason, as_before);
  perform holdfast.keep_waiting(array_agg(w.id), array_agg(w.units))
  from (
    select links[n][1] as id, (
      select count(*) from holdfast.link l where l.follower = links[n][2] and not l.counted and l.leaf is null
    )::integer + (
      select count(*) from holdfast.countdown c
      where c.part = holdfast.part_of(links[n][2]) and c.follower = links[n][2] and c.jobs > 0)::integer as units
    from generate_subscripts(links, 1) n
  ) w
  where w.units > 0;
  update holdfast.link l set stopped = false   -- whoever cancels it from now on means it
  from unnest(v_links) u(link)
  where l.follower = u.link and l.stopped;
  update holdfast.link l
  set state = null, result = null, stopped = false
  from (select holdfast.part_of(x) as part, x as link from unnest(v_links) x order by x) u
  where l.part = any(array[u.part]) and l.parent = u.link and not l.counted;
end
$$;

-- come_back: these links of jobs that are retried, and those of the jobs that were cancelled because of them and come
-- back with them. without: links of jobs that cannot.
create or replace function holdfast.come_back(links uuid[], without uuid[] default '{}')
returns uuid[]
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  return array(
    with recursive back as (
      select x.link from unnest(links) x(link)
      union
      select l.follower
      from back b
      join holdfast.link l on l.part = any(array[holdfast.part_of(b.link)]) and l.parent = b.link and not l.counted
      where l.stopped and l.follower <> all(without)
    )
    select b.link from back b);
end
$$;

-- cancelled_with: the jobs that were cancelled because of these, which have ended, and come back with them.
create or replace function holdfast.cancelled_with(ids uuid[])
returns uuid[]
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_links constant uuid[] := array(
    select e.link
    from unnest(ids) u(id)
    join holdfast.ended e on e.part = any(array[holdfast.part_of(u.id)]) and e.id = u.id and e.link is not null);
begin
  if cardinality(v_links) = 0 then
    return '{}';
  end if;
  return array(
    select x from unnest(holdfast.located(array(
      select c from unnest(holdfast.come_back(v_links)) c except select y from unnest(v_links) y))) x
    except select z from unnest(ids) z);
end
$$;

-- with_cause: which of others may come back with the jobs that did (done, and the ids and links of those that have
-- some): those that were cancelled because of one that is back. Of those that are not, their keys are in use.
create or replace function holdfast.with_cause(others uuid[], done uuid[], links uuid[])
returns uuid[]
language plpgsql stable
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_late  uuid[];   -- links of others that are not back
  v_asked uuid[];
  v_back  uuid[];
begin
  v_late := array(
    select e.link
    from (select x from unnest(others) x except select y from unnest(done) y) u(id)
    join holdfast.ended e on e.part = any(array[holdfast.part_of(u.id)]) and e.id = u.id and e.link is not null);
  v_asked := array(
    select links[n][2] from generate_subscripts(links, 1) n
    where (links[n][2] in (select holdfast.link_of(x) from unnest(others) x)) is not true);
  v_back := holdfast.come_back(v_asked, v_late);
  return array(
    select x from unnest(others) x
    where (holdfast.link_of(x) in (select y from unnest(v_back || v_late) y)) is true);
end
$$;

-- lock_to_revive: lock ended jobs that are to come back (asked), and those that come back with them (others), after
-- their workflows; closed: how those were that it has opened again, which is written before any key is taken, as by who
-- adds to them. keyed: what is cancelled because of others may find its key in use, or the key of those.
create or replace function holdfast.lock_to_revive(
  ids uuid[], reason text, as_before boolean, out asked uuid[], out others uuid[], out closed jsonb, out keyed boolean)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_all  uuid[];
  v_more uuid[];
begin
  others := holdfast.cancelled_with(ids);
  closed := holdfast.open_workflows_of(ids || others, reason, as_before);
  v_all := holdfast.lock_ended(ids || others);
  -- What was cancelled because of them while they were waited for. Now nothing can be.
  v_more := array(select x from unnest(holdfast.cancelled_with(ids)) x except select y from unnest(others) y);
  if cardinality(v_more) > 0 then
    others := others || v_more;
    v_all := v_all || holdfast.lock_ended(v_more);
  end if;
  if cardinality(others) = 0 then
    asked := v_all;
    keyed := false;
    return;
  end if;
  asked := array(select x from unnest(v_all) x except select y from unnest(others) y);
  others := array(select x from unnest(others) x intersect select y from unnest(v_all) y);
  keyed := exists (
    select from unnest(v_all) u(id)
    join holdfast.ended e on e.part = any(array[holdfast.part_of(u.id)]) and e.id = u.id and e.key is not null);
end
$$;

-- lock_links: lock the rows of order that change when the jobs of these links come back, and those by which they count
-- what they still wait for, in the order in which those who end jobs change them. So who brings jobs back takes turns
-- with whoever ends what they wait for, or brings back others that have to do with them.
create or replace function holdfast.lock_links(links uuid[])
returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_back constant uuid[] := holdfast.come_back(links);
begin
  perform from (
    select l.part, l.parent, l.follower, l.nth
    from unnest(v_back) u(link)
    join holdfast.link l on l.part = any(array[holdfast.part_of(u.link)]) and l.parent = u.link and not l.counted
    union
    select l.part, l.parent, l.follower, l.nth
    from unnest(v_back) u(link)
    join holdfast.link l on l.follower = u.link and (l.stopped or not l.counted)
    order by 2, 3, 4
  ) a
  cross join lateral (
    select from holdfast.link l
    where l.part = a.part and l.parent = a.parent and l.follower = a.follower and l.nth = a.nth for update) l;
end
$$;

-- payload_of: the payload that a worker gets: with the results that it takes. Written so that it becomes a part of the
-- statement that calls it, and costs nothing where nothing is taken.
create or replace function holdfast.payload_of(payload jsonb, takes jsonb, link uuid)
returns jsonb
language sql stable
as $$ select case when takes is null then payload else holdfast.payload_with(payload, takes, link) end $$;

-- payload_with: a payload with results: of the one it waited for with this number, or all of them as a list. If they
-- are longer than 64 MB together, each field says so instead: an error here would stop every claim of the queue.
create or replace function holdfast.payload_with(payload jsonb, takes jsonb, link uuid)
returns jsonb
language plpgsql stable
as $$
declare
  c_most constant bigint := 64 * 1024 * 1024;
  v_size bigint;
begin
  select sum(case
    when t.value = '"all"' then (
      select sum(octet_length(l.result::text)) from holdfast.link l where l.follower = payload_with.link)
    else (
      select octet_length(l.result::text) from holdfast.link l
      where l.follower = payload_with.link and l.nth = (t.value #>> '{}')::numeric::integer)
  end) into v_size
  from jsonb_each(takes) t;
  if v_size > c_most then
    return payload || (
      select jsonb_object_agg(t.key, jsonb_build_object('too_large', v_size, 'limit', c_most))
      from jsonb_each(takes) t);
  end if;
  return payload || coalesce((
    select jsonb_object_agg(t.key, coalesce(case
      when t.value = '"all"' then (
        select jsonb_agg(l.result order by l.nth) from holdfast.link l where l.follower = payload_with.link)
      else (
        select l.result from holdfast.link l
        where l.follower = payload_with.link and l.nth = (t.value #>> '{}')::numeric::integer)
    end, case when t.value = '"all"' then '[]' else 'null' end::jsonb))
    from jsonb_each(takes) t), '{}');
end
$$;

-- waited_for: what a job waits for, or has waited for, in the order of its after. waiting: it still does.
create or replace function holdfast.waited_for(id uuid)
returns table (nth integer, job uuid, state text, waiting boolean, if_failed text, result jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select l.nth, coalesce(holdfast.locate(l.parent), l.parent), coalesce(l.state, (
           select j.state from holdfast.get(l.parent) j), 'done'), not l.counted, l.if_failed, l.result
  from holdfast.link l
  where l.follower = holdfast.link_of(waited_for.id)
  order by l.nth
$$;

-- followers: the jobs that wait, or have waited, for a job.
create or replace function holdfast.followers(id uuid)
returns table (job uuid, state text, waiting boolean, if_failed text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select coalesce(holdfast.locate(l.follower), l.follower), (select j.state from holdfast.get(l.follower) j),
         not l.counted, l.if_failed
  from (select holdfast.link_of(followers.id) as link) o
  join holdfast.link l on l.part = holdfast.part_of(o.link) and l.parent = o.link
  order by l.follower
$$;

-- link_of: the id by which links know a job.
create or replace function holdfast.link_of(id uuid)
returns uuid
language sql stable
as $$
  select coalesce(
    (select j.link from holdfast.job j where j.part = holdfast.part_of(s.id) and j.id = s.id),
    (select e.link from holdfast.ended e where e.part = holdfast.part_of(s.id) and e.id = s.id and e.link is not null
     limit 1), link_of.id)
  from (select coalesce(holdfast.locate(link_of.id), link_of.id) as id) s
$$;

-- explain_links: for a job that waits for others.
create or replace function holdfast.explain_links(j holdfast.job)
returns text
language plpgsql stable
as $$
#variable_conflict use_column
declare
  these record;
begin
  if j.waits is null then
    return null;
  end if;
  select count(*) as jobs, count(*) filter (where not l.counted) as open,
         count(*) filter (where not l.counted and l.state is not null) as failed
  into these
  from holdfast.link l
  where l.follower = j.link;
  return format('Waits for %s of %s: %s%s.%s', these.open, holdfast.jobs_text(these.jobs), (
    select string_agg(format('%s (%s)', s.job, s.state), ', ' order by s.failed desc, s.nth)
    from (
      select coalesce(holdfast.locate(l.parent), l.parent) as job, l.nth, l.state is not null as failed,
             coalesce(l.state, (select g.state from holdfast.get(l.parent) g), 'unknown') as state
      from holdfast.link l
      where l.follower = j.link and not l.counted
      order by l.state is null, l.nth
      limit 3
    ) s), case when these.open > 3 then format(' and %s more', these.open - 3) else '' end,
    case when these.failed > 0 then ' Retry what failed, or cancel this job.' else '' end);
end
$$;

-- forget_links: delete links of followers that no longer exist; some followers per call, the next call goes on there.
create or replace function holdfast.forget_links(most integer default 200)
returns bigint
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_from uuid;
  v_to   uuid;
  v_seen integer := 0;
  v_gone bigint := 0;
  v_one  bigint;
begin
  select c.cursor[1]::uuid into v_from from holdfast.chore c where c.name = 'links' for update skip locked;
  if not found then
    return 0;
  end if;
  loop
    exit when v_seen >= most;
    select l.follower into v_to from holdfast.link l
    where l.follower > coalesce(v_from, '00000000-0000-0000-0000-000000000000')
    order by l.follower limit 1;
    exit when v_to is null;
    v_from := v_to;
    v_seen := v_seen + 1;
    continue when holdfast.locate(v_to) is not null
      or exists (select from holdfast.member m where m.part = holdfast.part_of(v_to) and m.id = v_to);
    delete from holdfast.link l where l.follower = v_to and (l.counted or holdfast.locate(l.parent) is null);
    get diagnostics v_one = row_count;
    v_gone := v_gone + v_one;
    delete from holdfast.countdown c where c.part = holdfast.part_of(v_to) and c.follower = v_to;
  end loop;
  update holdfast.chore c set cursor = case when v_to is null then '{}' else array[v_to::text] end
  where c.name = 'links';
  return v_gone;
end
$$;
