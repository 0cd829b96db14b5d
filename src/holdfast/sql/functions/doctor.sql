-- The doctor: what the database can say of its own health, for whoever asks.

-- doctor: one row for each thing looked at. level is ok, warn or fail; why says why it matters, fix what to type.
create or replace function holdfast.doctor()
returns table (name text, level text, what text, why text, fix text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.now();
  p     holdfast.pulse;
begin
  return query
    select 'rights', case when pg_has_role(current_user, 'pg_read_all_stats', 'usage') then 'ok' else 'warn' end,
      case when pg_has_role(current_user, 'pg_read_all_stats', 'usage') then 'sessions of all roles are visible'
        else format('role %s sees its own sessions only', current_user) end,
      'A forgotten transaction of another role keeps finished jobs on disk, and this role could not see it.',
      format('grant pg_read_all_stats to %I;', current_user);

  select x.* into p from holdfast.pulse x;
  return query
    select 'upkeep', case when p.reaped_at > v_now - interval '1 minute' then 'ok' else 'fail' end,
      format('expired leases were last checked %s ago%s', holdfast.span_text(v_now - p.reaped_at),
      coalesce(', by ' || p.leader, '')),
      'Without upkeep, jobs of crashed workers are not reclaimed and schedules do not fire.', 'holdfast upkeep';

  return query
    select 'positions', case when s.pos < s.floor then 'fail' else 'ok' end,
      case when s.pos < s.floor then format('sequence holdfast.pos is at %s, claims start at %s', s.pos, s.floor)
        else format('sequence holdfast.pos is at %s', s.pos) end,
      'After a restore or a logical cut-over without sequences, claims do not find newly enqueued jobs.',
        'select holdfast.upkeep();'
    from (select coalesce(pg_sequence_last_value('holdfast.pos'), 0) as pos, holdfast.highest_floor() as floor) s;

  return query
    select 'autovacuum', case when s.off or t.off is not null then 'fail' else 'ok' end,
      case when s.off then 'autovacuum or track_counts is off'
      when t.off is not null then format('autovacuum is off for %s', t.off) else 'on' end,
      'Finished jobs leave dead rows; without vacuum every claim reads past them.',
      case when s.off then 'alter system set autovacuum = on; alter system set track_counts = on; select '
        'pg_reload_conf();'
        when t.off is not null then format('alter table %s reset (autovacuum_enabled);', split_part(t.off, ', ', 1)) end
    from (select current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off' as off) s
    cross join (
      select string_agg(c.oid::regclass::text, ', ') as off
      from pg_class c
      where c.relnamespace = 'holdfast'::regnamespace
        and c.reloptions && '{autovacuum_enabled=false,autovacuum_enabled=off}'
    ) t;

  return query
    select 'horizon', case when h.name is null then 'ok' when h.held > interval '10 minutes' then 'fail'
      else 'warn' end,
      case when h.name is null then 'no transaction is older than a minute'
        else format('%s %s%s has held it for %s', h.sort, h.name,
          coalesce(' (' || nullif(h.application, '') || ')', ''),
          coalesce(holdfast.span_text(h.held), h.transactions || ' transactions')) end,
      'Vacuum cannot remove jobs that ended after the oldest open transaction began; tables grow until it ends.',
        h.suggestion
    from (select 1) one
    left join lateral (
      select b.* from holdfast.pinned_by() b where b.held > interval '1 minute' or b.held is null
             and b.transactions > 1000000 limit 1) h on true;

  return query
    select 'bloat', case when b.relname is null then 'ok' else 'warn' end,
      case when b.relname is null then format('%s in all tables', (
          select pg_size_pretty(sum(pg_total_relation_size(c.oid))) from pg_class c
            where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'))
        else format('holdfast.%s has %s dead and %s live rows', b.relname, b.n_dead_tup, b.n_live_tup) end,
      'Dead rows cost memory and time in every scan.', case when b.relname is not null
        then format('vacuum (verbose) holdfast.%s;', b.relname) end
    from (select 1) one
    left join lateral (
      select s.relname, s.n_dead_tup, s.n_live_tup from pg_stat_all_tables s
      where s.schemaname = 'holdfast' and s.n_dead_tup > 100000 and s.n_dead_tup > s.n_live_tup
      order by s.n_dead_tup desc limit 1) b on true;

  return query
    select 'kinds', case when k.kinds is null then 'ok' else 'fail' end,
      case when k.kinds is null then 'every kind with waiting jobs has a worker'
      else format('no running worker handles %s', k.kinds) end,
      'Their jobs wait forever, without an error.', 'holdfast worker list'
    from (
      select string_agg(distinct format('%s in %s', w.kind, w.queue), ', ') as kinds
      from holdfast.waiting_kinds(v_now) w
      where w.since < v_now - interval '10 seconds' and not holdfast.is_handled(w.queue, w.kind, v_now)
    ) k;

  return query select s.name, s.level, s.what, s.why, s.fix from holdfast.doctor_of_server() s;
  return query select s.name, s.level, s.what, s.why, s.fix from holdfast.doctor_of_cluster() s;

  return query
    select 'tables', case when t.broken is not null then 'fail' when t.refused > 0 then 'warn' else 'ok' end,
      case when t.broken is not null then split_part(t.broken, '. ', 1)
        when t.refused > 0 then format('%s rows of adopted tables cannot be written', t.refused)
        else format('%s adopted, none changed', t.tables) end,
      'Jobs do not run if their table has changed, or if their row cannot be written.',
      case when t.broken is not null then regexp_replace(t.broken, '^.*: ', '') else 'holdfast anomaly list' end
    from (
      select count(*) as tables,
             (array_agg(p.problem order by a.part) filter (where p.problem is not null))[1] as broken,
             (select count(*) from holdfast.adopted_fault) as refused
      from holdfast.adopted a
      cross join lateral (select holdfast.adopted_problem(a) as problem) p
      where a.live
    ) t;

  return query
    select 'anomalies', case when x.critical > 0 then 'fail' when x.warning > 0 then 'warn' else 'ok' end,
      format('%s critical, %s warnings', x.critical, x.warning), 'Each anomaly shows what to do.',
        'holdfast anomaly list'
    from (
      select count(*) filter (where a.severity = 'critical') as critical,
             count(*) filter (where a.severity = 'warning') as warning
      from holdfast.anomalies a where a.resolved_at is null and not a.muted and a.acked_at is null
    ) x;
end
$$;

-- doctor_of_server: the same, of the server as a whole.
create or replace function holdfast.doctor_of_server()
returns table (name text, level text, what text, why text, fix text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    select 'notifications', case when u.used >= 0.5 then 'fail' else 'ok' end,
      format('the notification queue is %s %% full', round((100 * u.used)::numeric)),
      'When it is full, commits that notify fail.',
        'select pid, application_name, xact_start from pg_stat_activity where state like ''idle in%'' order by '
        'xact_start;'
    from (select pg_notification_queue_usage() as used) u;

  return query
    select 'connections', case when c.used > 0.9 * c.most then 'warn' else 'ok' end,
      format('%s of %s in use', c.used, c.most),
      'A worker without a connection cannot renew its leases.',
      'alter system set max_connections = 200;   -- or a pooler'
    from (select (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as used,
      current_setting('max_connections')::integer as most) c;

  return query
    select 'settings', case when s.bad is null then 'ok' else 'warn' end,
      coalesce(s.bad, 'fsync, full_page_writes and synchronous_commit are on'),
      'A crash may lose an enqueue or ack that was confirmed.',
      'alter system reset fsync; alter system reset full_page_writes; alter system reset synchronous_commit; select '
      'pg_reload_conf();'
    from (
      select string_agg(format('%s is off', g.name), ', ' order by g.name) as bad
      from pg_settings g where g.name in ('fsync', 'full_page_writes', 'synchronous_commit') and g.setting = 'off'
    ) s;

  return query
    select 'timeouts', case when s.lock_free then 'ok' else 'warn' end,
      case when s.lock_free then format('idle transactions end after %s ms', s.idle)
      else 'idle transactions are never ended' end,
      'A forgotten session in a transaction pins the vacuum horizon forever.',
      'alter system set idle_in_transaction_session_timeout = ''10min''; select pg_reload_conf();'
    from (select g.setting <> '0' as lock_free, g.setting as idle from pg_settings g
      where g.name = 'idle_in_transaction_session_timeout') s;

  return query
    select 'wraparound', case when a.age > 1000000000 then 'fail'
      when a.age > 500000000 then 'warn' else 'ok' end, format('%s transactions old', a.age),
      'At two billion the server stops accepting writes.', 'vacuum (freeze) holdfast.job;'
    from (select age(d.datfrozenxid) as age from pg_database d where d.datname = current_database()) a;
end
$$;

-- doctor_of_cluster: the same, of the nodes of a Citus cluster; nothing without one.
create or replace function holdfast.doctor_of_cluster()
returns table (name text, level text, what text, why text, fix text)
language plpgsql
as $$
#variable_conflict use_column
begin
  if holdfast.here() is null then
    return;
  end if;
  return query
    select 'nodes', case when n.nodes is null and n.placed = 0 then 'ok' when n.silent is not null then 'fail'
        when n.strays > 0 then 'warn' else 'ok' end,
      case when n.nodes is null then 'Holdfast is on the coordinator only'
        when n.silent is not null then format('node %s does not answer: %s', n.silent, n.problem)
        when n.strays > 0 then format('%s waiting jobs are not on the node where their queue lives', n.strays)
        else format('%s nodes, %s queues placed', n.nodes, n.placed) end,
      'Jobs of queues on a node that does not answer neither start nor can be enqueued; strays wait for upkeep.',
      case when n.silent is not null then 'holdfast migrate --shard'
        when n.strays > 0 then 'HOLDFAST_URL=$(holdfast node url 0) holdfast upkeep' end
    from (
      select case when exists (select from holdfast.node_tables()) then count(*) end as nodes,
             (select count(*) from holdfast.queue q where q.node is not null) as placed,
             (array_agg(x.node order by x.node) filter (where x.problem is not null))[1] as silent,
             (array_agg(x.problem order by x.node) filter (where x.problem is not null))[1] as problem,
             sum(x.strays) as strays
      from holdfast.nodes() x
    ) n;
end
$$;
