-- Anomalies: problems that detectors find. A detector is one function that returns findings and reads a limited
-- number of rows, no matter how many jobs there are. This file runs them, compares findings with known anomalies, and
-- delivers notifications.

-- detect: run the detectors that are due, or those named. Returns what changed: an anomaly was raised, worsened or
-- resolved; or failed, with the code of a detector that failed. Several callers at once do the work only once.
create or replace function holdfast.detect(codes text[] default null)
returns table (id text, code text, change text, severity text, queue text, subject text, title text, muted boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.now();
  v_start  timestamptz;
  v_found  holdfast.finding[];
  detector record;
begin
  if not holdfast.take_turn('detect') then
    return;
  end if;
  select c into detector from unnest(codes) c
  where not exists (select from holdfast.detector_catalogue d where d.code = c) limit 1;
  if found then
    perform holdfast.unknown_detector(detector.c);
  end if;
  if detect.codes is null then
    update holdfast.chore c set at = v_now where c.name = 'detected';
  end if;
  perform holdfast.take_readings(v_now);
  for detector in
    select d.code
    from holdfast.detector_catalogue d
    left join holdfast.detector_run r on r.code = d.code
    where (detect.codes is null or d.code = any(detect.codes))
      and (detect.codes is not null or r.run_at is null or r.run_at > v_now or r.run_at + d.every <= v_now)
    order by d.code
  loop
    v_start := clock_timestamp();
    begin
      v_found := '{}';
      if holdfast.looks_anywhere(detector.code) then
        execute format('select coalesce(array_agg(f), ''{}'') from (select f from holdfast.%I($1) f limit 100) x',
          'detect_' || detector.code)
        into v_found using v_now;
      end if;
      return query
        select c.id, detector.code, c.change, c.severity, c.queue, c.subject, c.title, c.muted
        from holdfast.note_findings(detector.code, v_found, v_now) c;
      insert into holdfast.detector_run as r (code, run_at, took)
        values (detector.code, v_now, clock_timestamp() - v_start)
      on conflict (code) do update set run_at = excluded.run_at, took = excluded.took, problem = null;
    exception when others then
      if sqlstate like any ('{25%,57%,53%}') then
        raise;
      end if;
      insert into holdfast.detector_run as r (code, run_at, problem)
        values (detector.code, v_now, format('%s: %s', sqlstate, sqlerrm))
      on conflict (code) do update set run_at = excluded.run_at, took = null, problem = excluded.problem;
      return query select null::text, detector.code, 'failed', 'warning', null::text, '',
        format('%s: %s', sqlstate, sqlerrm), false;
    end;
  end loop;
  perform holdfast.tidy_anomalies(v_now);
end
$$;

-- detector_due: whether a user's own detector should run now: true for one caller in each span of every.
create or replace function holdfast.detector_due(code text, every interval default '1 minute')
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.now();
begin
  perform holdfast.named('code', detector_due.code, 60);
  perform holdfast.check_length('every', detector_due.every, '1 day');
  insert into holdfast.detector_run as r (code, run_at) values (detector_due.code, v_now)
  on conflict (code) do update set run_at = v_now
  where r.run_at <= v_now - detector_due.every or r.run_at > v_now;
  return found;
end
$$;

-- report: everything that a user's own detector finds now. Anomalies that it no longer reports are resolved.
-- findings: [{"title", "queue", "subject", "severity", "since", "detail", "suggestion", "evidence"}].
create or replace function holdfast.report(code text, findings jsonb)
returns table (id text, change text, severity text, queue text, subject text, title text, muted boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_known constant text[] := '{title,queue,subject,severity,since,detail,suggestion,evidence}';
  v_bad   record;
  v_found holdfast.finding[];
begin
  perform holdfast.named('code', report.code, 60);
  if exists (select from holdfast.detector_catalogue d where d.code = report.code) then
    perform holdfast.refuse('HF219', format('detector %L is built in', report.code), null,
      'Give your own detector another name.');
  end if;
  if findings is null or jsonb_typeof(findings) <> 'array' or jsonb_array_length(findings) > 100 then
    perform holdfast.refuse('HF219', 'findings must be a JSON array of at most 100 objects', null,
      'For example [{"title": "Refunds pile up"}].');
  end if;
  select i.item, i.ord into v_bad
  from jsonb_array_elements(findings) with ordinality i(item, ord)
  where jsonb_typeof(i.item) <> 'object' or coalesce(jsonb_typeof(i.item -> 'title'), '') <> 'string'
     or i.item - v_known <> '{}' or not coalesce(i.item ->> 'severity', 'warning') in ('info', 'warning', 'critical')
     or coalesce(jsonb_typeof(i.item -> 'evidence'), 'object') not in ('object', 'null')
     or pg_column_size(i.item) > 20000 or not holdfast.is_time(coalesce(i.item ->> 'since', 'now'))
  limit 1;
  if found then
    perform holdfast.refuse('HF219', format('finding %s is not valid: %s', v_bad.ord, holdfast.told(v_bad.item, 200)),
      null,
      'Fields are: ' || array_to_string(v_known, ', ') || '. title is a text, severity is info, warning or critical.');
  end if;
  perform holdfast.check_value(format('finding %s', i.ord), i.item, 40000)
  from jsonb_array_elements(findings) with ordinality i(item, ord);
  select coalesce(array_agg(row(i.item ->> 'queue', coalesce(i.item ->> 'subject', ''),
         coalesce(i.item ->> 'severity', 'warning'),
    coalesce((i.item ->> 'since')::timestamptz, v_now), i.item ->> 'title', i.item ->> 'detail',
      i.item ->> 'suggestion',
    coalesce(nullif(i.item -> 'evidence', 'null'), '{}'))::holdfast.finding), '{}')
  into v_found
  from jsonb_array_elements(findings) i(item);
  insert into holdfast.detector_run as r (code, run_at) values (report.code, v_now)
  on conflict (code) do update set run_at = excluded.run_at, problem = null;
  return query
    select c.id, c.change, c.severity, c.queue, c.subject, c.title, c.muted
    from holdfast.note_findings(report.code, v_found, v_now) c;
end
$$;

-- note_findings: compare what a detector finds now with what it found before. If a problem comes back within ten
-- minutes, the same anomaly continues, without a second notification.
create or replace function holdfast.note_findings(code text, findings holdfast.finding[], at timestamptz)
returns table (id text, change text, severity text, queue text, subject text, title text, muted boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  told record;
begin
  for told in
    with found as materialized (
      select distinct on (coalesce(f.queue, ''), coalesce(f.subject, ''))
             f.queue, left(coalesce(f.subject, ''), 300) as subject, f.severity,
               least(coalesce(f.since, at), at) as since,
             left(f.title, 300) as title, left(f.detail, 2000) as detail, left(f.suggestion, 2000) as suggestion,
             coalesce(f.evidence, '{}') as evidence
      from unnest(findings) f
      order by coalesce(f.queue, ''), coalesce(f.subject, ''), f.severity
    ), known as materialized (
      select distinct on (f.queue, f.subject) a.handle, a.severity as was, a.resolved_at, f.*
      from found f
      join holdfast.anomaly a on a.code = note_findings.code and coalesce(a.queue, '') = coalesce(f.queue, '')
        and a.subject = f.subject
        and (a.resolved_at is null or a.resolved_at > at - interval '10 minutes')
      order by f.queue, f.subject, a.resolved_at desc nulls first
    ), seen as (
      update holdfast.anomaly a
      set severity = k.severity, title = k.title, detail = k.detail, suggestion = k.suggestion, evidence = k.evidence,
          since = least(a.since, k.since), seen_at = at, resolved_at = null,
            times = a.times + (a.resolved_at is not null)::integer,
          acked_at = case when holdfast.gravity(k.severity) <= holdfast.gravity(k.was) then a.acked_at end,
          acked_by = case when holdfast.gravity(k.severity) <= holdfast.gravity(k.was) then a.acked_by end
      from known k
      where a.handle = k.handle
      returning a.handle, a.queue, a.subject, a.severity, a.title, k.was
    ), raised as (
      insert into holdfast.anomaly (handle, code, queue, subject, severity, title, detail, suggestion, evidence, since,
        raised_at, seen_at)
      select left(md5(note_findings.code || E'\n' || coalesce(f.queue, '') || E'\n' || f.subject || E'\n' || at::text),
             8),
             note_findings.code, f.queue, f.subject, f.severity, f.title, f.detail, f.suggestion, f.evidence, f.since,
               at, at
      from found f
      where not exists (select from known k where k.queue is not distinct from f.queue and k.subject = f.subject)
      returning handle, queue, subject, severity, title
    ), resolved as (
      update holdfast.anomaly a
      set resolved_at = at
      where a.code = note_findings.code and a.resolved_at is null
        and not exists (select from found f where f.queue is not distinct from a.queue and f.subject = a.subject)
      returning a.handle, a.queue, a.subject, a.severity, a.title
    )
    select r.handle, 'raised' as change, r.severity, r.queue, r.subject, r.title from raised r
    union all
    select s.handle, 'worsened', s.severity, s.queue, s.subject, s.title from seen s
    where holdfast.gravity(s.severity) > holdfast.gravity(s.was)
    union all
    select r.handle, 'resolved', r.severity, r.queue, r.subject, r.title from resolved r
  loop
    id := told.handle;
    change := told.change;
    severity := told.severity;
    queue := told.queue;
    subject := told.subject;
    title := told.title;
    muted := holdfast.is_muted(note_findings.code, told.queue, told.subject, at);
    if not muted then
      perform holdfast.deliver(told.handle, told.change, at);
    end if;
    return next;
  end loop;
end
$$;

create or replace function holdfast.is_muted(code text, queue text, subject text, at timestamptz)
returns boolean
language sql stable
as $$
  select exists (
    select from holdfast.mute m
    where m.code = is_muted.code and m.queue in ('', is_muted.queue) and m.subject in ('', is_muted.subject)
      and (m.until is null or m.until > at))
$$;

-- deliver: one job for each matching webhook. Problems with these jobs themselves are only logged. Stored here and
-- not by enqueue, which refuses this queue.
create or replace function holdfast.deliver(handle text, change text, at timestamptz)
returns void
language plpgsql
as $$
declare
  v_part constant smallint := holdfast.queue_part('holdfast.alerts');
  v_ids  uuid[];
begin
  with stored as (
    insert into holdfast.job (part, id, queue, kind, run_at, created_at, max_attempts, lease_for, subject, tenant,
      by_kind, payload)
    select v_part, holdfast.id_in(v_part), 'holdfast.alerts', 'holdfast.webhook', deliver.at, deliver.at, 12,
           '60 seconds', a.id,
           case when q.fair then '' end, coalesce(q.by_kind, false),
           jsonb_build_object('webhook', w.name, 'event', 'anomaly.' || change, 'at', deliver.at, 'anomaly',
             to_jsonb(a))
    from holdfast.anomalies a
    join holdfast.webhook w on holdfast.gravity(a.severity) >= holdfast.gravity(w.severity)
      and (w.codes is null or a.code = any(w.codes)) and (w.queues is null or a.queue = any(w.queues))
    left join holdfast.queue q on q.name = 'holdfast.alerts'
    where a.id = deliver.handle and a.queue is distinct from 'holdfast.alerts'
    returning id
  )
  select array_agg(s.id) into v_ids from stored s;
  if v_ids is not null then
    insert into holdfast.tally (part, queue, kind, queued, enqueued)
    values (v_part, 'holdfast.alerts', 'holdfast.webhook', cardinality(v_ids), cardinality(v_ids));
    if holdfast.is_told('holdfast.alerts') then
      perform holdfast.note_enqueued(
        v_ids, array_fill('holdfast.webhook'::text, array[cardinality(v_ids)]), 'holdfast.alerts', deliver.at);
    end if;
    perform holdfast.wake(array['holdfast.alerts'], cardinality(v_ids));
  end if;
end
$$;

create or replace function holdfast.gravity(severity text)
returns integer
language sql immutable parallel safe
as $$ select case severity when 'info' then 1 when 'warning' then 2 when 'critical' then 3 end $$;

-- anomaly_ack: acknowledge an anomaly; it is listed until it is resolved. No row if no anomaly has this id.
create or replace function holdfast.anomaly_ack(id text, note text default null, actor text default null)
returns setof holdfast.anomalies
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.anomaly a
  set acked_at = coalesce(a.acked_at, holdfast.now()), acked_by = coalesce(a.acked_by, anomaly_ack.actor),
      note = coalesce(left(anomaly_ack.note, 2000), a.note)
  where a.handle = anomaly_ack.id;
  return query select v.* from holdfast.anomalies v where v.id = anomaly_ack.id;
end
$$;

-- anomaly_mute: stop notifications of a detector, in all queues or one, for everything or one subject. until null:
-- until unmuted. Its anomalies are still found, and listed as muted.
create or replace function holdfast.anomaly_mute(
  code text, until timestamptz default null, queue text default null, subject text default null,
    reason text default null,
  actor text default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.named('code', code, 60);
  if until <= holdfast.now() then
    perform holdfast.refuse('HF204', format('until %s is in the past', until), null,
      'Leave it out to mute until you unmute it.');
  end if;
  if not exists (select from holdfast.detectors d where d.code = anomaly_mute.code) then
    perform holdfast.unknown_detector(code);
  end if;
  insert into holdfast.mute as m (code, queue, subject, until, muted_at, muted_by, reason)
  values (anomaly_mute.code, coalesce(anomaly_mute.queue, ''), coalesce(anomaly_mute.subject, ''), anomaly_mute.until,
    holdfast.now(),
    anomaly_mute.actor, anomaly_mute.reason)
  on conflict (code, queue, subject) do update
  set until = excluded.until, muted_at = excluded.muted_at, muted_by = excluded.muted_by, reason = excluded.reason;
end
$$;

-- anomaly_unmute: start notifications again. Returns whether it was muted.
create or replace function holdfast.anomaly_unmute(
  code text, queue text default null, subject text default null, actor text default null)
returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from holdfast.mute m
    where m.code = anomaly_unmute.code and m.queue = coalesce(anomaly_unmute.queue, '')
      and m.subject = coalesce(anomaly_unmute.subject, '')
    returning 1
  )
  select exists (select from gone)
$$;

-- detector_set: change a detector, for all queues or for one. settings: enabled, and its thresholds by name; null
-- restores the default.
create or replace function holdfast.detector_set(
  code text, settings jsonb, queue text default null, actor text default null)
returns setof holdfast.detectors
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_usual jsonb;
  v_bad   record;
begin
  select d.thresholds into v_usual from holdfast.detector_catalogue d where d.code = detector_set.code;
  if not found then
    perform holdfast.unknown_detector(code);
  end if;
  if settings is null or jsonb_typeof(settings) <> 'object' then
    perform holdfast.refuse('HF221', 'settings must be a JSON object', null, 'For example {"seconds": 300}.');
  end if;
  if queue is not null then
    perform holdfast.named('queue', queue, 120);
  end if;
  select s.key, s.value into v_bad
  from jsonb_each(settings) s
  where s.value <> 'null' and case when s.key = 'enabled' then jsonb_typeof(s.value) <> 'boolean'
    else not v_usual ? s.key or jsonb_typeof(s.value) <> 'number'
      or not (s.value #>> '{}')::numeric between 0 and 1000000000 end
     or s.value = 'null' and s.key <> 'enabled' and not v_usual ? s.key
  limit 1;
  if found then
    perform holdfast.refuse('HF221', format('setting %L of detector %s cannot be %s', v_bad.key, code, v_bad.value),
      null,
      format('Settings are: %s. enabled is true or false, the others are numbers from 0 to a billion.',
        concat_ws(', ', 'enabled', (select string_agg(k, ', ' order by k) from jsonb_object_keys(v_usual) k))));
  end if;
  insert into holdfast.detector_setting as s (code, queue, enabled, thresholds, changed_at, changed_by)
  values (detector_set.code, coalesce(detector_set.queue, ''), (settings ->> 'enabled')::boolean,
    jsonb_strip_nulls(settings - 'enabled'), holdfast.now(), actor)
  on conflict (code, queue) do update
  set enabled = case when settings ? 'enabled' then excluded.enabled else s.enabled end,
      thresholds = jsonb_strip_nulls(s.thresholds || (settings - 'enabled')),
      changed_at = excluded.changed_at, changed_by = excluded.changed_by;
  return query select d.* from holdfast.detectors d where d.code = detector_set.code;
end
$$;

create or replace function holdfast.unknown_detector(code text)
returns void
language plpgsql
as $$
begin
  perform holdfast.refuse('HF227', format('no detector is called %L', code), null,
    'Detectors are: ' || (select string_agg(d.code, ', ' order by d.code) from holdfast.detectors d) || '.');
end
$$;

-- webhook_set: create or change a webhook, to which anomalies are sent. settings: url, secret (at least 16
-- characters), severity (this and worse), codes, queues.
create or replace function holdfast.webhook_set(name text, settings jsonb, actor text default null)
returns setof holdfast.webhooks
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_known constant text[] := '{url,secret,severity,codes,queues}';
  v_bad   text;
begin
  perform holdfast.named('name', name, 60);
  if settings is null or jsonb_typeof(settings) <> 'object' then
    perform holdfast.refuse('HF221', 'settings must be a JSON object', null,
      'For example {"url": "https://example.org/hook", "secret": "…"}.');
  end if;
  select k into v_bad from jsonb_object_keys(settings) k where not k = any(v_known) limit 1;
  if v_bad is not null then
    perform holdfast.refuse('HF221', format('setting %L of a webhook is unknown', v_bad), null,
      'Settings are: ' || array_to_string(v_known, ', ') || '.');
  end if;
  if settings ? 'secret' and not coalesce(length(settings ->> 'secret') between 16 and 200, false) then
    perform holdfast.refuse('HF221', 'the secret of a webhook must have 16 to 200 characters', null,
      'For example the output of: openssl rand -hex 32');
  end if;
  begin
    insert into holdfast.webhook as w (name, url, secret, severity, codes, queues, created_at, created_by)
    select webhook_set.name, coalesce(settings ->> 'url', o.url), coalesce(settings ->> 'secret', o.secret),
           coalesce(settings ->> 'severity', o.severity, 'warning'),
           case when settings ? 'codes' then holdfast.texts(settings -> 'codes') else o.codes end,
           case when settings ? 'queues' then holdfast.texts(settings -> 'queues') else o.queues end, holdfast.now(),
             actor
    from (select 1) one
    left join holdfast.webhook o on o.name = webhook_set.name
    on conflict (name) do update
    set url = excluded.url, secret = excluded.secret, severity = excluded.severity, codes = excluded.codes,
      queues = excluded.queues;
  exception when check_violation or not_null_violation or data_exception then
    perform holdfast.refuse('HF221', format('settings %s are not valid for a webhook',
      left((settings - 'secret')::text, 200)), sqlerrm,
      'url begins with http:// or https://, a new webhook needs url and secret, severity is info, warning or '
        'critical, codes and queues are arrays of names.');
  end;
  return query select v.* from holdfast.webhooks v where v.name = webhook_set.name;
end
$$;

create or replace function holdfast.texts(names jsonb)
returns text[]
language sql immutable
as $$ select case when names <> 'null' then array(select jsonb_array_elements_text(names)) end $$;

-- webhook_delete: delete a webhook. Returns whether it existed.
create or replace function holdfast.webhook_delete(name text, actor text default null)
returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from holdfast.webhook w where w.name = webhook_delete.name returning 1
  )
  select exists (select from gone)
$$;

-- webhook_target: the url and the secret of a webhook, for its deliveries.
create or replace function holdfast.webhook_target(name text)
returns table (url text, secret text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select w.url, w.secret from holdfast.webhook w where w.name = webhook_target.name $$;

-- thresholds_of: the thresholds of a detector for a queue; null if it is off.
create or replace function holdfast.thresholds_of(code text, queue text)
returns jsonb
language sql stable
as $$
  select case when coalesce(q.enabled, a.enabled, d.enabled)
    then d.thresholds || coalesce(a.thresholds, '{}') || coalesce(q.thresholds, '{}') end
  from holdfast.detector_catalogue d
  left join holdfast.detector_setting a on a.code = d.code and a.queue = ''
  left join holdfast.detector_setting q on q.code = d.code and q.queue = thresholds_of.queue and q.queue <> ''
  where d.code = thresholds_of.code
$$;

create or replace function holdfast.looks_anywhere(code text)
returns boolean
language sql stable
as $$
  select holdfast.thresholds_of(looks_anywhere.code, '') is not null
    or exists (select from holdfast.detector_setting s where s.code = looks_anywhere.code and s.enabled)
$$;

-- tidy_anomalies: delete anomalies that were resolved long ago.
create or replace function holdfast.tidy_anomalies(at timestamptz)
returns void
language plpgsql
as $$
begin
  update holdfast.chore c set at = tidy_anomalies.at
  where c.name = 'tidied' and (c.at < tidy_anomalies.at - interval '5 minutes' or c.at > tidy_anomalies.at);
  if not found then
    return;
  end if;
  delete from holdfast.anomaly a where a.resolved_at < tidy_anomalies.at - interval '7 days';
  delete from holdfast.mute m where m.until < tidy_anomalies.at - interval '1 day';
  delete from holdfast.bulk b where b.at < tidy_anomalies.at - interval '1 hour';
  -- of readings, one in ten minutes is enough after an hour, and the last before a day ago is where it began
  delete from holdfast.reading r
  where r.at < tidy_anomalies.at - interval '1 hour' and exists (
    select from holdfast.reading n
    where n.queue = r.queue and n.at > r.at
      and (n.at < tidy_anomalies.at - interval '1 day'
        or n.at < date_bin('10 minutes', r.at, '2000-01-01') + interval '10 minutes'
        and n.at < tidy_anomalies.at - interval '1 hour'));
end
$$;
