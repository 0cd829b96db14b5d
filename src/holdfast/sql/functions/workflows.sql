-- Workflows: jobs that belong together, under a name. Who adds a job to a workflow or brings one back holds its lock
-- shared; who cancels it, or finds that it has ended, holds it alone. What a workflow's state is, is asked of its jobs:
-- nothing is counted while it runs, so those who end its jobs do not wait for each other.

-- workflow_start: start a workflow, with jobs. If a live workflow of this name has the key, nothing is stored, and the
-- one row has its id. Otherwise there is a row for each job, or one without a job. deadline: what is not done by then
-- is cancelled. child_of: a job that the workflow goes with. repeat: it may have been sent before, with this id. Then
-- all of it was stored, so nothing is, whatever has become of the workflow and its jobs since.
create or replace function holdfast.workflow_start(
  name text, items jsonb default '[]', key text default null, deadline interval default null,
  child_of uuid default null, id uuid default null, repeat boolean default false, actor text default null)
returns table (
  workflow uuid, started boolean, ord integer, job uuid, created boolean, duplicate_of uuid, behind uuid, holder text,
  held_since timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_id    constant uuid := coalesce(workflow_start.id,
    holdfast.id_of(null, 0::smallint, holdfast.id_head(0::smallint, v_now), holdfast.id_seed()));
  v_other uuid;
begin
  perform holdfast.named('name of the workflow', workflow_start.name);
  if not holdfast.is_key(to_jsonb(workflow_start.key)) then
    perform holdfast.refuse('HF202', format('key of workflow %L is %s characters and %s bytes long',
      workflow_start.name, length(workflow_start.key), octet_length(workflow_start.key)), null,
      'It may have 1 to 500 characters and at most 1000 bytes; pass a hash of longer values.');
  end if;
  perform holdfast.check_length('deadline', deadline, '100 years');
  if jsonb_typeof(items) is distinct from 'array' then
    perform holdfast.refuse('HF201', 'items must be a JSON array of objects',
      format('got %s', coalesce(holdfast.told(items), 'null')));
  end if;
  if exists (select from holdfast.workflow w where w.id = v_id) then
    v_other := v_id;
  else
    v_other := holdfast.open_workflow(v_id, workflow_start.name, workflow_start.key, v_now + deadline, child_of, actor,
      v_now);
  end if;
  if v_other = v_id then
    perform holdfast.confirm_workflow(v_id, workflow_start.name, workflow_start.key, repeat);
    return query
      select v_id, true, b.ord, b.job, coalesce(b.created, false), null::uuid, null::uuid, null::text, null::timestamptz
      from (select) one
      left join holdfast.started_before(v_id, items) b on true
      order by b.ord;
    return;
  elsif v_other is not null then
    return query select v_other, false, null::integer, null::uuid, false, null::uuid, null::uuid, null::text,
      null::timestamptz;
    return;
  end if;
  if jsonb_array_length(items) = 0 then
    return query select v_id, true, null::integer, null::uuid, false, null::uuid, null::uuid, null::text,
      null::timestamptz;
    return;
  end if;
  return query
    select v_id, true, e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
    from holdfast.enqueue((
      select jsonb_agg(case when jsonb_typeof(i.item) = 'object'
        then i.item || jsonb_build_object('workflow', v_id) else i.item end order by i.ord)
      from jsonb_array_elements(items) with ordinality i(item, ord)), repeat) e
    order by e.ord;
end
$$;

-- confirm_workflow: a call may have been sent before: it has, if its workflow has this name and key; otherwise it is
-- refused. It writes, as every repeat: a mere look would be confirmed by a primary that has lost its standby.
create or replace function holdfast.confirm_workflow(id uuid, name text, key text, repeat boolean)
returns void
language plpgsql
as $$
begin
  if repeat then
    perform holdfast.lock_workflow(id, alone => false);   -- before its row, as everybody who writes that
    update holdfast.workflow w set name = w.name
    where w.id = confirm_workflow.id and w.name = confirm_workflow.name
      and w.key is not distinct from confirm_workflow.key;
    if found then
      return;
    end if;
  end if;
  perform holdfast.refuse('HF206', format('%s with the id %s exists', case when repeat
    then 'another workflow' else 'a workflow' end, id), null,
    case when not repeat then 'Pass repeat => true if this call was sent before.' end);
end
$$;

-- started_before: what the call that started a workflow has stored for these items. They are known by their ids,
-- whatever part those were stored in; an item without one by its place. created: false for one that was skipped.
create or replace function holdfast.started_before(flow uuid, items jsonb)
returns table (ord integer, job uuid, created boolean)
language sql stable
set enable_seqscan = off
as $$
  with given as materialized (
    select i.ord, i.item ->> 'kind' as kind, case when holdfast.is_id(i.item ->> 'id')
      then (i.item ->> 'id')::uuid end as id
    from jsonb_array_elements(items) with ordinality i(item, ord)
  ), stored as materialized (
    select m.id, m.kind, row_number() over (order by m.nth) as nth, holdfast.stamp(m.id, 0::smallint) as number
    from holdfast.member m
    where m.workflow = flow
  )
  select g.ord::integer, coalesce(s.id, p.id, g.id), coalesce(s.id, p.id) is not null
  from given g
  left join stored s on s.number = holdfast.stamp(g.id, 0::smallint)
  left join stored p on g.id is null and p.nth = g.ord and p.kind = g.kind
$$;

-- open_workflow: store a workflow, unless a live one has its key; returns that one, or this one if somebody has just
-- stored it. One that has the key and no live job has ended, even if nobody has noticed.
create or replace function holdfast.open_workflow(
  id uuid, name text, key text, deadline timestamptz, child_of uuid, actor text, at timestamptz)
returns uuid
language plpgsql
as $$
#variable_conflict use_column
declare
  v_parent constant uuid := case when child_of is not null then holdfast.link_of(child_of) end;
  v_other  uuid;
  flow     record;
begin
  if v_parent is not null then
    select w.id, w.stopped_at, w.reason into flow
    from holdfast.workflow w
    where w.id = holdfast.workflow_of_link(v_parent);
    if not found then
      perform holdfast.refuse_child(child_of::text);
    elsif flow.stopped_at is not null then
      perform holdfast.refuse_stopped(flow.id, flow.stopped_at, flow.reason);
    end if;
  end if;
  loop
    insert into holdfast.workflow (id, name, key, deadline, parent, created_by, created_at)
    values (open_workflow.id, open_workflow.name, open_workflow.key, open_workflow.deadline, v_parent, actor, at)
    on conflict do nothing;
    if found then
      insert into holdfast.newborn (parent) select v_parent where v_parent is not null;
      perform holdfast.note_workflow('workflow_started', open_workflow.id, actor, null);
      return null;
    elsif exists (select from holdfast.workflow w where w.id = open_workflow.id) then
      return id;
    end if;
    select w.id into v_other from holdfast.workflow w
    where w.name = open_workflow.name and w.key = open_workflow.key and w.ended_at is null;
    continue when not found;
    if holdfast.workflow_lives(v_other) then
      return v_other;
    end if;
    perform holdfast.lock_workflow(v_other, alone => true);
    perform holdfast.close_workflow(v_other, at);
  end loop;
end
$$;

-- lock_workflow: lock a workflow for the rest of the transaction: alone, or with others who add to it.
create or replace function holdfast.lock_workflow(id uuid, alone boolean)
returns void
language plpgsql
as $$
begin
  lock table holdfast.job in row exclusive mode;   -- every writer takes it first
  if alone then
    perform pg_advisory_xact_lock(4921, hashtext(id::text));
  else
    perform pg_advisory_xact_lock_shared(4921, hashtext(id::text));
  end if;
end
$$;

-- close_workflow: note how a workflow has ended, if it has. The caller has locked it alone. Returns whether.
create or replace function holdfast.close_workflow(id uuid, at timestamptz)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  v_state text;
begin
  if holdfast.workflow_lives(id) then
    return false;
  end if;
  update holdfast.workflow w
  set ended_at = coalesce((select max(m.ended_at) from holdfast.member m where m.workflow = w.id), close_workflow.at),
      state = holdfast.workflow_state(w.id), jobs = holdfast.workflow_counts(w.id)
  where w.id = close_workflow.id and w.ended_at is null
  returning w.state into v_state;
  if found then
    perform holdfast.note_workflow('workflow_ended', close_workflow.id, null, null,
      jsonb_build_object('state', v_state));
  end if;
  return true;
end
$$;

-- workflows_of: the workflow that each item is to join; null: none. An item names a workflow, or a job in it. They are
-- locked, with others who add to them.
create or replace function holdfast.workflows_of(items jsonb)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_asked  text[];
  v_found  uuid[];
  v_flows  uuid[];
  v_one    uuid;
  v_bad    record;
begin
  if not (items @? '$[*].workflow' or items @? '$[*].child_of') then
    return null;
  end if;
  v_asked := array(
    select coalesce(i.item ->> 'workflow', i.item ->> 'child_of')
    from jsonb_array_elements(items) with ordinality i(item, ord)
    order by i.ord);
  select array_agg(d.asked::uuid), array_agg(holdfast.workflow_of(d.asked::uuid)) into v_found, v_flows
  from (select distinct a.asked from unnest(v_asked) a(asked) where a.asked is not null) d;
  select f.asked into v_bad from unnest(v_found, v_flows) f(asked, flow) where f.flow is null limit 1;
  if found then
    perform holdfast.refuse('HF215', format('no workflow has the id %s, and no job of one', v_bad.asked), null,
      'Start one: select * from holdfast.workflow_start(name => ''import'', items => …)');
  end if;
  for v_one in select distinct x from unnest(v_flows) x where x is not null order by 1 loop
    perform holdfast.lock_workflow(v_one, alone => false);
  end loop;
  return array(
    select f.flow
    from unnest(v_asked) with ordinality a(asked, nth)
    left join unnest(v_found, v_flows) f(asked, flow) on f.asked = a.asked::uuid
    order by a.nth);
end
$$;

-- open_to_items: workflows get these items; before: except those that an earlier call has stored.
create or replace function holdfast.open_to_items(flows uuid[], before integer[])
returns void
language sql
as $$
  select holdfast.reopen_workflow(d.flow, null)
  from (
    select distinct f.flow
    from unnest(flows) with ordinality f(flow, ord)
    where f.flow is not null and f.ord <> all(before)
    order by 1
  ) d
$$;

-- workflow_of: the workflow with this id, or that of the job with this id; null if there is none.
create or replace function holdfast.workflow_of(id uuid)
returns uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select coalesce((select w.id from holdfast.workflow w where w.id = workflow_of.id), (
    select m.workflow
    from (select holdfast.link_of(workflow_of.id) as link) o
    join holdfast.member m on m.part = holdfast.part_of(o.link) and m.id = o.link))
$$;

-- workflow_find: workflows whose ids end in these digits; or that of the job with this id.
create or replace function holdfast.workflow_find(digits text, most integer default 2)
returns uuid[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select case when length(digits) = 32 then array_remove(array[holdfast.workflow_of(digits::uuid)], null) else array(
    select w.id from holdfast.workflow w
    where replace(w.id::text, '-', '') like '%' || holdfast.like_pattern(digits)
    order by w.id desc limit most) end
$$;

-- reopen_workflow: a workflow gets a job, or one comes back: then again says why. The caller has its lock. If it had
-- ended, its key must be free. What was cancelled takes nothing new. as_before: its cancel is undone.
create or replace function holdfast.reopen_workflow(id uuid, again text, as_before boolean default false)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  w holdfast.workflow;
begin
  select x.* into w from holdfast.workflow x where x.id = reopen_workflow.id;
  if w.stopped_at is not null and again is null then
    perform holdfast.refuse_stopped(w.id, w.stopped_at, w.reason);
  end if;
  if w.ended_at is null and w.stopped_at is null then
    return;
  end if;
  update holdfast.workflow x
  set ended_at = null, state = null, jobs = null, stopped_at = null, reason = null,
      -- it has passed, or somebody decided otherwise
      deadline = case when (as_before or x.stopped_at is null) and x.deadline > holdfast.clock() then x.deadline end
  where x.id = w.id;
exception when unique_violation then
  perform holdfast.refuse('HF217', format('a live workflow %L has the key %L', w.name, w.key), null,
    'Cancel that one, or wait until it has ended.');
end
$$;

create or replace function holdfast.refuse_stopped(id uuid, at timestamptz, reason text)
returns void
language plpgsql
as $$
begin
  perform holdfast.refuse('HF216', format('workflow %s was cancelled at %s, so nothing can be added', id,
    holdfast.moment(at)), reason, 'Retry it first: holdfast workflow retry ' || id);
end
$$;

-- join_workflows: store which jobs of an enqueue belong to which workflow. ords, refs and links say what they wait for,
-- as in link_items; an item that was there before is left where it is.
create or replace function holdfast.join_workflows(
  items jsonb, flows uuid[], ords integer[], refs integer[], links uuid[], ids uuid[], rivals uuid[], at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_ords   integer[] := ords;      -- as variables, so that each element is found at once
  v_refs   integer[] := refs;
  v_outer  bigint[];               -- folds of jobs of other calls, parallel to links
  v_names  text[];
  v_folds  bigint[] := array_fill(0::bigint, array[cardinality(flows)]);
  v_after  bigint[];
  v_texts  text[] := array_fill(null::text, array[cardinality(flows)]);
  v_place  integer := 1;
  v_links  constant integer := coalesce(cardinality(ords), 0);
  v_one    bigint;
  v_lost   text;
begin
  v_names := array(
    select (i.item ->> 'kind') || e'\n' || coalesce(i.item ->> 'queue', 'default') || e'\n'
      || coalesce(i.item ->> 'if_failed', '') || coalesce((
        select e'\nof ' || to_hex(m.fold)
        from (select holdfast.link_of((i.item ->> 'child_of')::uuid) as link) o
        join holdfast.member m on m.part = any(array[holdfast.part_of(o.link)]) and m.id = o.link
        where i.item ->> 'child_of' is not null), '')
    from jsonb_array_elements(items) with ordinality i(item, ord)
    order by i.ord);
  if v_links > 0 and num_nonnulls(variadic links) > 0 then
    v_outer := array(
      select m.fold
      from unnest(links) with ordinality l(link, nth)
      left join holdfast.member m on m.part = any(array[holdfast.part_of(l.link)]) and m.id = l.link
      order by l.nth);
  end if;
  for v_ord in 1 .. cardinality(flows) loop
    v_after := null;
    while v_place <= v_links loop
      exit when v_ords[v_place] <> v_ord;
      v_one := coalesce(case when v_refs[v_place] is null then v_outer[v_place] else v_folds[v_refs[v_place]] end, 0);
      if v_after is null then
        v_after := array[v_one];
      elsif v_one <> all(v_after) and cardinality(v_after) < 64 then
        v_after := v_after || v_one;
      end if;
      v_place := v_place + 1;
    end loop;
    if v_after is not null then
      v_after := array(select x from unnest(v_after) x order by x);
      v_texts[v_ord] := v_after::text;
    end if;
    v_folds[v_ord] := hashtextextended(v_names[v_ord] || coalesce(v_texts[v_ord], ''), 0);
  end loop;
  with joined as (
    insert into holdfast.member (part, id, workflow, queue, kind, fold, after, if_failed, parent, created_at)
    select holdfast.part_of(u.id), u.id, u.flow, coalesce(i.item ->> 'queue', 'default'), i.item ->> 'kind', u.fold,
           u.after::bigint[], case when u.after is not null or i.item ->> 'child_of' is not null
             then coalesce(i.item ->> 'if_failed', 'wait') end,
           case when i.item ->> 'child_of' is not null then holdfast.link_of((i.item ->> 'child_of')::uuid) end,
           join_workflows.at
    from unnest(ids, flows, v_folds, v_texts) with ordinality u(id, flow, fold, after, ord)
    join jsonb_array_elements(items) with ordinality i(item, ord) on i.ord = u.ord
    where u.flow is not null and (rivals is null or rivals[u.ord] is null)
      -- one that got this id later, by a change of fanout, is known by another
      and exists (select from holdfast.job j where j.part = holdfast.part_of(u.id) and j.id = u.id and j.link = u.id)
    order by u.ord
    on conflict (part, id) do nothing
    returning parent
  )
  insert into holdfast.newborn (parent)
  select distinct j.parent from joined j where j.parent is not null;
  -- Only now: a parent may be a job of the same call. One that is in no workflow would never be noticed to end.
  if items @? '$[*].child_of' then
    select p.child_of into v_lost
    from (
      select distinct i.item ->> 'child_of' as child_of
      from jsonb_array_elements(items) i(item)
      where i.item ->> 'child_of' is not null
    ) p
    cross join lateral (select holdfast.link_of(p.child_of::uuid) as link) o
    where not exists (select from holdfast.member m where m.part = holdfast.part_of(o.link) and m.id = o.link)
    limit 1;
    if found then
      perform holdfast.refuse_child(v_lost);
    end if;
  end if;
end
$$;

-- refuse_child: refuse to go with a job that is in no workflow.
create or replace function holdfast.refuse_child(child_of text)
returns void
language sql
as $$
  select holdfast.refuse('HF215', format('job %s is not in a workflow', child_of), null,
    'Only a job of a workflow can have children.')
$$;

-- end_members: jobs have ended, by their links. Those that are in workflows are marked; parallel arrays. tokens: of the
-- leases with which they are done.
create or replace function holdfast.end_members(links uuid[], states text[], tokens uuid[], at timestamptz)
returns void
language sql
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_nestloop = on
as $$
  update holdfast.member m
  set state = u.state, ended_at = end_members.at,
      began_at = coalesce((
        select min(l.claimed_at) from holdfast.lease l where u.token is not null and l.token = u.token), m.began_at)
  from (
    select holdfast.part_of(x.link) as part, x.link, x.state, x.token
    from unnest(links, states, tokens) x(link, state, token)
    order by x.link
  ) u
  where m.part = any(array[u.part]) and m.id = u.link
$$;

-- note_orphans: jobs have ended otherwise than done, by their links. What goes with them is left to upkeep: whoever
-- ends them may be waited for by those who have locked it.
create or replace function holdfast.note_orphans(links uuid[], states text[])
returns void
language sql
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
as $$
  insert into holdfast.orphaned (parent, state)
  select x.link, x.state
  from unnest(links, states) x(link, state)
  where x.state <> 'done' and (exists (select from holdfast.member m where m.parent = x.link)
    or exists (select from holdfast.workflow w where w.parent = x.link))
  on conflict (parent) do nothing
$$;

-- open_workflows_of: lock the workflows of jobs that have ended and are about to come back, with others who add to
-- them, and open those that have ended or were cancelled; returns how those were. Before any key of a job is taken: who
-- starts a workflow or adds to one has written it, and takes keys then. If a live one has its key it is left, and that
-- is said when a job of it has come back.
create or replace function holdfast.open_workflows_of(ids uuid[], reason text, as_before boolean)
returns jsonb
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_closed jsonb;
  v_one    uuid;
  w        holdfast.workflow;
begin
  for v_one in
    select distinct m.workflow
    from unnest(ids) u(id)
    cross join lateral (
      select e.link from holdfast.ended e
      where e.part = holdfast.part_of(u.id) and e.id = u.id and e.link is not null limit 1) e
    join holdfast.member m on m.part = any(array[holdfast.part_of(e.link)]) and m.id = e.link
    order by 1
  loop
    perform holdfast.lock_workflow(v_one, alone => false);
    select x.* into w from holdfast.workflow x
    where x.id = v_one and (x.ended_at is not null or x.stopped_at is not null) for update;
    continue when not found;
    begin
      perform holdfast.reopen_workflow(v_one, coalesce(reason, ''), as_before);
      v_closed := coalesce(v_closed, '[]') || to_jsonb(w);
    exception when sqlstate 'HF217' then
      null;
    end;
  end loop;
  return v_closed;
end
$$;

-- close_again: workflows are as they were, if none of the jobs that came back is theirs; links has the ids and links of
-- those jobs.
create or replace function holdfast.close_again(closed jsonb, links uuid[])
returns void
language sql
set enable_seqscan = off
as $$
  update holdfast.workflow w
  set ended_at = o.ended_at, state = o.state, jobs = o.jobs, stopped_at = o.stopped_at, reason = o.reason,
      deadline = o.deadline
  from jsonb_populate_recordset(null::holdfast.workflow, closed) o
  where w.id = o.id and o.id not in (
    select m.workflow
    from generate_subscripts(links, 1) n
    join holdfast.member m on m.part = any(array[holdfast.part_of(links[n][2])]) and m.id = links[n][2])
$$;

-- reopen_at_once: reopen_workflow for a caller who holds keys of jobs: who is just starting a workflow with its key may
-- want one of them next, and has it as good as taken.
create or replace function holdfast.reopen_at_once(id uuid, again text, as_before boolean)
returns void
language plpgsql
set lock_timeout = '20ms'
as $$
#variable_conflict use_column
begin
  perform holdfast.reopen_workflow(id, again, as_before);
exception when lock_not_available then
  perform holdfast.refuse('HF217', format('a workflow %L with the key %L is being started', w.name, w.key), null,
    'Cancel that one, or wait until it has ended.')
  from holdfast.workflow w where w.id = reopen_at_once.id;
end
$$;

-- back_to_workflows: jobs that ended are live again, by their links.
create or replace function holdfast.back_to_workflows(links uuid[], reason text, as_before boolean)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_one uuid;
begin
  for v_one in
    select distinct m.workflow
    from unnest(links) u(link)
    join holdfast.member m on m.part = any(array[holdfast.part_of(u.link)]) and m.id = u.link
    order by 1
  loop
    perform holdfast.lock_workflow(v_one, alone => false);
    perform holdfast.reopen_at_once(v_one, coalesce(reason, ''), as_before);
  end loop;
  if v_one is not null then
    delete from holdfast.orphaned o where o.parent = any(links);
    update holdfast.member m
    set state = null, ended_at = null, began_at = null
    from (select holdfast.part_of(x) as part, x as link from unnest(links) x order by x) u
    where m.part = any(array[u.part]) and m.id = u.link;
  end if;
end
$$;

-- workflow_groups: the jobs of a workflow by groups. A group has jobs of one kind and queue that wait for the same
-- groups. child_of: the group of the jobs that they are children of.
create or replace function holdfast.workflow_groups(workflow uuid, most integer default 1000)
returns table (
  "group" text, kind text, queue text, after text[], if_failed text, jobs jsonb, job uuid, began_at timestamptz,
  ended_at timestamptz, child_of text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select to_hex(m.fold), min(m.kind), min(m.queue), array(
      select to_hex(a) from unnest(min(m.after)) a), min(m.if_failed),
    jsonb_build_object('total', count(*), 'waiting', count(*) filter (where m.state = 'waiting'),
      'queued', count(*) filter (where m.state = 'queued'), 'leased', count(*) filter (where m.state = 'leased'),
      'done', count(*) filter (where m.state = 'done'), 'dead', count(*) filter (where m.state = 'dead'),
      'cancelled', count(*) filter (where m.state = 'cancelled')),
    case when count(*) = 1 then min(m.id::text)::uuid end, min(m.began_at), max(m.ended_at), (
      select to_hex(p.fold) from holdfast.member p
      where p.part = holdfast.part_of(min(m.parent::text)::uuid) and p.id = min(m.parent::text)::uuid)
  from holdfast.workflow_members(workflow_groups.workflow) m
  group by m.fold
  order by min(m.nth)
  limit most
$$;

-- workflow_jobs: the jobs of a workflow one by one, in the order in which they were added; past is the nth of the last
-- one of a page. waits: for other jobs, an event or a time. after: the first twenty that it waits or waited for.
create or replace function holdfast.workflow_jobs(
  workflow uuid, of_group text default null, of_state text default null, max_jobs integer default 50,
  past bigint default 0)
returns table (
  nth bigint, id uuid, kind text, queue text, state text, waits boolean, attempt integer, created_at timestamptz,
  began_at timestamptz, ended_at timestamptz, "group" text, parent uuid, after uuid[], waits_for bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select m.nth, case when m.ended_at is not null then coalesce(holdfast.locate(m.id), m.id) else m.id end, m.kind,
         m.queue, case when m.state = 'waiting' then 'queued' else m.state end, m.state = 'waiting',
         coalesce(m.attempt, (
           select e.attempt from holdfast.ended e where e.part = holdfast.part_of(m.link) and e.id = m.link limit 1), (
           select count(*) + 1 from holdfast.attempt a
           where a.part = holdfast.part_of(m.link) and a.id = m.link))::integer,
         m.created_at, coalesce(m.began_at, (
           select max(a.started_at) from holdfast.attempt a
           where m.state = 'dead' and a.part = holdfast.part_of(m.link) and a.id = m.link)),
         m.ended_at, to_hex(m.fold), m.parent, array(
           select coalesce(holdfast.locate(l.parent), l.parent)
           from holdfast.link l
           where l.follower = m.link
           order by l.nth
           limit 20), (select count(*) from holdfast.link l where l.follower = m.link)
  from (
    select x.*
    from holdfast.workflow_members(workflow_jobs.workflow, past) x
    where (of_group is null or to_hex(x.fold) = of_group)
      and (of_state is null or case when x.state = 'waiting' then 'queued' else x.state end = of_state)
    order by x.nth
    limit max_jobs
  ) m
  order by m.nth
$$;
