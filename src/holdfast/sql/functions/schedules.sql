-- Schedules: rules that enqueue jobs at regular times. A client computes the slots; everything else is decided here,
-- by the clock of the database: whether a slot is due, and that it creates one job.

-- schedule_declare: schedules that a program declares, [{"name", "kind", "cron" or "every", …}]. A schedule that an
-- operator edited stays so until its declaration itself changes. Schedules that the same owner declared before and no
-- longer declares are withdrawn: they no longer fire, but keep their rows.
create or replace function holdfast.schedule_declare(
  items jsonb, owner text default null, origin jsonb default null)
returns table (ord integer, name text, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now      constant timestamptz := holdfast.clock();
  v_defaults constant jsonb := '{"kind": null, "queue": null, "payload": {}, "options": {}, "cron": null, "every": null,
    "tz": null, "missed": null, "overlap": null}';
  v_names    text[] := '{}';
  v_said     jsonb;
  v_ord      bigint;
  old        holdfast.schedule;
  new        holdfast.schedule;
begin
  if items is null or jsonb_typeof(items) <> 'array' then
    perform holdfast.refuse('HF223', 'items must be a JSON array of schedules', null,
      'For example [{"name": "nightly", "kind": "clean_up", "cron": "30 5 * * *"}].');
  end if;
  -- By name, so that programs that start together wait for each other instead of deadlocking: those of a release that
  -- declares a schedule, and those of one that withdraws it.
  v_names := array(select i.item ->> 'name' from jsonb_array_elements(items) i(item));
  perform from holdfast.schedule s
  where s.name = any(v_names) or holdfast.is_withdrawn(s, v_names, owner, origin)
  order by s.name collate "C"
  for update;
  for v_ord, v_said in
    select i.ord, i.item
    from jsonb_array_elements(items) with ordinality as i(item, ord)
    order by i.item ->> 'name' collate "C", i.ord
  loop
    ord := v_ord;
    name := holdfast.named(format('name of schedule %s', v_ord), v_said ->> 'name', 120);
    v_said := v_said - 'name';
    outcome := null;
    while outcome is null loop
      select s.* into old from holdfast.schedule s where s.name = schedule_declare.name for update;
      if found and old.declared = v_said then
        outcome := case when old.edited then 'edited' else 'same' end;
        update holdfast.schedule s
        set owner = schedule_declare.owner, origin = schedule_declare.origin, withdrawn_at = null,
            -- what came while it was withdrawn was not wanted
            next_at = case when s.withdrawn_at is null then s.next_at else '-infinity' end,
            since = case when s.withdrawn_at is null then s.since else v_now end,
            revision = s.revision + (s.withdrawn_at is not null)::integer
        where s.name = old.name and (s.withdrawn_at is not null or (s.owner, s.origin) is distinct from
          (schedule_declare.owner, schedule_declare.origin));
        continue;
      end if;
      new := holdfast.schedule_with(case when found then old else holdfast.schedule_blank(name) end, v_defaults
        || v_said);
      new.declared := v_said;
      new.edited := false;
      new.owner := schedule_declare.owner;
      new.origin := schedule_declare.origin;
      new.updated_at := v_now;
      new.updated_by := coalesce(schedule_declare.owner, 'code');
      if old.withdrawn_at is not null then
        new.withdrawn_at := null;
        new.next_at := '-infinity';
        new.since := v_now;
        new.revision := old.revision + 1;
      end if;
      outcome := holdfast.schedule_store(old, new);
    end loop;
    return next;
  end loop;

  update holdfast.schedule s
  set withdrawn_at = v_now, revision = s.revision + 1
  where holdfast.is_withdrawn(s, v_names, schedule_declare.owner, schedule_declare.origin);
end
$$;

-- is_withdrawn: whether a program that declares these schedules has declared this one before. Without an owner, two
-- programs may have a module of the same name: those that share a kind are the same program.
create or replace function holdfast.is_withdrawn(s holdfast.schedule, names text[], owner text, origin jsonb)
returns boolean
language sql stable
as $$
  select s.withdrawn_at is null and not s.name = any(names) and case
    when owner is not null then s.owner = is_withdrawn.owner
    else s.owner is null and s.origin -> 'module' = is_withdrawn.origin -> 'module'
      and s.origin -> 'kinds' ?| array(select jsonb_array_elements_text(is_withdrawn.origin -> 'kinds')) end
$$;

-- schedule_set: change or create a schedule. Settings: kind, queue, payload, options, cron or every,
-- anchor, tz, missed, overlap. A changed rule applies from now on; earlier slots are not fired.
create or replace function holdfast.schedule_set(name text, settings jsonb, actor text default null)
returns setof holdfast.schedules
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.clock();
  old   holdfast.schedule;
  new   holdfast.schedule;
begin
  perform holdfast.named('schedule', name, 120);
  loop
    select s.* into old from holdfast.schedule s where s.name = schedule_set.name for update;
    new := holdfast.schedule_with(case when found then old else holdfast.schedule_blank(name) end, settings);
    new.edited := new.declared is not null;
    new.updated_at := v_now;
    new.updated_by := actor;
    exit when holdfast.schedule_store(old, new) is not null;
  end loop;
  perform holdfast.note('schedule_set', actor, null, new.queue,
    jsonb_build_object('schedule', name, 'settings', settings - 'payload'), new.kind);
  return query select s.* from holdfast.schedules s where s.name = schedule_set.name;
end
$$;

-- schedule_due: schedules with a slot that is due, or whose first slot has not been computed, by the clock of the
-- database, which is returned too. Those with a problem come last, so that they do not block the others.
create or replace function holdfast.schedule_due(max_schedules integer default 100)
returns table (
  name text, revision bigint, cron text, every interval, anchor timestamptz, tz text, missed text,
  next_at timestamptz, since timestamptz, now timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select s.name, s.revision, s.cron, s.every, s.anchor, s.tz, s.missed,
         case when isfinite(s.next_at) then s.next_at end, s.since, holdfast.now()
  from holdfast.schedule s
  where s.next_at <= holdfast.now() and s.paused_at is null and s.withdrawn_at is null
  order by s.problem is not null, s.next_at
  limit max_schedules
$$;

-- schedule_fire: enqueue one job for each of these slots and advance the schedule to next_at, if it is still as the
-- caller saw it: at expected_next (null: nothing planned yet) and with the same rule. Otherwise nothing happens and
-- no row is returned. next_at null: there is no further slot, and problem has the reason. A slot in the future, by
-- the clock of the database, is never fired.
create or replace function holdfast.schedule_fire(
  name text, expected_next timestamptz, slots timestamptz[], next_at timestamptz,
  revision bigint default null, problem text default null)
returns table (slot timestamptz, outcome text, job uuid)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'   -- of one whose last job is being settled: the next turn can do it
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now  constant timestamptz := holdfast.clock();
  s      holdfast.schedule;
  v_live boolean;
begin
  if next_at <= (select max(x) from unnest(slots) x) then
    perform holdfast.refuse('HF223', format('next_at %s of schedule %L is not after its slots', next_at, name));
  end if;
  select x.* into s
  from holdfast.schedule x
  where x.name = schedule_fire.name
    and x.next_at = coalesce(expected_next, '-infinity') and x.next_at <= v_now
    and x.revision = coalesce(schedule_fire.revision, x.revision)
    and x.paused_at is null and x.withdrawn_at is null
    and not exists (select from unnest(slots) f(slot) where f.slot > v_now)
  for update skip locked;
  if not found then
    return;
  end if;

  s.problem := schedule_fire.problem;
  for slot in select distinct f.slot from unnest(slots) f(slot) where f.slot is not null order by 1 loop
    insert into holdfast.schedule_slot (name, slot, outcome, at) values (s.name, schedule_fire.slot, 'fired', v_now)
    on conflict do nothing;
    continue when not found;   -- this instant had its job: the clock was turned back, or the rule changed and came back
    s.last_at := slot;
    job := null;
    v_live := s.overlap <> 'queue' and exists (
      select from holdfast.job j where j.part = holdfast.part_of(s.last_job) and j.id = s.last_job);
    if v_live and s.overlap = 'skip' then
      outcome := 'skipped';
      s.skipped := s.skipped + 1;
    else
      if v_live then
        perform holdfast.cancel(array[s.last_job], format('schedule %s: its next slot is due', s.name),
          'schedule ' || s.name);
      end if;
      begin
        select e.id, case when e.created then 'fired' else 'duplicate' end into job, outcome
        from holdfast.enqueue(jsonb_build_array(holdfast.schedule_item(s,
          jsonb_build_object('slot', holdfast.schedule_text(slot))))) e;
        s.fired := s.fired + (outcome = 'fired')::integer;
        s.last_job := job;
      exception when others then
        -- what a job may be can change behind a schedule's back, by a limit of its queue for example
        if sqlstate not like 'HF%' then
          raise;
        end if;
        outcome := 'refused';
        s.problem := format('%s: %s', sqlstate, sqlerrm);
      end;
    end if;
    update holdfast.schedule_slot x set outcome = schedule_fire.outcome, job = schedule_fire.job
    where x.name = s.name and x.slot = schedule_fire.slot;
    return next;
  end loop;

  update holdfast.schedule x
  set next_at = coalesce(schedule_fire.next_at, 'infinity'), last_at = s.last_at, last_job = s.last_job,
      fired = s.fired, skipped = s.skipped, problem = s.problem
  where x.name = s.name;
  delete from holdfast.schedule_slot x
  where x.name = s.name and x.slot < (
    select y.slot from holdfast.schedule_slot y where y.name = s.name order by y.slot desc offset 999 limit 1);
end
$$;

-- schedule_fault: store why the slots of a schedule cannot be computed; it stays due.
create or replace function holdfast.schedule_fault(name text, revision bigint, problem text)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  update holdfast.schedule s
  set problem = schedule_fault.problem
  where s.name = schedule_fault.name and s.revision = schedule_fault.revision
$$;

-- schedule_run: enqueue one job now, outside the slots, even if the schedule is paused or its last job is running.
create or replace function holdfast.schedule_run(name text, actor text default null)
returns table (slot timestamptz, outcome text, job uuid)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  s holdfast.schedule;
begin
  s := holdfast.schedule_named(name);
  -- slots are whole seconds: a run must not stand in the place of one
  slot := holdfast.now() + case when extract(microseconds from holdfast.now())::bigint % 1000000 = 0
    then interval '1 microsecond' else '0' end;
  select e.id, case when e.created then 'run' else 'duplicate' end into job, outcome
  from holdfast.enqueue(jsonb_build_array(holdfast.schedule_item(s,
    jsonb_strip_nulls(jsonb_build_object('run_by', actor))))) e;
  update holdfast.schedule x set last_job = schedule_run.job where x.name = s.name;
  insert into holdfast.schedule_slot (name, slot, outcome, job, at)
  values (s.name, schedule_run.slot, schedule_run.outcome, schedule_run.job, schedule_run.slot)
  on conflict do nothing;
  perform holdfast.note('schedule_run', actor, null, s.queue, jsonb_build_object('schedule', s.name, 'job', job),
    s.kind);
  return next;
end
$$;

-- schedule_pause: do not fire until resumed. Jobs that were enqueued still run.
create or replace function holdfast.schedule_pause(name text, reason text default null, actor text default null)
returns setof holdfast.schedules
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.schedule_named(name);
  update holdfast.schedule s
  set paused_at = holdfast.now(), paused_by = schedule_pause.actor, paused_reason = schedule_pause.reason
  where s.name = schedule_pause.name;
  perform holdfast.note('schedule_paused', actor, reason, detail => jsonb_build_object('schedule', name));
  return query select s.* from holdfast.schedules s where s.name = schedule_pause.name;
end
$$;

-- schedule_resume: fire again, from the next slot after now: slots during the pause do not count as missed.
create or replace function holdfast.schedule_resume(name text, actor text default null)
returns setof holdfast.schedules
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.schedule_named(name);
  update holdfast.schedule s
  set paused_at = null, paused_by = null, paused_reason = null,
      next_at = '-infinity', since = holdfast.now(), revision = s.revision + 1
  where s.name = schedule_resume.name and s.paused_at is not null;
  perform holdfast.note('schedule_resumed', actor, detail => jsonb_build_object('schedule', name));
  return query select s.* from holdfast.schedules s where s.name = schedule_resume.name;
end
$$;

-- schedule_delete: delete the schedule and the record of its slots; its jobs stay. A program that declares it creates
-- it again. Returns whether it existed.
create or replace function holdfast.schedule_delete(name text, actor text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  delete from holdfast.schedule s where s.name = schedule_delete.name;
  if not found then
    return false;
  end if;
  delete from holdfast.schedule_slot x where x.name = schedule_delete.name;
  perform holdfast.note('schedule_deleted', actor, detail => jsonb_build_object('schedule', name));
  return true;
end
$$;

-- schedule_named: the schedule, locked, or a refusal.
create or replace function holdfast.schedule_named(name text)
returns holdfast.schedule
language plpgsql
as $$
#variable_conflict use_column
declare
  s holdfast.schedule;
begin
  select x.* into s from holdfast.schedule x where x.name = schedule_named.name for update;
  if not found then
    perform holdfast.refuse('HF312', format('no schedule is named %L', name), null,
      'List them: select name from holdfast.schedules.');
  end if;
  return s;
end
$$;

-- schedule_blank: a schedule with default settings.
create or replace function holdfast.schedule_blank(name text)
returns holdfast.schedule
language plpgsql
as $$
declare
  v_now constant timestamptz := holdfast.clock();
  s     holdfast.schedule;
begin
  s.name := schedule_blank.name;
  s.queue := 'default';
  s.payload := '{}';
  s.options := '{}';
  s.tz := 'UTC';
  s.missed := 'once';
  s.overlap := 'queue';
  s.next_at := '-infinity';
  s.since := v_now;
  s.revision := 0;
  s.fired := 0;
  s.skipped := 0;
  s.edited := false;
  s.created_at := v_now;
  return s;
end
$$;

-- schedule_store: replace the schedule that was read and locked, or insert a new one; null if another transaction was
-- first.
create or replace function holdfast.schedule_store(old holdfast.schedule, new holdfast.schedule)
returns text
language plpgsql
as $$
begin
  if old.name is null then
    insert into holdfast.schedule select new.* on conflict do nothing;
    return case when found then 'created' end;
  end if;
  update holdfast.schedule s
  set kind = new.kind, queue = new.queue, payload = new.payload, options = new.options, cron = new.cron,
      every = new.every, anchor = new.anchor, tz = new.tz, missed = new.missed, overlap = new.overlap,
      next_at = new.next_at, since = new.since, revision = new.revision, problem = new.problem,
      owner = new.owner, origin = new.origin, withdrawn_at = new.withdrawn_at, declared = new.declared,
      edited = new.edited, updated_at = new.updated_at, updated_by = new.updated_by
  where s.name = old.name;
  return 'changed';
end
$$;

-- schedule_with: a schedule with these settings, or a refusal that names the invalid one.
create or replace function holdfast.schedule_with(old holdfast.schedule, settings jsonb)
returns holdfast.schedule
language plpgsql
as $$
declare
  v_known   constant text[] := '{kind,queue,payload,options,cron,every,anchor,tz,missed,overlap}';
  v_options constant text[] := array(   -- what an item says, less what the schedule itself does
    select f from unnest(holdfast.item_fields()) f where not f in ('id', 'kind', 'queue', 'payload', 'run_at',
           'delay', 'after', 'if_failed', 'take', 'workflow', 'child_of'));
  v_now     constant timestamptz := holdfast.clock();
  v_what    constant text := format('schedule %s', old.name);
  new       holdfast.schedule := old;
  v_field   text;
  v_value   text;
  v_hint    text;
begin
  if settings is null or jsonb_typeof(settings) <> 'object' then
    perform holdfast.refuse('HF223', format('%s: settings must be a JSON object', v_what), null,
      'For example {"kind": "clean_up", "cron": "30 5 * * *"}.');
  end if;
  select k into v_field from jsonb_object_keys(settings) k where not k = any(v_known) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF223', format('%s: setting %L is unknown', v_what, v_field), null,
      'Settings are: ' || array_to_string(v_known, ', ') || '.');
  end if;
  select k into v_field from jsonb_object_keys(case when jsonb_typeof(settings -> 'options') = 'object'
         then settings -> 'options' else '{}' end) k
  where not k = any(v_options) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF223', format('%s: option %L is unknown', v_what, v_field), null,
      'Options are: ' || array_to_string(v_options, ', ') || '.');
  end if;
  foreach v_field in array '{kind,queue,cron,tz,missed,overlap,anchor}'::text[] loop
    if not coalesce(jsonb_typeof(settings -> v_field), 'null') in ('string', 'null') then
      perform holdfast.refuse('HF223', format('%s: %s %s is not a text', v_what, v_field,
        left((settings -> v_field)::text, 80)));
    end if;
  end loop;

  new.kind    := case when settings ? 'kind' then settings ->> 'kind' else new.kind end;
  new.queue   := case when settings ? 'queue' then coalesce(settings ->> 'queue', 'default') else new.queue end;
  new.payload := case when settings ? 'payload' then settings -> 'payload' else new.payload end;
  new.options := case when settings ? 'options'
    then jsonb_strip_nulls(coalesce(nullif(settings -> 'options', 'null'), '{}')) else new.options end;
  new.tz      := case when settings ? 'tz' then coalesce(settings ->> 'tz', 'UTC') else new.tz end;
  new.missed  := case when settings ? 'missed' then coalesce(settings ->> 'missed', 'once') else new.missed end;
  new.overlap := case when settings ? 'overlap' then coalesce(settings ->> 'overlap', 'queue') else new.overlap end;
  if new.kind is null then
    perform holdfast.refuse('HF223', format('%s has no kind', v_what), null, 'The kind names the handler of its jobs.');
  elsif not new.missed in ('skip', 'once', 'all') then
    perform holdfast.refuse('HF223', format('%s: missed %L is not skip, once or all', v_what, new.missed));
  elsif not new.overlap in ('queue', 'skip', 'cancel') then
    perform holdfast.refuse('HF223', format('%s: overlap %L is not queue, skip or cancel', v_what, new.overlap));
  end if;
  begin
    perform holdfast.check_items(jsonb_build_array(holdfast.schedule_item(new, '{}')));
  exception when others then
    get stacked diagnostics v_hint = pg_exception_hint;
    perform holdfast.refuse(sqlstate, format('%s: %s', v_what, sqlerrm), null, v_hint);
  end;

  if settings ->> 'cron' is not null and settings ->> 'every' is not null then
    perform holdfast.refuse('HF223', format('%s has both cron and every', v_what), null, 'Give one of them.');
  elsif settings ->> 'cron' is not null then
    new.cron := regexp_replace(btrim(settings ->> 'cron', E' \t\n'), '\s+', ' ', 'g');
    new.every := null;
    new.anchor := null;
    if cardinality(string_to_array(new.cron, ' ')) <> 5 and new.cron not like '@%' or length(new.cron) > 200 then
      perform holdfast.refuse('HF223', format('%s: cron %L has %s fields', v_what, left(new.cron, 80),
        cardinality(string_to_array(new.cron, ' '))), null,
        'It has five: minute, hour, day of the month, month, day of the week.');
    end if;
  elsif settings ->> 'every' is not null then
    if jsonb_typeof(settings -> 'every') <> 'number' or (settings ->> 'every')::numeric not between 1 and 31622400
      or (settings ->> 'every')::numeric % 1 <> 0 then
      perform holdfast.refuse('HF223', format('%s: every %s is out of range', v_what,
        left((settings -> 'every')::text, 80)), null,
        'It is a whole number of seconds, from 1 to 31622400 (366 days).');
    end if;
    new.cron := null;
    new.every := make_interval(secs => (settings ->> 'every')::double precision);
    if old.every is distinct from new.every then
      new.anchor := null;
    end if;
  end if;
  if new.cron is null and new.every is null or settings ->> 'cron' is null and settings ->> 'every' is null
    and settings ?& '{cron,every}' then
    perform holdfast.refuse('HF223', format('%s has neither cron nor every', v_what), null,
      'For example "cron": "30 5 * * MON-FRI", or "every": 300.');
  end if;
  v_value := settings ->> 'anchor';
  if v_value is not null and (new.every is null or not holdfast.is_time(v_value)) then
    perform holdfast.refuse('HF223', format('%s: anchor %L is not a time, or the schedule has no interval', v_what,
      v_value), null,
      'For example "every": 3600, "anchor": "2026-01-01T00:10:00Z".');
  end if;
  if new.every is not null then
    new.anchor := coalesce(date_trunc('second', v_value::timestamptz), new.anchor, date_trunc('second', v_now));
  end if;

  if (old.cron, old.every, old.anchor, old.tz) is distinct from (new.cron, new.every, new.anchor, new.tz) then
    new.revision := old.revision + 1;
    new.next_at := '-infinity';
    new.since := v_now;
    new.problem := null;
  end if;
  return new;
end
$$;

-- schedule_item: the item that a schedule enqueues; its headers name the schedule.
create or replace function holdfast.schedule_item(s holdfast.schedule, why jsonb)
returns jsonb
language sql stable
as $$
  select s.options || jsonb_build_object(
    'kind', s.kind, 'queue', s.queue, 'payload', s.payload,
    'headers', case when coalesce(jsonb_typeof(s.options -> 'headers'), 'object') = 'object'
                    then coalesce(s.options -> 'headers', '{}') || jsonb_build_object('schedule', s.name) || why
                    else s.options -> 'headers' end)
$$;

-- schedule_text: a slot as text, for headers.
create or replace function holdfast.schedule_text(slot timestamptz)
returns text
language sql immutable parallel safe
as $$ select to_char(slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;
