-- Undo of an operation: also an operation, done chunk by chunk to the jobs that the first one changed and that are
-- still as it left them. The record of its changes is kept for seven days.

-- operation_undo: start to undo an operation that has ended. A repeat returns the running undo. No row if there is no
-- such operation. as_token: the token of the undo, as in operation_preview.
create or replace function holdfast.operation_undo(
  id bigint, rate double precision default null, reason text default null, actor text default null,
  as_token uuid default null)
returns setof holdfast.operations
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_undo bigint;
  o      holdfast.operation;
begin
  perform holdfast.check_rate(rate);
  select x.* into o from holdfast.operation x where x.id = operation_undo.id for update;
  if not found then
    return;
  end if;
  select x.id into v_undo from holdfast.operation x
  where x.state = 'running' and x.verb = 'undo' and x.arguments = jsonb_build_object('operation', o.id);
  if not found then
    if o.state in ('previewed', 'running') then
      perform holdfast.refuse('HF409', format('operation %s is %s', o.id, o.state), null,
        format('Stop it first: holdfast op cancel %s', o.id));
    elsif o.verb in ('delete', 'undo') or o.undoable = 0 then
      perform holdfast.refuse('HF409', format('operation %s cannot be undone: %s', o.id, case
        when o.verb = 'delete' then 'the jobs are deleted'
        when o.verb = 'undo' then 'it is an undo'
        when o.changed = 0 then 'it changed nothing'
        else 'it was already undone, is older than seven days, or changed rows of an adopted table' end), null,
          format('See what it did: holdfast op show %s', o.id));
    end if;
    insert into holdfast.operation as x (
      token, state, verb, filter, arguments, as_of, total, capped, rate, reason, actor, created_at, started_at, next_at)
    values (coalesce(as_token, gen_random_uuid()), 'running', 'undo', o.filter,
      jsonb_build_object('operation', o.id), v_now, o.undoable, false, operation_undo.rate, operation_undo.reason,
      operation_undo.actor, v_now, v_now, v_now)
    returning x.id into v_undo;
    perform holdfast.note('operation_started', actor, reason,
      detail => jsonb_build_object('operation', v_undo, 'verb', 'undo', 'filter', o.filter, 'arguments',
        jsonb_build_object('operation', o.id), 'total', o.undoable));
  end if;
  return query select v.* from holdfast.operations v where v.id = v_undo;
end
$$;

-- operation_revert: undo some changes of an operation, the newest first; returns how many jobs were checked, how many
-- were restored, and whether those were the last.
create or replace function holdfast.operation_revert(
  o holdfast.operation, want integer, out seen integer, out changed bigint, out ended boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_of     constant bigint := (o.arguments ->> 'operation')::bigint;
  v_reason constant text := concat_ws(': ', format('undo of operation %s', v_of), o.reason);
  v_verb   text;
  v_to     text;
  v_queue  text;
  chunk    holdfast.operation_chunk;
begin
  select c.* into chunk from holdfast.operation_chunk c where c.operation = v_of order by c.nth desc limit 1 for update;
  if not found then
    seen := 0;
    changed := 0;
    ended := true;
    return;
  end if;
  if cardinality(chunk.ids) > want then
    update holdfast.operation_chunk c set ids = chunk.ids[want + 1 :], was = chunk.was[want + 1 :],
      ended = chunk.ended[want + 1 :]
    where c.operation = v_of and c.nth = chunk.nth;
    chunk.ids := chunk.ids[: want];
    chunk.was := chunk.was[: want];
    chunk.ended := chunk.ended[: want];
  else
    delete from holdfast.operation_chunk c where c.operation = v_of and c.nth = chunk.nth;
  end if;
  seen := cardinality(chunk.ids);
  update holdfast.operation x set undoable = x.undoable - operation_revert.seen where x.id = v_of
  returning x.verb, x.arguments ->> 'queue' into v_verb, v_to;
  ended := not exists (select from holdfast.operation_chunk c where c.operation = v_of);
  case v_verb
    when 'retry' then
      if seen = 0 then
        perform holdfast.stop_again(chunk.ended[1]);
      end if;
      changed := holdfast.put_back(holdfast.located(chunk.ids), chunk.was, chunk.ended, v_reason, o.actor);
    when 'cancel' then
      -- what ran when it was cancelled has lost its lease, and may have done half its work: it stays cancelled
      changed := cardinality(holdfast.revive(
        array(select u.id from unnest(chunk.ids, chunk.was) u(id, was) where u.was = 'queued'), v_reason, o.actor,
          as_before => true));
    when 'archive' then
      changed := holdfast.take_out(chunk.ids, chunk.was, v_reason, o.actor);
    when 'move' then
      changed := 0;
      for v_queue in select distinct u.queue from unnest(chunk.was) u(queue) order by 1 loop
        changed := changed + (
          select count(*)
          from holdfast.moved(array(
            select u.id
            from unnest(chunk.ids, chunk.was) u(id, queue)
            where u.queue = v_queue and (   -- not moved on since
              exists (select from holdfast.job j
                where j.part = holdfast.part_of(u.id) and j.id = u.id and j.queue = v_to)
              or exists (select from holdfast.dead d
                where d.part = holdfast.part_of(u.id) and d.id = u.id and d.queue = v_to))),
            v_queue, v_reason, o.actor));
      end loop;
  end case;
end
$$;

-- put_back: end jobs that were retried and have not started since, in their previous state, with all fields that were
-- stored; for older operations, with the last recorded error. Returns how many.
create or replace function holdfast.put_back(ids uuid[], states text[], endings jsonb[], reason text, actor text)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  v_back bigint := 0;
  v_part smallint;
  v_held uuid[];
  gone   record;
begin
  v_held := (holdfast.lock_to_end(ids)).locked;
  for v_part in select p.part from holdfast.by_part(v_held) p loop
    with removed as (
      delete from holdfast.job j
      using (select holdfast.part_of(x.id) as part, x.id, x.state, x.ending
        from unnest(ids, states, endings) x(id, state, ending)) u
      where u.part = v_part and j.part = any(array[u.part]) and j.id = u.id and j.id = any(v_held) and j.token is null
        and j.attempt = 0 and coalesce(u.ending ->> 'queue' = j.queue, true)   -- not moved since
      returning j as job, j.part, j.id, j.queue, j.kind, j.key, j.lane, j.link, u.state, u.ending,
        case when u.state = 'archived' then coalesce(u.ending ->> 'ended_as', 'dead') else u.state end as ended_as
    ), ended as (
      insert into holdfast.ended
      select e.*
      from removed r
      left join lateral (
        select jsonb_build_object('attempt', x.attempt, 'ended_at', x.ended_at, 'worker', x.worker,
                 'error', left(concat_ws(': ', x.error_kind, x.message), 2000), 'fingerprint', x.fingerprint) as ending
        from holdfast.attempt x
        where x.part = any(array[r.part]) and x.id = r.id and r.ending is null and r.state in ('dead', 'archived')
        order by x.ended_at desc limit 1) a on true
      cross join lateral holdfast.ended_of(r.job, r.state, v_now, put_back.reason) o
      -- what may have been edited since, and why it is as it is, stays as it is now
      cross join lateral jsonb_populate_record(o, '{"error": null, "attempts_before": null}' || coalesce(
        r.ending - '{state,queue,priority,max_attempts,lease_for,reason,link,takes,recent}'::text[], a.ending, '{}')) e
      returning id, state, queue, kind, fingerprint
    ), counted as (
      insert into holdfast.tally (part, queue, kind, queued, dead, cancelled, archived)
      select v_part, e.queue, e.kind, -count(*), count(*) filter (where e.state = 'dead'),
             count(*) filter (where e.state = 'cancelled'), count(*) filter (where e.state = 'archived')
      from ended e
      group by e.queue, e.kind
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, e.fingerprint, e.kind, e.queue, count(*)
      from ended e
      where e.state = 'dead'
      group by e.fingerprint, e.kind, e.queue
    )
    select array_agg(r.id) as ids, array_agg(r.id) filter (where (r.job).steps is not null) as stepped,
           jsonb_agg(holdfast.place_of(r.part, r.queue, r.kind, r.key, r.lane))
             filter (where r.key is not null or r.lane is not null) as places,
           array_agg(r.link) filter (where r.link is not null and r.ended_as <> 'done') as links,
           array_agg(r.ended_as) filter (where r.link is not null and r.ended_as <> 'done') as states,
           array_agg(array[r.id, r.id, r.link, null]) filter (where r.link is not null and r.ended_as = 'done') as done,
           array_agg(r.id) filter (where r.link is not null and r.ended_as = 'done') as done_ids,
           jsonb_agg(r.ending -> 'result') filter (where r.link is not null and r.ended_as = 'done') as results
    into gone
    from removed r;
    continue when gone.ids is null;
    v_back := v_back + cardinality(gone.ids);
    perform holdfast.tell_awaited(gone.ids);
    if gone.stepped is not null then
      perform holdfast.forget_steps(gone.stepped);
    end if;
    perform holdfast.note_undone(v_part, gone.ids, actor, reason, v_now);
    if gone.places is not null then
      perform holdfast.let_next_in(gone.places, v_now);
    end if;
    if gone.done is not null then
      -- they have no lease; their ids tell apart whose result is whose
      perform holdfast.clear_done(gone.done, gone.done_ids, gone.done_ids, gone.results, true, v_now);
    end if;
    if gone.links is not null then
      perform holdfast.settle_links(gone.links, gone.states, null, v_now);
    end if;
  end loop;
  return v_back;
end
$$;

-- ended_as: how a job with this link has ended that is archived by now: those who follow it have been told.
create or replace function holdfast.ended_as(link uuid)
returns text
language sql stable
set enable_seqscan = off
as $$
  select coalesce(
    (select m.state from holdfast.member m where m.part = holdfast.part_of(ended_as.link) and m.id = ended_as.link),
    (select l.state from holdfast.link l
     where l.part = holdfast.part_of(ended_as.link) and l.parent = ended_as.link and l.state is not null limit 1))
$$;

-- stops_of: how the workflows of jobs with these links were cancelled; null if none was.
create or replace function holdfast.stops_of(links uuid[])
returns jsonb
language sql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
  select jsonb_agg(distinct jsonb_build_object(
           'workflow', w.id, 'stopped_at', w.stopped_at, 'reason', w.reason, 'deadline', w.deadline))
  from unnest(links) u(link)
  join holdfast.member m on m.part = any(array[holdfast.part_of(u.link)]) and m.id = u.link
  join holdfast.workflow w on w.id = m.workflow
  where w.stopped_at is not null
$$;

-- stop_again: workflows that a retry had opened are cancelled as they were before, unless they live: jobs have begun
-- since, or somebody adds one. It waits for those for a moment only, because all of upkeep would.
create or replace function holdfast.stop_again(stops jsonb)
returns void
language plpgsql
set enable_seqscan = off set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    select x.*
    from jsonb_to_recordset(stops) x(workflow uuid, stopped_at timestamptz, reason text, deadline timestamptz)
    order by x.workflow
  loop
    begin
      perform holdfast.lock_workflow(one.workflow, alone => true);
    exception when lock_not_available then
      continue;
    end;
    update holdfast.workflow w
    set stopped_at = one.stopped_at, reason = one.reason, deadline = one.deadline
    where w.id = one.workflow and w.stopped_at is null and not holdfast.workflow_lives(w.id);
  end loop;
end
$$;

-- take_out: return archived jobs to their previous states. Returns how many.
create or replace function holdfast.take_out(ids uuid[], states text[], reason text, actor text)
returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
  v_out  bigint := 0;
  v_part smallint;
  v_ids  uuid[];
begin
  for v_part in select p.part from holdfast.by_part(holdfast.lock_ended(ids)) p loop
    with removed as (
      delete from holdfast.archive e
      using (
        select x.ctid as in_row, x.part, x.id, u.state
        from unnest(ids, states) u(id, state)
        join holdfast.archive x on x.part = v_part and x.id = u.id and x.part = holdfast.part_of(u.id)
        for update of x skip locked
      ) u
      where e.part = any(array[u.part]) and e.id = u.id and e.ctid = u.in_row
      returning e as job, e.queue, e.kind, e.fingerprint, u.state as was
    ), ended as (
      insert into holdfast.ended
      select e.*
      from removed r
      cross join lateral jsonb_populate_record(r.job, jsonb_build_object('state', r.was, 'reason', take_out.reason)) e
      returning id
    ), counted as (
      insert into holdfast.tally (part, queue, kind, dead, cancelled, archived)
      select v_part, r.queue, r.kind, count(*) filter (where r.was = 'dead'),
             count(*) filter (where r.was = 'cancelled'), -count(*)
      from removed r
      group by r.queue, r.kind
    ), grouped as (
      insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
      select v_part, r.fingerprint, r.kind, r.queue, count(*)
      from removed r
      where r.was = 'dead'
      group by r.fingerprint, r.kind, r.queue
    )
    select array_agg(e.id) into v_ids from ended e;
    continue when v_ids is null;
    v_out := v_out + cardinality(v_ids);
    perform holdfast.note_undone(v_part, v_ids, actor, reason, holdfast.now());
  end loop;
  return v_out;
end
$$;

-- note_undone: record that ended jobs of one part were restored.
create or replace function holdfast.note_undone(part smallint, ids uuid[], actor text, reason text, at timestamptz)
returns void
language sql volatile
as $$
  select holdfast.note_jobs('undone', note_undone.part, array_agg(e.id), array_agg(e.queue), array_agg(e.kind), e.state,
         note_undone.actor, note_undone.reason, note_undone.at)
  from holdfast.ended e
  where e.part = note_undone.part and e.id = any(ids)
  group by e.state
$$;
