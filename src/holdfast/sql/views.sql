-- The public views. Columns are only added, at the end.

-- own_jobs: the jobs of Holdfast's own tables.
create or replace view holdfast.own_jobs as
select
  j.id, j.queue, j.kind, case when j.token is null then 'queued' else 'leased' end as state,
  j.priority, j.attempt, j.max_attempts, j.run_at, j.created_at, j.lease_until, j.worker,
  j.key, j.lane, j.tenant, j.subject, j.headers, j.payload, j.error, null::text as fingerprint,
  j.reason, null::jsonb as result, null::timestamptz as ended_at, j.lease_for as lease, j.part,
  -- what the holder of now said, not one before it
  case when j.token is not null and j.progress -> 'attempt' = to_jsonb(j.attempt) then j.progress end as progress,
  -- over all its lives: a retry counts from 0 again
  coalesce(j.attempts_before, 0) + j.attempt as total_attempts, j.expires_at,
  case when j.link is not null then holdfast.workflow_of_link(j.link) end as workflow
from holdfast.job j
union all
select
  e.id, e.queue, e.kind, e.state,
  e.priority, e.attempt, e.max_attempts, e.run_at, e.created_at, null, e.worker,
  e.key, e.lane, e.tenant, e.subject, e.headers, e.payload, e.error, e.fingerprint,
  e.reason, e.result, e.ended_at, e.lease_for, e.part, null, coalesce(e.attempts_before, 0) + e.attempt,
  e.expires_at, case when e.link is not null then holdfast.workflow_of_link(e.link) end
from holdfast.ended e;

-- adopted_rows: rows of an adopted table as jobs, without the tokens of their leases; which rows, as for
-- adopted_jobs. Columns that such a table cannot have are null.
create or replace function holdfast.adopted_rows(
  part smallint, ids uuid[] default null, before uuid default null, most integer default null)
returns setof holdfast.own_jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.id, r.queue, r.kind, r.state, r.priority, r.attempt, r.max_attempts, r.run_at, r.created_at, r.lease_until,
         r.worker, null::text as key, r.lane, r.tenant, r.subject, null::jsonb as headers, r.payload, r.error,
         r.fingerprint, r.reason, null::jsonb as result, r.ended_at, null::interval as lease, adopted_rows.part,
         null::jsonb as progress, r.total_attempts, null::timestamptz as expires_at, null::uuid as workflow
  from holdfast.adopted_jobs(adopted_rows.part, ids, before, most) r
$$;

-- jobs: those, and the rows of adopted tables. The view does not depend on such a table, so that it can be dropped.
create or replace view holdfast.jobs as
select j.* from holdfast.own_jobs j
union all
select r.* from holdfast.adopted a cross join lateral holdfast.adopted_rows(a.part) r where a.live;

-- depth: counters, so that the cost of reading does not depend on the number of jobs.
create or replace view holdfast.depth as
select c.queue, c.kind, s.state, sum(s.jobs)::bigint as jobs
from (
  select t.queue, t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.total t
  union all
  select t.queue, t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.tally t
) c
cross join lateral (values
  ('queued', c.queued), ('leased', c.leased), ('dead', c.dead),
  ('done', c.done), ('cancelled', c.cancelled), ('archived', c.archived)) s(state, jobs)
group by c.queue, c.kind, s.state;

create or replace view holdfast.queues as
select
  n.name as queue, holdfast.queue_part(n.name) as part,
  coalesce(q.max_attempts, d.max_attempts) as max_attempts, coalesce(q.lease, d.lease) as lease,
  coalesce(q.keep_done, d.keep_done) as keep_done, coalesce(q.payload_limit, d.payload_limit) as payload_limit,
  coalesce(q.backoff, d.backoff) as backoff, coalesce(q.backoff_cap, d.backoff_cap) as backoff_cap,
  q.lease_limit as "limit", q.rate_limit, q.rate_period, coalesce(q.fair, d.fair) as fair,
  coalesce(q.by_kind, d.by_kind) as by_kind, coalesce(q.lane_limit, d.lane_limit) as lane_limit,
  coalesce(q.lane_on_failure, d.lane_on_failure) as lane_on_failure, coalesce(q.fanout, d.fanout) as fanout,
  case when p.paused then q.paused_at end as paused_at, case when p.paused then q.paused_by end as paused_by,
  case when p.paused then q.paused_reason end as paused_reason, case
  when p.paused then q.paused_until end as paused_until,
  n.queued, n.leased, n.dead, n.done, n.cancelled, n.archived,
  case when o.since is not null then greatest(holdfast.now() - o.since, '0') end as oldest,
  n.reconciled, coalesce(q.activity, d.activity) as activity,
  coalesce(q.keep_activity, d.keep_activity) as keep_activity,
  n.enqueued, n.failed, q.archive_dead, q.archive_done, coalesce(q.keep_recent, d.keep_recent) as keep_recent
from (
  select c.name, sum(c.queued)::bigint as queued, sum(c.leased)::bigint as leased, sum(c.dead)::bigint as dead,
         sum(c.done)::bigint as done, sum(c.cancelled)::bigint as cancelled, sum(c.archived)::bigint as archived,
         sum(c.reconciled)::bigint as reconciled, sum(c.enqueued)::bigint as enqueued, sum(c.failed)::bigint as failed
  from (
    select t.queue as name, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived, t.reconciled, t.enqueued,
           t.failed from holdfast.total t
    union all
    select t.queue, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived, t.reconciled, t.enqueued, t.failed
      from holdfast.tally t
    union all
    select q.name, 0, 0, 0, 0, 0, 0, 0, 0, 0 from holdfast.queue q
  ) c
  group by c.name
) n
left join holdfast.queue q on q.name = n.name
cross join holdfast.unset_queue(null) d
cross join lateral (
  select q.paused_at is not null and (q.paused_until is null or q.paused_until > holdfast.now()) as paused) p
cross join lateral (select holdfast.oldest(n.name) as since) o;

-- workflows: how they are doing is asked of their jobs, until somebody has noted how they ended.
create or replace view holdfast.workflows as
select
  w.id, w.name, w.key, coalesce(w.state, holdfast.workflow_state(w.id)) as state, w.created_at, w.created_by,
  w.deadline, coalesce(w.ended_at, holdfast.workflow_ended_at(w.id)) as ended_at, w.reason, w.parent,
  coalesce(w.jobs, holdfast.workflow_counts(w.id)) as jobs, w.ended_at is null as unsettled
from holdfast.workflow w;

create or replace view holdfast.dead_groups as
select g.fingerprint, g.kind, g.queue, l.error, g.jobs, f.ended_at as first_at, l.ended_at as last_at
from (
  select t.fingerprint, t.kind, t.queue, sum(t.jobs)::bigint as jobs
  from holdfast.dead_tally t
  group by t.fingerprint, t.kind, t.queue
  having sum(t.jobs) > 0
) g
left join lateral (
  select d.ended_at from holdfast.dead d
  where d.fingerprint = g.fingerprint and d.kind = g.kind and d.queue = g.queue
  order by d.ended_at limit 1
) f on true
left join lateral (
  select d.ended_at, d.error from holdfast.dead d
  where d.fingerprint = g.fingerprint and d.kind = g.kind and d.queue = g.queue
  order by d.ended_at desc limit 1
) l on true;

-- dead_ages: how long ago a queue's oldest dead job died; one index lookup per queue that has any.
create or replace view holdfast.dead_ages as
with recursive oldest as (
  (select d.queue, d.ended_at from holdfast.dead d order by d.queue, d.ended_at limit 1)
  union all
  select n.queue, n.ended_at
  from oldest o
  cross join lateral (
    select d.queue, d.ended_at from holdfast.dead d where d.queue > o.queue order by d.queue, d.ended_at limit 1
  ) n
)
select o.queue, greatest(holdfast.now() - o.ended_at, '0') as oldest from oldest o;

create or replace view holdfast.workers as
select
  w.name as worker, w.seen_at > holdfast.now() - interval '1 minute' as alive, w.seen_at, w.started_at,
  w.host, w.pid, w.version, w.python, w.queues, w.kinds, w.slots, w.busy, w.rss, w.loop_lag,
  w.claimed, w.acked, w.failed, w.lost, w.stop_at, w.stop_by, w.busy_time, w.claimed_at, w.acked_at, w.claims, w.skew,
    w.listens
from holdfast.worker w;

-- schedules: next_at is null while no slot is planned, and if there will be none.
create or replace view holdfast.schedules as
select
  s.name,
  case when s.withdrawn_at is not null then 'withdrawn' when s.paused_at is not null then 'paused'
  else 'active' end as state,
  s.kind, s.queue, s.cron, s.every, s.anchor, s.tz, s.missed, s.overlap, s.payload, s.options,
  case when isfinite(s.next_at) then s.next_at end as next_at, s.last_at, s.last_job, s.fired, s.skipped, s.problem,
  s.paused_at, s.paused_by, s.paused_reason, s.owner, s.withdrawn_at, s.declared, s.edited,
  s.created_at, s.updated_at, s.updated_by
from holdfast.schedule s;

-- schedule_slots: the outcome of each slot; the newest thousand of every schedule.
create or replace view holdfast.schedule_slots as
select x.name, x.slot, x.outcome, x.job, x.at
from holdfast.schedule_slot x;

-- kinds: what workers declared about their kinds; about has queue, doc, schema and other fields.
create or replace view holdfast.kinds as
select k.name as kind, k.done_when, k.about, k.declared_at
from holdfast.kind k;

-- lanes: those that are in use or have settings. waiting is counted up to 1000; oldest is how long the first waits.
create or replace view holdfast.lanes as
select
  l.queue, l.name as lane, coalesce(l.lane_limit, q.lane_limit, d.lane_limit) as "limit",
  coalesce(l.on_failure, q.lane_on_failure, d.lane_on_failure) as on_failure, l.rate_limit, l.rate_period, l.halted_by,
  h.job, h.worker, h.lease_until, h.running, w.waiting, w.oldest
from holdfast.lane l
left join holdfast.queue q on q.name = l.queue
cross join holdfast.unset_queue(null) d
cross join lateral (
  select (array_agg(j.id order by j.lane_seq))[1] as job, (array_agg(j.worker order by j.lane_seq))[1] as worker,
         (array_agg(j.lease_until order by j.lane_seq))[1] as lease_until, count(*)::integer as running
  from (
    select x.id, x.worker, x.lease_until, x.lane_seq
    from holdfast.job x
    where x.part = l.part and x.queue = l.queue and x.lane = l.name and x.held
    union all
    select g.id, g.worker, g.until, g.lane_seq
    from holdfast.leaving g
    where g.part = l.part and g.queue = l.queue and g.lane = l.name
  ) j
) h
cross join lateral (
  select count(*)::integer as waiting, greatest(holdfast.now() - min(x.run_at), '0') as oldest
  from (
    select j.run_at
    from holdfast.job j
    where j.part = l.part and j.queue = l.queue and j.lane = l.name and j.lane_seq is not null and j.token is null
    order by j.lane_seq
    limit 1000
  ) x
) w;

-- events: the activity log. detail has further facts; jobs is how many jobs the event is about, 0 for other actions.
create or replace view holdfast.events as
select e.seq, e.at, e.event, e.job, e.queue, e.kind, e.state, e.attempt, e.jobs, e.worker, e.actor, e.reason, e.detail
from holdfast.event e;

-- strikes: rules that keep jobs from running, and whether they are in force.
create or replace view holdfast.strikes as
select
  s.number, s.mode, s.queue, s.kind, s.payload, s.reason, s.actor, s.created_at,
  case when isfinite(s.expires_at) then s.expires_at end as expires_at,
  s.ended_at is null and s.expires_at > holdfast.now() as in_force, s.ended_at, s.ended_by,
  (select count(*) from (select from holdfast.job j where j.strike = s.number limit 10000) h) as held
from holdfast.strike s;

-- api_tokens: who may call the server; without the hashes.
create or replace view holdfast.api_tokens as
select t.id, t.sort, t.name, t.scopes, t.queues, t.created_at, t.created_by, t.expires_at, t.used_at, t.revoked_at,
       t.revoked_by
from holdfast.api_token t;

-- operations: verbs applied to many jobs, and their progress.
create or replace view holdfast.operations as
select
  o.id, o.state, o.verb, o.filter, o.arguments, o.most, o.as_of, o.total, o.capped, o.rate, o.reason, o.actor,
  o.seen, o.changed, o.created_at, o.started_at, o.ended_at, o.ended_by, o.problem, o.undoable,
  o.token
from holdfast.operation o;

-- detector_catalogue: the built-in detectors, with severity, interval and default thresholds. Those that are off
-- detect things that are normal in many systems.
create or replace view holdfast.detector_catalogue (code, severity, every, enabled, thresholds, about) as
  values
    ('no_worker', 'critical', interval '10 seconds', true, jsonb '{"seconds": 60}',
    'jobs of a kind wait and no running worker handles it'),
    ('unreadable', 'critical', '10 seconds', true, '{"seconds": 30}',
    'jobs of a kind have arguments that no running worker can read'),
    ('late', 'warning', '10 seconds', true, '{"seconds": 300}',
    'the oldest ready job of a queue waits longer than its target; critical at ten times that'),
    ('failure_jump', 'warning', '30 seconds', true, '{"share": 0.1, "times": 3, "attempts": 20, "seconds": 600}',
    'attempts fail far more often than in the previous day'),
    ('lease_lost_burst', 'warning', '10 seconds', true, '{"leases": 10, "seconds": 300}', 'many leases expired'),
    ('lease_stolen', 'critical', '10 seconds', true, '{"seconds": 300}',
    'a lease expired although its worker is running: the job may have run twice'),
    ('flapping_job', 'warning', '10 seconds', true, '{"share": 0.8, "attempts": 4}',
    'a job has failed most of its attempts'),
    ('last_attempt', 'info', '10 seconds', true, '{"left": 1, "seconds": 300}',
    'jobs of a kind have one attempt left, or none'),
    ('job_died', 'warning', '10 seconds', true, '{"jobs": 1, "seconds": 300}', 'jobs died'),
    ('zombie_job', 'critical', '10 seconds', true, '{"times": 2}',
    'a lease expired long ago and was not reclaimed'),
    ('retry_storm', 'warning', '10 seconds', true, '{"jobs": 500, "seconds": 60}',
    'more failed jobs are due together than the queue finishes in that time'),
    ('lane_held', 'warning', '10 seconds', true, '{"seconds": 600}',
    'a job has held its lane for long while others wait'),
    ('lane_halted', 'critical', '10 seconds', true, '{}', 'a lane is halted by a dead job while others wait'),
    ('schedule_missed', 'critical', '10 seconds', true, '{"seconds": 60}',
    'a slot of a schedule was due but not fired, or created no job'),
    ('schedule_overlap', 'warning', '10 seconds', true, '{"seconds": 600}',
    'a slot was due while the previous job was still queued or running'),
    ('upkeep_failing', 'critical', '10 seconds', true, '{"times": 3}',
    'a step of upkeep fails again and again, for all queues or for one'),
    ('worker_lost', 'warning', '10 seconds', true, '{"seconds": 60}', 'a busy worker stopped sending heartbeats'),
    ('version_skew', 'info', '1 minute', true, '{"seconds": 3600}', 'workers have run different versions for long'),
    ('clock_skew', 'warning', '30 seconds', true, '{"seconds": 1}', 'the clock of a worker is wrong'),
    ('listen_down', 'info', '30 seconds', true, '{}', 'notifications do not reach a worker, so it polls'),
    ('notify_backlog', 'critical', '30 seconds', true, '{"share": 0.5}',
    'the notification queue of the server is filling up'),
    ('horizon_pinned', 'warning', '10 seconds', true, '{"seconds": 300, "transactions": 1000000}',
    'an old transaction keeps vacuum from removing finished jobs; critical at ten times that'),
    ('bloat', 'warning', '1 minute', true, '{"rows": 500000, "share": 0.5}', 'dead rows pile up in a hot table'),
    ('counters_drift', 'warning', '30 seconds', true, '{"rows": 10000}', 'counters disagree with the jobs'),
    ('table_broken', 'critical', '10 seconds', true, '{}', 'an adopted table is gone or has changed'),
    ('row_refused', 'warning', '10 seconds', true, '{}', 'a row of an adopted table cannot be written'),
    ('paused_long', 'info', '1 minute', true, '{"seconds": 86400}',
    'a queue has been paused for long while jobs wait'),
    ('payload_near_limit', 'warning', '30 seconds', true, '{"share": 0.8}',
    'payloads are close to the limit of their queue'),
    ('bulk_delete', 'info', '10 seconds', true, '{"jobs": 5, "seconds": 300}', 'many jobs were deleted at once'),
    ('bulk_move', 'info', '10 seconds', true, '{"jobs": 5, "seconds": 300}', 'many jobs were moved at once'),
    ('queue_cleared', 'warning', '10 seconds', true, '{"jobs": 5, "seconds": 300}',
    'all waiting jobs of a queue were deleted or cancelled'),
    ('bulk_enqueue', 'info', '10 seconds', false, '{"jobs": 5, "seconds": 300}', 'many jobs were enqueued at once'),
    ('burst_claims', 'info', '10 seconds', false, '{"jobs": 50, "seconds": 10}',
    'a worker claimed many jobs in a moment'),
    ('flash_job', 'info', '10 seconds', false, '{"seconds": 0.5}',
    'jobs were acked instantly: did the handler do anything?'),
    ('large_payload', 'info', '30 seconds', false, '{"bytes": 5000}', 'payloads are large'),
    ('long_running', 'info', '10 seconds', false, '{"seconds": 10}', 'jobs have been running for long');

-- anomalies: current problems, and those of the last week.
create or replace view holdfast.anomalies as
select
  a.handle as id, a.code, a.severity, a.queue, a.subject, a.title, a.detail, a.suggestion, a.evidence, a.since,
  a.raised_at, a.seen_at,
  a.times, a.resolved_at, a.acked_at, a.acked_by, a.note, exists (
    select from holdfast.mute m
    where m.code = a.code and m.queue in ('', a.queue) and m.subject in ('', a.subject)
      and (m.until is null or m.until > holdfast.now())) as muted
from holdfast.anomaly a;

-- detectors: all detectors, their thresholds, and the result of their last run. For those not built in, only the last
-- run is known.
create or replace view holdfast.detectors as
select
  coalesce(d.code, r.code) as code, coalesce(s.enabled, d.enabled, true) as enabled, d.severity, d.every,
  coalesce(d.thresholds, '{}') || coalesce(s.thresholds, '{}') as thresholds, d.about,
  (select jsonb_object_agg(q.queue, q.thresholds || case when q.enabled is null then '{}'
    else jsonb_build_object('enabled', q.enabled) end)
   from holdfast.detector_setting q where q.code = d.code and q.queue <> '') as queues,
  r.run_at, r.took, r.problem
from holdfast.detector_catalogue d
full join holdfast.detector_run r on r.code = d.code
left join holdfast.detector_setting s on s.code = d.code and s.queue = '';

-- mutes: detectors that do not notify; '' means all.
create or replace view holdfast.mutes as
select m.code, m.queue, m.subject, m.until, m.muted_at, m.muted_by, m.reason
from holdfast.mute m
where m.until is null or m.until > holdfast.now();

-- webhooks: where anomalies are sent; without the secrets.
create or replace view holdfast.webhooks as
select w.name, w.url, w.severity, w.codes, w.queues, w.created_at, w.created_by
from holdfast.webhook w;
