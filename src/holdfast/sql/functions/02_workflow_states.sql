-- What the view of workflows stands on: how a workflow is doing, asked of its jobs.

-- workflow_lives: whether a job of a workflow has not ended. The last ones are asked first: they end last. One without
-- jobs lives for an hour, so that whoever has started it can add the first.
create or replace function holdfast.workflow_lives(id uuid)
returns boolean
language sql stable
as $$
  select exists (
    select from (
      select m.state from holdfast.member m where m.workflow = workflow_lives.id order by m.nth desc) m
    where m.state is null
  ) or exists (
    select from holdfast.workflow w
    where w.id = workflow_lives.id and w.ended_at is null and w.stopped_at is null
      and w.created_at > holdfast.now() - interval '1 hour'
      and not exists (select from holdfast.member m where m.workflow = w.id))
$$;

-- goes_on: whether a live job runs, or will by itself: it waits for no job and no event.
create or replace function holdfast.goes_on(id uuid)
returns table (goes_on boolean)
language sql stable
as $$
  select j.waits is null and (j.token is not null or j.steps is null or not exists (
    select from holdfast.step s where s.part = j.part and s.id = j.id and s.ended_at is null))
  from holdfast.job j
  where j.part = holdfast.part_of(goes_on.id) and j.id = goes_on.id
  limit 1
$$;

-- workflow_state: running; waiting, if nothing goes on before a person or an event comes; done, failed, cancelled. A
-- job that failed and whose followers in the workflow all run anyway is as good as done.
create or replace function holdfast.workflow_state(id uuid)
returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select case
    when holdfast.workflow_lives(workflow_state.id) then case
      when exists (
        select
        from holdfast.member m
        cross join lateral holdfast.goes_on(m.id) g
        where m.workflow = workflow_state.id and m.state is null and g.goes_on
      ) or exists (
        -- those that were moved, which is seldom and takes longer
        select
        from holdfast.member m
        cross join lateral holdfast.goes_on(holdfast.locate(m.id)) g
        where m.workflow = workflow_state.id and m.state is null and g.goes_on
          and not exists (select from holdfast.job j where j.part = holdfast.part_of(m.id) and j.id = m.id)
      ) then 'running' else 'waiting' end
    else coalesce((
      select case when bool_or(m.state = 'dead') then 'failed' else 'cancelled' end
      from holdfast.member m
      where m.workflow = workflow_state.id and m.state <> 'done' and not exists (
        select
        from holdfast.link l
        join holdfast.member f on f.part = any(array[holdfast.part_of(l.follower)]) and f.id = l.follower
        where l.part = holdfast.part_of(m.id) and l.parent = m.id and f.workflow = m.workflow
        having count(*) > 0 and bool_and(l.if_failed = 'run'))
      having count(*) > 0), (
      select 'cancelled' from holdfast.workflow w
      where w.id = workflow_state.id and w.stopped_at is not null
        and not exists (select from holdfast.member m where m.workflow = w.id)), 'done')
  end
$$;

-- workflow_counts: how many jobs of a workflow are in which state; waiting is for other jobs, an event, or a time.
create or replace function holdfast.workflow_counts(id uuid)
returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_build_object('total', count(*), 'waiting', count(*) filter (where m.state = 'waiting'),
    'queued', count(*) filter (where m.state = 'queued'), 'leased', count(*) filter (where m.state = 'leased'),
    'done', count(*) filter (where m.state = 'done'), 'dead', count(*) filter (where m.state = 'dead'),
    'cancelled', count(*) filter (where m.state = 'cancelled'))
  from holdfast.workflow_members(workflow_counts.id) m
$$;

-- workflow_members: the jobs of a workflow as they are now, in the order in which they were added.
create or replace function holdfast.workflow_members(workflow uuid, past bigint default 0)
returns table (
  id uuid, link uuid, nth bigint, queue text, kind text, state text, fold bigint, after bigint[], if_failed text,
  parent uuid, attempt smallint, created_at timestamptz, began_at timestamptz, ended_at timestamptz)
language sql stable
as $$
  select coalesce(j.id, m.id), m.id, m.nth, coalesce(j.queue, m.queue), m.kind, case
      when m.state is null then case
        when j.token is not null then 'leased'
        when j.waits is not null or j.pos is null then 'waiting'
        else 'queued' end
      when m.state in ('done', 'dead') then m.state
      else 'cancelled' end,
    m.fold, m.after, m.if_failed, m.parent, j.attempt, m.created_at,
    coalesce(m.began_at, case when j.token is not null then (
      select max(l.claimed_at) from holdfast.lease l where l.token = j.token) end), m.ended_at
  from holdfast.member m
  left join lateral (
    select x.id, x.queue, x.token, x.waits, x.pos, x.attempt
    from holdfast.job x
    where m.state is null and x.part = holdfast.part_of(m.id) and x.id = m.id
    union all
    select x.id, x.queue, x.token, x.waits, x.pos, x.attempt
    from holdfast.job x
    cross join lateral (select holdfast.locate(m.id) as id) l
    where m.state is null and l.id <> m.id and x.part = holdfast.part_of(l.id) and x.id = l.id
    limit 1
  ) j on true
  where m.workflow = workflow_members.workflow and m.nth > past
  order by m.nth
$$;

-- workflow_ended_at: when the last job of a workflow ended; null if it lives.
create or replace function holdfast.workflow_ended_at(id uuid)
returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select max(m.ended_at) from holdfast.member m
  where m.workflow = workflow_ended_at.id and not holdfast.workflow_lives(workflow_ended_at.id)
$$;

-- workflow_of_link: the workflow of a job, by its link.
create or replace function holdfast.workflow_of_link(link uuid)
returns uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select m.workflow from holdfast.member m
  where m.part = holdfast.part_of(workflow_of_link.link) and m.id = workflow_of_link.link
$$;

-- workflow_within: whether all jobs of a workflow are in these queues; null: in any. One without jobs is in none.
create or replace function holdfast.workflow_within(id uuid, queues text[])
returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select queues is null or exists (select from holdfast.member m where m.workflow = workflow_within.id)
    and not exists (
      select from holdfast.member m where m.workflow = workflow_within.id and m.queue <> all(queues))
$$;
