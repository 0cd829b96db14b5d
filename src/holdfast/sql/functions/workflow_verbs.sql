-- Workflows as a whole. A cancel or retry is an operation over the jobs of the workflow, chunk by chunk, so it can be
-- watched and undone whatever the size. Upkeep does the rest: deadlines, children of jobs that failed, and noting and
-- forgetting workflows that have ended.

-- workflow_cancel: cancel a workflow. From now on nothing can be added to it, and an operation cancels its jobs, the
-- last ones first, so that none is released by the end of another. id: its own, or that of one of its jobs. No row if
-- there is no such workflow. A repeat returns the running operation. Here is only marked what is to be done: who
-- cancelled jobs under the lock of the workflow would wait for handlers that wait for it, to add a job. queues: only if
-- all its jobs are in these, and the operation changes what is in these.
create or replace function holdfast.workflow_cancel(
  id uuid, reason text default null, actor text default null, queues text[] default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_flow constant uuid := holdfast.workflow_of(workflow_cancel.id);
  v_operation bigint;
begin
  if v_flow is null or not holdfast.workflow_within(v_flow, queues) then
    return;
  end if;
  v_operation := holdfast.stop_workflow(v_flow, reason, actor, queues);
  if v_operation is null then
    perform holdfast.refuse('HF409', format('workflow %s has ended: it is %s', v_flow, holdfast.workflow_state(v_flow)),
      null, 'Retry it: holdfast workflow retry ' || v_flow);
  end if;
  return query select v.* from holdfast.operations v where v.id = v_operation;
end
$$;

-- workflow_retry: retry the dead and cancelled jobs of a workflow, also archived ones, in the order in which they were
-- added, by an operation. from_job: only that job and those that follow it, directly or not. id, no row, a repeat,
-- queues: as above.
create or replace function holdfast.workflow_retry(
  id uuid, from_job uuid default null, reason text default null, actor text default null, queues text[] default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_flow constant uuid := holdfast.workflow_of(workflow_retry.id);
  v_from constant uuid := holdfast.link_of(from_job);
  v_total     bigint;
  v_operation bigint;
begin
  if v_flow is null or not holdfast.workflow_within(v_flow, queues) then
    return;
  end if;
  if from_job is not null and holdfast.workflow_of_link(v_from) is distinct from v_flow then
    perform holdfast.refuse('HF215', format('job %s is not in workflow %s', from_job, v_flow), null,
      'See its jobs: holdfast workflow show ' || v_flow);
  end if;
  perform holdfast.end_other_verb(v_flow, 'cancel', actor);
  perform holdfast.lock_workflow(v_flow, alone => false);
  perform holdfast.refuse_outside(v_flow, queues);
  select count(*) into v_total
  from holdfast.member m
  where m.workflow = v_flow and m.state not in ('done', 'deleted')
    and (v_from is null or m.id in (select f from unnest(holdfast.with_followers(v_from)) f));
  if v_total = 0 then
    perform holdfast.refuse('HF409', format('nothing in workflow %s has failed%s', v_flow,
      case when from_job is not null then format(', from job %s on', from_job) else '' end), null,
      'See its jobs: holdfast workflow show ' || v_flow);
  end if;
  v_operation := holdfast.operate_workflow('retry', v_flow, 'dead,cancelled,archived', case when v_from is null
    then '{}' else jsonb_build_object('from', v_from) end, v_total, reason, actor, queues);
  return query select v.* from holdfast.operations v where v.id = v_operation;
end
$$;

-- stop_workflow: begin to cancel a workflow; returns the operation, or null if nothing of it lives.
create or replace function holdfast.stop_workflow(flow uuid, reason text, actor text, queues text[] default null)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_live bigint;
begin
  perform holdfast.end_other_verb(flow, 'retry', actor);
  perform holdfast.lock_workflow(flow, alone => true);
  perform holdfast.refuse_outside(flow, queues);
  select count(*) into v_live from holdfast.member m where m.workflow = flow and m.state is null;
  if holdfast.close_workflow(flow, holdfast.clock()) then
    return null;
  end if;
  update holdfast.workflow w
  set stopped_at = holdfast.clock(), reason = coalesce(stop_workflow.reason, 'cancelled by ' || stop_workflow.actor)
  where w.id = flow and w.stopped_at is null and w.ended_at is null;
  if found then
    perform holdfast.note_workflow('workflow_cancelled', flow, actor, stop_workflow.reason);
    perform holdfast.close_workflow(flow, holdfast.clock()) where v_live = 0;   -- it has never had a job
  end if;
  return holdfast.operate_workflow('cancel', flow, 'queued,leased', '{}', v_live,
    coalesce(stop_workflow.reason, (select format('workflow %s was cancelled%s', w.name, ' by ' || actor)
      from holdfast.workflow w where w.id = flow)), actor, queues);
end
$$;

-- refuse_outside: refuse a verb for a workflow that has got a job outside of these queues since the caller looked. The
-- caller has its lock.
create or replace function holdfast.refuse_outside(flow uuid, queues text[])
returns void
language plpgsql
as $$
begin
  if not holdfast.workflow_within(flow, queues) then
    perform holdfast.refuse('HF409', format('workflow %s has got a job in another queue', flow), null,
      'Ask somebody who may use all of its queues.');
  end if;
end
$$;

-- operate_workflow: start an operation over the jobs of a workflow, unless the same is running. queues: it leaves what
-- is in others when it comes to it.
create or replace function holdfast.operate_workflow(
  verb text, flow uuid, states text, arguments jsonb, total bigint, reason text, actor text,
  queues text[] default null)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  -- a user of some queues is known by this term: written as the server does
  v_filter constant text := concat_ws(' ', format('workflow:%s state:%s', flow, states), 'queue:' || (
    select string_agg(case when q ~ '[\s,"*\\]' then holdfast.filter_word(q) else q end, ',' order by u.nth)
    from unnest(queues) with ordinality u(q, nth)));
  v_id     bigint;
begin
  select x.id into v_id from holdfast.operation x
  where x.state = 'running' and x.verb = operate_workflow.verb and x.filter = v_filter
    and x.arguments = operate_workflow.arguments;
  if found then
    return v_id;
  end if;
  insert into holdfast.operation as x (
    state, verb, filter, arguments, as_of, total, capped, reason, actor, created_at, started_at, next_at)
  values ('running', operate_workflow.verb, v_filter, operate_workflow.arguments, v_now, operate_workflow.total, false,
    operate_workflow.reason, operate_workflow.actor, v_now, v_now, v_now)
  returning x.id into v_id;
  perform holdfast.note('operation_started', operate_workflow.actor, operate_workflow.reason,
    detail => jsonb_build_object('operation', v_id, 'verb', verb, 'filter', v_filter, 'arguments',
      operate_workflow.arguments, 'total', operate_workflow.total));
  if verb = 'retry' then
    perform holdfast.note_workflow('workflow_retried', flow, operate_workflow.actor, operate_workflow.reason);
  end if;
  return v_id;
end
$$;

-- end_other_verb: end an operation that does the opposite to a workflow, and undos of what was done to it. Before its
-- lock, which a chunk may wait for.
create or replace function holdfast.end_other_verb(flow uuid, verb text, actor text)
returns void
language sql
as $$
  select holdfast.operation_cancel(o.id, end_other_verb.actor)
  from holdfast.operation o
  where o.state = 'running' and o.verb in (end_other_verb.verb, 'undo') and o.filter like format('workflow:%s %%', flow)
$$;

-- with_followers: the links of a job and of all that follow it, directly or not.
create or replace function holdfast.with_followers(link uuid)
returns uuid[]
language sql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
  with recursive following(link) as (
    select with_followers.link
    union
    select l.follower
    from following f
    join holdfast.link l on l.part = any(array[holdfast.part_of(f.link)]) and l.parent = f.link
  )
  select array_agg(f.link) from following f
$$;

-- workflow_in: the workflow to which a filter limits its jobs; null if there is none or several.
create or replace function holdfast.workflow_in(filter text)
returns uuid
language sql immutable
as $$
  select max(m[1])::uuid
  from regexp_matches(' ' || holdfast.unquoted(filter), '\sworkflow:([0-9a-fA-F-]{36})(?=\s|$)', 'g') m
  having count(*) = 1
$$;

-- operation_next_in: operation_next for the jobs of a workflow: a cancel takes the last ones first, so that it releases
-- none of those that run if another fails. at_id is the link of the last one.
create or replace function holdfast.operation_next_in(o holdfast.operation, flow uuid, want integer)
returns table (ids uuid[], ended boolean, at_part smallint, at_id uuid)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_filter constant text := holdfast.operation_filter(o.verb, o.filter);
  v_states constant text[] := holdfast.states_in(v_filter);
  v_live   constant boolean := v_states is null or v_states && '{queued,leased}';
  v_done   constant boolean := v_states is null or 'done' = any(v_states);
  v_past   constant bigint := (
    select m.nth from holdfast.member m where m.part = holdfast.part_of(o.at_id) and m.id = o.at_id);
  v_want   constant integer := case when o.arguments ? 'from' then 10 * want else want end;
  v_links  uuid[];
begin
  if o.verb = 'cancel' then
    v_links := array(
      select m.id from holdfast.member m
      where m.workflow = flow and m.state is null and m.nth < coalesce(v_past, 9223372036854775807)
      order by m.nth desc limit v_want);
  elsif o.arguments ? 'from' then
    v_links := array(
      select m.id
      from unnest(holdfast.with_followers((o.arguments ->> 'from')::uuid)) f(link)
      join holdfast.member m on m.part = any(array[holdfast.part_of(f.link)]) and m.id = f.link
      where m.workflow = flow and m.state is not null and m.state <> 'done' and m.nth > coalesce(v_past, 0)
      order by m.nth limit v_want);
  else
    v_links := array(
      select m.id from holdfast.member m
      where m.workflow = flow and m.nth > coalesce(v_past, 0) and case
        when m.state is null then v_live when m.state = 'done' then v_done else true end
      order by m.nth limit v_want);
  end if;
  execute 'select coalesce(array_agg(j.id order by u.nth), ''{}'')'
    || ' from unnest($1) with ordinality u(id, nth) cross join lateral ('
    || '   select x.* from holdfast.own_jobs x where x.part = holdfast.part_of(u.id) and x.id = u.id'
    || '   order by x.ended_at is null desc, x.state = ''dead'' desc, x.ended_at desc limit 1) j'
    || ' where coalesce(j.ended_at, j.created_at) <= $2 and ' || holdfast.filter_sql(v_filter)
    into ids using holdfast.located(v_links), o.as_of;
  ended := cardinality(v_links) < v_want;
  at_part := case when ended then 64 else o.at_part end;
  at_id := v_links[cardinality(v_links)];
  return next;
end
$$;

-- children_of: the live jobs that go with these, by their links; and the children of those, and so on. died: those of
-- them that also go with a parent that died.
create or replace function holdfast.children_of(parents uuid[], died boolean default false)
returns uuid[]
language sql stable
set enable_seqscan = off
as $$
  with recursive children(link) as (
    select m.id from holdfast.member m
    where m.parent = any(parents) and m.state is null
      and case when died then m.if_failed = 'cancel' else m.if_failed is distinct from 'run' end
    union
    select m.id
    from children c
    join holdfast.member m on m.parent = c.link and m.state is null and m.if_failed is distinct from 'run'
  )
  select array(select c.link from children c)
$$;

-- with_children: jobs, and the live jobs that go with them.
create or replace function holdfast.with_children(ids uuid[])
returns uuid[]
language plpgsql stable
set enable_seqscan = off
as $$
declare
  v_links constant uuid[] := array(
    select j.link
    from unnest(ids) u(id)
    join holdfast.job j on j.part = any(array[holdfast.part_of(u.id)]) and j.id = u.id and j.link is not null);
begin
  return case when cardinality(v_links) = 0 then ids
    else ids || holdfast.located(holdfast.children_of(v_links)) end;
end
$$;

-- end_reason: why what goes with a job was cancelled.
create or replace function holdfast.end_reason(parent uuid, state text)
returns text
language sql stable
as $$
  select format('job %s, whose child it is, %s', coalesce(holdfast.locate(parent), parent),
    case end_reason.state when 'dead' then 'died' else 'was ' || end_reason.state end)
$$;

-- tend_workflows: cancel what is past its deadline and what has lost its parent, note which workflows have ended, and
-- forget those that ended more than a week ago. Some of each per call; returns how many.
create or replace function holdfast.tend_workflows(most integer default 50)
returns bigint
language plpgsql
set enable_seqscan = off
set lock_timeout = '50ms'   -- all of upkeep would wait for whoever is at one job
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_from   uuid;
  v_links  uuid[];
  v_done   bigint := 0;
  v_stuck  integer := 0;
  one      record;
begin
  perform holdfast.see_newborn(20 * most);
  -- First what may wait for jobs, then what has to lock workflows, for which nobody waits here. What somebody else has
  -- locked is left for a later turn; in any order, so that it stops nothing behind it.
  for one in
    select o.parent, o.state from holdfast.orphaned o order by random() limit most for update skip locked
  loop
    begin
      v_links := holdfast.children_of(array[one.parent], one.state = 'dead');
      perform holdfast.cancelled(holdfast.located(v_links[:1000]), holdfast.end_reason(one.parent, one.state), null)
      where cardinality(v_links) > 0;
      delete from holdfast.orphaned o
      where o.parent = one.parent and cardinality(v_links) <= 1000 and (one.state = 'dead' or not exists (
        select from holdfast.workflow w
        where w.parent = o.parent and w.ended_at is null and w.stopped_at is null));
      v_done := v_done + 1;
    exception when lock_not_available then
      v_stuck := v_stuck + 1;
    end;
    exit when v_stuck = 3;
  end loop;
  for one in
    (select w.id, format('the deadline of its workflow, %s, has passed', holdfast.moment(w.deadline)) as reason
     from holdfast.workflow w
     where w.deadline <= v_now and w.ended_at is null and w.stopped_at is null
     order by w.deadline limit most)
    union all
    (select w.id, holdfast.end_reason(o.parent, o.state)
     from holdfast.orphaned o
     join holdfast.workflow w on w.parent = o.parent and w.ended_at is null and w.stopped_at is null
     where o.state <> 'dead'
     limit most)
  loop
    continue when not holdfast.take_workflow(one.id);
    perform holdfast.stop_workflow(one.id, one.reason, null);
    v_done := v_done + 1;
  end loop;
  select c.cursor[1]::uuid into v_from from holdfast.chore c where c.name = 'workflows' for update skip locked;
  if not found then
    return v_done;
  end if;
  for one in
    select w.id from holdfast.workflow w
    where w.ended_at is null and w.id > coalesce(v_from, '00000000-0000-0000-0000-000000000000')
    order by w.id limit 4 * most
  loop
    v_from := one.id;
    v_done := v_done + 1;
    continue when holdfast.workflow_lives(one.id);
    continue when not holdfast.take_workflow(one.id);
    perform holdfast.close_workflow(one.id, v_now);
  end loop;
  update holdfast.chore c set cursor = case when found then array[v_from::text] else '{}' end
  where c.name = 'workflows';
  for one in
    select w.id from holdfast.workflow w
    where w.ended_at < v_now - interval '7 days' order by w.ended_at limit 5
  loop
    continue when not holdfast.take_workflow(one.id);
    v_done := v_done + holdfast.forget_workflow(one.id, v_now - interval '7 days', 5000);
  end loop;
  return v_done;
end
$$;

-- see_newborn: some jobs were given children. Those whose parents have ended otherwise than done are left to the
-- orphans, as by whoever ends a parent; so a child goes with its parent whichever of the two commits first. A parent
-- that lives, and that nobody is about to end, is not looked at again: who ends it from now on sees its children.
create or replace function holdfast.see_newborn(most integer)
returns void
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_nths    bigint[];
  v_parents uuid[];
  v_settled uuid[];
begin
  -- One at a time: two that write the same orphan would wait for each other.
  perform from holdfast.chore c where c.name = 'workflows' for update skip locked;
  if not found then
    return;
  end if;
  select array_agg(n.nth), array_agg(distinct n.parent) into v_nths, v_parents
  from (select x.nth, x.parent from holdfast.newborn x order by x.nth limit most) n;
  if v_nths is null then
    return;
  end if;
  begin
    -- Given back at once, since those who touch or end a job wait for nobody. In key share mode it would wait itself,
    -- for somebody who has written the row and then deleted it.
    v_settled := array(
      select u.parent
      from unnest(v_parents) u(parent)
      cross join lateral (select coalesce(holdfast.locate(u.parent), u.parent) as id) l
      cross join lateral (
        select from holdfast.job j where j.part = holdfast.part_of(l.id) and j.id = l.id for share skip locked) j);
    raise exception using errcode = 'HFAGN', message = 'the locks are given back';
  exception when sqlstate 'HFAGN' then
    null;
  end;
  -- An orphan that is there may just be forgotten by somebody who has not seen the child: then it has another turn.
  with ended as materialized (
    select u.parent, m.state, m.id is null as forgotten
    from unnest(v_parents) u(parent)
    left join holdfast.member m on m.part = holdfast.part_of(u.parent) and m.id = u.parent
    where m.id is null or m.state is not null
  ), orphans as (
    insert into holdfast.orphaned (parent, state)
    select e.parent, e.state
    from ended e
    where e.state <> 'done' and not exists (select from holdfast.orphaned o where o.parent = e.parent)
    order by e.parent
    on conflict (parent) do nothing
    returning parent
  )
  select v_settled || array(
    select o.parent from orphans o union all select e.parent from ended e where e.forgotten or e.state = 'done')
  into v_settled;
  delete from holdfast.newborn n where n.nth = any(v_nths) and n.parent = any(v_settled);
end
$$;

-- take_workflow: lock a workflow alone, if nobody else has it.
create or replace function holdfast.take_workflow(id uuid)
returns boolean
language plpgsql
as $$
begin
  lock table holdfast.job in row exclusive mode;
  return pg_try_advisory_xact_lock(4921, hashtext(id::text));
end
$$;

-- forget_workflow: forget some jobs of a workflow that ended before this time, and at last the workflow. The caller has
-- locked it alone.
create or replace function holdfast.forget_workflow(id uuid, before timestamptz, most integer)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_gone bigint;
begin
  if not exists (select from holdfast.workflow w where w.id = forget_workflow.id and w.ended_at < before) then
    return 0;   -- somebody has retried it
  end if;
  with old as materialized (
    select m.part, m.id from holdfast.member m where m.workflow = forget_workflow.id order by m.nth desc limit most)
  delete from holdfast.member m using old o where m.part = any(array[o.part]) and m.id = o.id;
  get diagnostics v_gone = row_count;
  if v_gone < most then
    delete from holdfast.workflow w where w.id = forget_workflow.id;
  end if;
  return v_gone + 1;
end
$$;

-- note_workflow: record what happened to a workflow.
create or replace function holdfast.note_workflow(
  event text, flow uuid, actor text, reason text, more jsonb default '{}')
returns void
language sql volatile
as $$
  select holdfast.note(note_workflow.event, note_workflow.actor, note_workflow.reason,
    detail => jsonb_build_object('workflow', w.id, 'name', w.name, 'key', w.key) || more)
  from holdfast.workflow w
  where w.id = flow
$$;

-- explain_workflow: what will become of a job together with its workflow.
create or replace function holdfast.explain_workflow(link uuid)
returns text
language sql stable
as $$
  select case
    when w.stopped_at is not null then format(' Its workflow was cancelled at %s; so will this job be.',
      holdfast.moment(w.stopped_at))
    when w.deadline is not null then format(' Its workflow has a deadline: if it has not ended by %s, it is cancelled.',
      holdfast.moment(w.deadline)) end
  from holdfast.workflow w
  where w.id = holdfast.workflow_of_link(explain_workflow.link) and w.ended_at is null
$$;
