-- COPY into holdfast.job: the checks, and what has to follow in the same transaction.

-- check_row: refuse a row that a producer inserted and enqueue would not have stored.
create or replace function holdfast.check_row()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.run_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z' and new.created_at between '2000-01-01 00:00Z'
     and '9999-12-30 00:00Z'
     and new.max_attempts >= 1 and new.part between 0 and 63 and new.part = holdfast.part_of(new.id)
     and new.priority between 0 and 9 and holdfast.queue_ok(new.queue)
     and holdfast.is_name(new.kind)
     and starts_with(current_setting('holdfast.home', true), new.queue || E'\n')   -- as check_home says
     and strpos(current_setting('holdfast.home', true), E'\n' || new.part || E'\n') > 0
     and new.tenant is null and new.subject is null and new.headers is null
     and pg_column_size(new.payload) <= 4000 and octet_length(new.payload::text) <= 300 then
    return null;   -- most of them
  end if;
  perform holdfast.named('queue', new.queue, 120);
  perform holdfast.refuse_ours(new.queue);
  perform holdfast.named('kind', new.kind);
  if new.tenant <> '' then
    perform holdfast.named('tenant', new.tenant);
  end if;
  if not holdfast.is_time(new.run_at::text) or not holdfast.is_time(new.created_at::text)
    or new.created_at < '2000-01-01 00:00Z' then
    perform holdfast.refuse('HF204', format('run_at %s or created_at %s is out of range', new.run_at, new.created_at),
      null,
      'For example "2030-01-31T08:00:00Z".');
  end if;
  if new.max_attempts < 1 or not new.part between 0 and 63 then
    perform holdfast.refuse('HF204', format('max_attempts %s or part %s is out of range', new.max_attempts, new.part),
      null,
      'max_attempts is a whole number from 1; part is the part of the queue, holdfast.queue_part(queue).');
  end if;
  if holdfast.part_of(new.id) <> new.part then
    perform holdfast.refuse('HF206', format('id %s contains part %s, but the row has part %s', new.id,
      holdfast.part_of(new.id), new.part), null,
      format('Create the id with holdfast.new_id(%L), and the part with holdfast.part_of(id).', new.queue));
  end if;
  perform holdfast.check_items(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('kind', new.kind, 'queue',
    new.queue, 'priority', new.priority, 'subject', new.subject))
    || jsonb_build_object('payload', new.payload, 'headers', new.headers)));
  perform holdfast.check_home(new.queue, new.part, new.id);
  return null;
end
$$;

-- check_home: refuse a row where no claim of its queue looks. Once for each queue in a transaction, which cannot see
-- its fanout change: computing a queue's part costs as much as all other checks of a row. Whoever forges the note of
-- that loses their own rows and nobody else's.
create or replace function holdfast.check_home(queue text, part smallint, id uuid)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_base  constant smallint := holdfast.queue_part(queue);
  v_parts constant smallint[] := array(
    select ((v_base + step) % 64)::smallint from generate_series(0, holdfast.fanout_of(queue) - 1) step);
begin
  if exists (select from holdfast.queue q where q.name = check_home.queue and q.adopted is not null) then
    perform holdfast.refuse_adopted(queue);
  elsif part <> all(v_parts) then
    perform holdfast.refuse_home(queue, id);
  end if;
  perform set_config('holdfast.home', concat(queue, E'\n', array_to_string(v_parts, E'\n'), E'\n'), true);
end
$$;

create or replace function holdfast.refuse_home(queue text, id uuid)
returns void
language plpgsql
as $$
begin
  perform holdfast.refuse('HF206', format('part %s of job %s does not belong to queue %L', holdfast.part_of(id), id,
    queue), null,
    format('Create the id with holdfast.new_id(%L), and the part with holdfast.part_of(id).', queue));
end
$$;

-- copied: what has to follow a COPY into holdfast.job in the same transaction: the counters and notifications.
create or replace function holdfast.copied(queue text, kinds text[], counts bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_jobs constant bigint := coalesce((select sum(c) from unnest(counts) c), 0);
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_ours(queue);
  perform holdfast.named('kind', k) from unnest(kinds) k;
  if cardinality(kinds) is distinct from cardinality(counts)
    or exists (select from unnest(counts) c where c is null or c < 0) then
    perform holdfast.refuse('HF208', 'counts must have one number for each kind, at least 0');
  end if;
  if exists (select from holdfast.queue q where q.name = copied.queue and q.adopted is not null) then
    perform holdfast.refuse_adopted(queue);
  end if;
  perform holdfast.refuse_other_node(queue);
  perform holdfast.refuse_elsewhere(queue);
  insert into holdfast.tally (part, queue, kind, queued, enqueued)
  select holdfast.queue_part(copied.queue), copied.queue, c.kind, c.jobs, c.jobs
  from unnest(kinds, counts) c(kind, jobs);
  insert into holdfast.event (at, slot, part, jobs, event, state, queue, kind)
  select holdfast.now(), holdfast.event_slot(holdfast.now()), holdfast.queue_part(copied.queue), c.jobs, 'enqueued',
         'queued', copied.queue, c.kind
  from unnest(kinds, counts) c(kind, jobs)
  where holdfast.is_told(copied.queue) and not holdfast.is_watched(copied.queue);
  if holdfast.is_told(queue) and holdfast.is_watched(queue) then
    perform holdfast.note_copied(queue, v_jobs);
  end if;
  if exists (select from holdfast.queue q where q.name = copied.queue and (q.fair or q.by_kind)) then
    perform holdfast.apply_to_copied(queue, v_jobs);
  end if;
  perform holdfast.wake(array[copied.queue], v_jobs);
end
$$;

-- refuse_elsewhere: refuse jobs that this transaction has written into parts where claims of the queue do not look: as
-- the owner of the schema, whose rows are not checked one by one. What others have written there is not its fault.
create or replace function holdfast.refuse_elsewhere(queue text)
returns void
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := holdfast.fanout_of(queue);
  v_id     uuid;
begin
  select j.id into v_id
  from generate_series(v_fanout, 63) step
  cross join lateral (
    select x.id, x.xmin from holdfast.job x
    where x.part = ((v_base + step) % 64)::smallint and x.queue = refuse_elsewhere.queue and x.pos is not null
    order by x.priority, x.pos   -- so that only the index of that order serves
  ) j
  where holdfast.is_open(j.xmin)   -- open and yet visible: written by this transaction
  limit 1;
  if found then
    perform holdfast.refuse_home(queue, v_id);
  end if;
end
$$;

-- note_copied: record each job that this transaction has copied, because a client watches.
create or replace function holdfast.note_copied(queue text, jobs bigint)
returns void
language sql
as $$
  select holdfast.note_enqueued(c.ids, c.kinds, note_copied.queue, holdfast.now())
  from holdfast.copied_rows(note_copied.queue, note_copied.jobs, true) c
  where c.ids is not null
$$;

-- apply_to_copied: like apply_settings, for rows that this transaction has copied.
create or replace function holdfast.apply_to_copied(queue text, jobs bigint)
returns void
language sql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
  update holdfast.job j
  set by_kind = q.by_kind or j.by_kind, tenant = case when q.fair then coalesce(j.tenant, '') else j.tenant end
  from holdfast.settings_of(apply_to_copied.queue) q
  cross join holdfast.copied_rows(apply_to_copied.queue, apply_to_copied.jobs, false) c
  cross join lateral unnest(c.rows, c.ids) u(place, id)
  where j.ctid = u.place and j.part + 0 = holdfast.part_of(u.id)
    and (q.by_kind and not j.by_kind or q.fair and j.tenant is null)
$$;

-- copied_rows: jobs of a queue that this transaction has copied, in order; unnoted: without an event. They are at the
-- end of the ready order, among jobs of others: it reads backwards from there, further and further, until it has
-- found as many as there should be. Scheduled and blocked rows are not in that order: for them it reads the whole
-- queue.
create or replace function holdfast.copied_rows(
  queue text, jobs bigint, unnoted boolean, out rows tid[], out ids uuid[], out kinds text[])
language plpgsql
set plan_cache_mode = force_custom_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_xid    constant bigint := pg_current_xact_id()::text::bigint;
  v_epoch  constant bigint := v_xid - v_xid % 4294967296;
  v_next   constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_last   constant bigint := (select p.last_value from holdfast.pos p);
  v_base   constant smallint := holdfast.queue_part(queue);
  v_fanout constant integer := holdfast.fanout_of(queue);
  v_back   bigint := jobs * 2 + 200;
begin
  loop
    select array_agg(j.ctid order by j.pos, j.id), array_agg(j.id order by j.pos, j.id),
           array_agg(j.kind order by j.pos, j.id)
    into rows, ids, kinds
    from generate_series(0, v_fanout - 1) step
    cross join generate_series(0, 9) level
    cross join lateral (
      -- in order, so that only the index of that order serves: another one would be read from end to end
      (select y.ctid, y.part, y.id, y.kind, y.pos, y.xmin
       from holdfast.job y
       where y.part = ((v_base + step) % 64)::smallint and y.queue = copied_rows.queue and y.priority = level::smallint
         and y.pos > v_last - v_back and v_back < v_last
       order by y.pos)
      union all
      select y.ctid, y.part, y.id, y.kind, y.pos, y.xmin
      from holdfast.job y
      where y.part = ((v_base + step) % 64)::smallint and y.queue = copied_rows.queue and y.priority = level::smallint
        and v_back >= v_last
    ) j
    -- A row that is seen although its transaction is under way is this transaction's.
    where case when v_epoch + j.xmin::text::bigint between v_xid and v_next - 1
          then pg_xact_status((v_epoch + j.xmin::text::bigint)::text::xid8) = 'in progress'
          else v_epoch + j.xmin::text::bigint >= v_next end
      -- a transaction may copy more than once
      and not (unnoted and exists (select from holdfast.event e where e.part = j.part and e.job = j.id));
    exit when cardinality(ids) >= jobs or v_back >= v_last;
    v_back := least(v_back * 8, v_last);
  end loop;
end
$$;
