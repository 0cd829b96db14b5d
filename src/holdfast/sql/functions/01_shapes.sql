-- Shapes: the settings of a queue, and the columns of a job. A job comes as an item, is stored as a row of
-- holdfast.job and ends as a row of holdfast.ended; the functions of this file convert one into the other. The other
-- lists of columns are those of a lease (claim.sql) and of the views (views.sql).

-- unset_queue: a queue without settings: the defaults. They are defined only here; the table has none. A queue with
-- settings keeps its values when a default changes.
create or replace function holdfast.unset_queue(name text)
returns holdfast.queue
language plpgsql stable
cost 1
as $$
declare
  q holdfast.queue;
begin
  q.name := unset_queue.name;
  q.max_attempts := 3;
  q.lease := '30 seconds';
  q.keep_done := '0';
  q.keep_recent := true;
  q.payload_limit := 262144;
  q.backoff := '1 second';
  q.backoff_cap := '1 hour';
  q.fair := false;
  q.by_kind := false;
  q.lane_limit := 1;
  q.lane_on_failure := 'skip';
  q.fanout := 1;
  q.activity := 'failures';
  q.keep_activity := '7 days';
  q.node :=   -- no setting: null, but on the nodes of a cluster
    case when name like 'holdfast.%' then null else nullif(current_setting('holdfast.unplaced', true), '') end;
  return q;
end
$$;

-- usual_attempts: the default for rows that are copied into holdfast.job without max_attempts.
create or replace function holdfast.usual_attempts()
returns smallint
language sql stable
as $$ select (holdfast.unset_queue(null)).max_attempts $$;

-- settings_of: the settings of a queue, or the defaults.
create or replace function holdfast.settings_of(queue text)
returns holdfast.queue
language plpgsql stable
as $$
declare
  q holdfast.queue;
begin
  select x.* into q from holdfast.queue x where x.name = settings_of.queue;
  return case when found then q else holdfast.unset_queue(queue) end;
end
$$;

-- fanout_of: how many parts a queue is spread over.
create or replace function holdfast.fanout_of(queue text)
returns integer
language sql stable
as $$ select (holdfast.settings_of(queue)).fanout $$;

-- The fields of an item. plain_fields are those of the fast path; item_details_ok checks the others.
create or replace function holdfast.plain_fields()
returns text[]
language sql immutable parallel safe
as $$ select '{id,kind,payload,queue,priority}'::text[] $$;

create or replace function holdfast.item_fields()
returns text[]
language sql immutable parallel safe
as $$
  select holdfast.plain_fields() || '{run_at,delay,expires,expires_at,max_attempts,lease,key,on_conflict,lane,tenant,'
    'after,if_failed,take,workflow,child_of,headers,subject}'
$$;

-- copied_fields: the columns of holdfast.job that a producer may write by COPY: those that need no decision.
create or replace function holdfast.copied_fields()
returns text[]
language sql immutable parallel safe
as $$
  select '{part,created_at,by_kind}' || array(
    select f from unnest(holdfast.item_fields()) f
    where not f in ('key', 'on_conflict', 'lane', 'lease', 'delay', 'expires', 'expires_at', 'after', 'if_failed',
      'take', 'workflow', 'child_of'))
$$;

-- job_of_item: an item as a job that waits, with the settings of its queue. due: when it may run, as due_at says.
create or replace function holdfast.job_of_item(
  item jsonb, queue_row holdfast.queue, part smallint, id uuid, due timestamptz, at timestamptz, follow boolean,
  blocked boolean, lane_place bigint, place bigint)
returns setof holdfast.job
language sql stable rows 1
as $$
  select job_of_item.part, job_of_item.id, place as pos, lane_place as lane_seq, due as run_at, at as created_at,
         null::uuid as token, null::timestamptz as lease_until,
         coalesce(nullif(item -> 'priority', 'null')::smallint, 0::smallint) as priority, 0::smallint as attempt,
         coalesce(nullif(item -> 'max_attempts', 'null')::smallint, (queue_row).max_attempts) as max_attempts,
         job_of_item.blocked, job_of_item.follow, (queue_row).by_kind, null::boolean as held, (queue_row).name as queue,
         item ->> 'kind' as kind, null::text as worker, item ->> 'key' as key, item ->> 'lane' as lane,
         coalesce(item ->> 'tenant', case when (queue_row).fair then '' end) as tenant, item ->> 'subject' as subject,
         make_interval(secs => (item ->> 'lease')::double precision) as lease_for, null::text as error,
         null::text as reason, nullif(item -> 'headers', 'null') as headers,
         coalesce(item -> 'payload', '{}') as payload, null::jsonb as progress, null::bigint as strike,
         null::integer as attempts_before,
         coalesce((item ->> 'expires_at')::timestamptz,
           due + make_interval(secs => (item ->> 'expires')::double precision)) as expires_at,
         null::integer as steps,
         (item ->> 'waits')::smallint as waits, case when item ? 'linked' then job_of_item.id end as link,
         nullif(item -> 'take', 'null') as takes
$$;

-- due_at: when an item wants to run.
create or replace function holdfast.due_at(item jsonb, at timestamptz)
returns timestamptz
language sql stable
as $$
  select coalesce(
    at + make_interval(secs => (item ->> 'delay')::double precision),
    (item ->> 'run_at')::timestamptz,
    at)
$$;

-- replace_waiting: a waiting job, or a follow-up, gets the contents of an item, and keeps its place if possible.
create or replace function holdfast.replace_waiting(
  item jsonb, part smallint, id uuid, queue_row holdfast.queue, at timestamptz)
returns void
language sql
as $$
  update holdfast.job j
  set payload = g.payload, headers = g.headers, priority = g.priority, max_attempts = g.max_attempts,
      lease_for = g.lease_for, subject = g.subject, run_at = g.run_at, expires_at = g.expires_at, attempt = 0,
      attempts_before = null, error = null, strike = null,
      blocked  = j.follow or j.waits is not null or j.blocked and g.ready and j.strike is null,
      lane_seq = case when g.ready and not j.follow and j.waits is null
                      then coalesce(j.lane_seq, case when j.lane is not null then nextval('holdfast.pos') end) end,
      pos      = case
        when not g.ready or j.follow or j.waits is not null or j.blocked and j.strike is null then null
        when j.pos is not null and j.priority = g.priority then j.pos
        else nextval('holdfast.pos')
      end
  from (
    select o.*, o.run_at <= at as ready
    from holdfast.job_of_item(item, queue_row, null, null, holdfast.due_at(item, at), at, false, false, null, null) o
  ) g
  where j.part = replace_waiting.part and j.id = replace_waiting.id and j.token is null
$$;

-- ended_of: a job as one that has ended. Written as `from … job j cross join lateral ended_of(j, …)` it becomes a
-- part of the query that calls it, and costs nothing.
create or replace function holdfast.ended_of(
  j holdfast.job, state text, at timestamptz, reason text, fingerprint text default null, result jsonb default null,
  recent boolean default null)
returns setof holdfast.ended
language sql stable rows 1
as $$
  select j.part, j.id, ended_of.state, j.queue, j.kind, j.priority, j.attempt, j.max_attempts, j.run_at, j.created_at,
         ended_of.at, j.worker, j.key, j.lane, j.tenant, j.subject, j.lease_for, j.error, ended_of.fingerprint,
         ended_of.reason, j.headers, j.payload, ended_of.result, j.attempts_before, j.expires_at,
         case when j.steps is not null then (
           select jsonb_agg(to_jsonb(s) - 'part' - 'id' order by s.began_at, s.nth, s.name)
           from holdfast.step s
           where s.part = j.part and s.id = j.id) end as steps,
         j.link, j.takes, ended_of.recent
$$;

-- job_of_ended: a job that ended as one that waits, in a part and a queue, under an id. fresh: as after a retry,
-- without its error, no longer expiring, and with its attempts added to the total; otherwise unchanged.
create or replace function holdfast.job_of_ended(
  e holdfast.ended, part smallint, id uuid, queue text, fair boolean, by_kind boolean, fresh boolean,
  due timestamptz, place bigint, lane_place bigint, reason text)
returns setof holdfast.job
language sql stable rows 1
as $$
  select job_of_ended.part, job_of_ended.id, place as pos, lane_place as lane_seq, due as run_at, e.created_at,
         null::uuid as token, null::timestamptz as lease_until, e.priority,
         case when fresh then 0::smallint else e.attempt end as attempt, e.max_attempts, false as blocked,
         false as follow, coalesce(job_of_ended.by_kind, false) as by_kind, null::boolean as held,
         job_of_ended.queue, e.kind,
         null::text as worker, e.key, e.lane, coalesce(e.tenant, case when fair then '' end) as tenant, e.subject,
         e.lease_for, case when not fresh then e.error end as error, job_of_ended.reason, e.headers, e.payload,
         null::jsonb as progress, null::bigint as strike,
         case when fresh then nullif(coalesce(e.attempts_before, 0) + e.attempt, 0) else e.attempts_before
         end as attempts_before,
         case when not fresh then e.expires_at end as expires_at,
         -- the rows themselves are put back by whoever calls this
         jsonb_array_length(e.steps) + pg_column_size(e.steps) / 1024 as steps,
         null::smallint as waits, e.link, e.takes
$$;

-- check_items: refuse the first item that is not a job.
create or replace function holdfast.check_items(items jsonb)
returns void
language plpgsql
as $$
declare
  bad record;
begin
  select i.ord, i.item, q.payload_limit into bad
  from jsonb_array_elements(items) with ordinality as i(item, ord)
  cross join lateral holdfast.settings_of(coalesce(i.item ->> 'queue', 'default')) q
  where not holdfast.item_ok(i.item) or holdfast.out_of_range(i.item)
     or holdfast.item_size(i.item) > q.payload_limit
  limit 1;
  if found then
    perform holdfast.refuse_item(bad.item, bad.ord, bad.payload_limit);
  end if;
end
$$;

-- item_size: what counts towards the payload limit of a queue, in bytes: payload and headers as they are sent.
create or replace function holdfast.item_size(item jsonb)
returns bigint
language sql stable
as $$
  select coalesce(holdfast.text_size(item -> 'payload'),
         0) + coalesce(holdfast.text_size(nullif(item -> 'headers', 'null')), 0)
$$;

-- item_ok: whether an item is valid.
create or replace function holdfast.item_ok(item jsonb)
returns boolean
language sql stable
as $$
  select case when jsonb_typeof(item) = 'object' then
           holdfast.item_fields_ok(item, item - holdfast.plain_fields())
           and coalesce(holdfast.queue_ok(item ->> 'queue'), true)
         else false end
$$;

-- item_fields_ok: the same, as far as one expression can tell quickly; the name of a queue is not looked at here, for
-- the items of a call mostly share one. more: what the item has beside plain_fields; null if it is not an object.
create or replace function holdfast.item_fields_ok(item jsonb, more jsonb)
returns boolean
language sql stable
as $$
  select coalesce(
    more is not null
    and jsonb_typeof(item -> 'kind') = 'string'
    and holdfast.is_name(item ->> 'kind')
    and coalesce(holdfast.is_id(item ->> 'id'), true)
    and coalesce(jsonb_typeof(item -> 'queue') in ('string', 'null'), true)
    and (not item ? 'priority' or item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'null'))
    and (more = '{}' or more - 'key' = '{}' and holdfast.is_key(more -> 'key') or holdfast.item_details_ok(item)),
    false)
$$;

-- item_details_ok: whether the other fields of an item are known and valid. Checked field by field: a loop over the
-- fields of an item takes three times as long.
create or replace function holdfast.item_details_ok(item jsonb)
returns boolean
language sql stable
as $$
  select
    item - holdfast.item_fields() = '{}'
    and coalesce(jsonb_typeof(item -> 'lane') in ('string', 'null') and holdfast.is_name(item ->> 'lane'), true)
    and coalesce(jsonb_typeof(item -> 'tenant') in ('string', 'null') and holdfast.is_name(item ->> 'tenant'), true)
    and holdfast.is_key(item -> 'key')
    and holdfast.is_label(item -> 'subject')
    and coalesce(jsonb_typeof(item -> 'headers') in ('object', 'null'), true)
    and coalesce(item ->> 'on_conflict' in ('skip', 'replace', 'after'), true)
    and (item ->> 'delay' is null or item ->> 'run_at' is null)
    and (item ->> 'run_at' is null or holdfast.is_time(item ->> 'run_at'))
    and (item ->> 'expires' is null or item ->> 'expires_at' is null)
    and (item ->> 'expires_at' is null or holdfast.is_time(item ->> 'expires_at'))
    and (item ->> 'expires' is null or case when jsonb_typeof(item -> 'expires') = 'number'
      then (item ->> 'expires')::numeric > 0 and (item ->> 'expires')::numeric <= 3153600000 else false end)
    and (item ->> 'delay' is null or case when jsonb_typeof(item -> 'delay') = 'number'
      then (item ->> 'delay')::numeric between 0 and 3153600000 else false end)
    and (item ->> 'lease' is null or case when jsonb_typeof(item -> 'lease') = 'number'
      then (item ->> 'lease')::numeric > 0 and (item ->> 'lease')::numeric <= 31536000 else false end)
    and (item ->> 'max_attempts' is null or case when jsonb_typeof(item -> 'max_attempts') = 'number'
      then (item ->> 'max_attempts')::numeric between 1 and 32767 and (item ->> 'max_attempts')::numeric % 1 = 0
      else false end)
    and (not item ?| '{after,if_failed,take}' or holdfast.order_ok(item) and holdfast.takes_ok(item))
    and coalesce(holdfast.is_id(item ->> 'workflow'), true) and coalesce(holdfast.is_id(item ->> 'child_of'), true)
$$;

-- is_key: whether a value is a label of at most 1,000 bytes: what the index of keys can hold. A short text is known by
-- its size alone (one of no characters has 12 bytes); to take it out of the value would cost three times as much.
create or replace function holdfast.is_key(value jsonb)
returns boolean
language sql stable parallel safe
as $$
  select jsonb_typeof(value) = 'string' and pg_column_size(value) between 13 and 400
      or holdfast.is_label(value) and coalesce(octet_length(value #>> '{}') <= 1000, true)
$$;

-- is_label: whether a value is a text of 1 to 500 characters, a number, or missing.
create or replace function holdfast.is_label(value jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select coalesce(jsonb_typeof(value) = 'null' or jsonb_typeof(value) in ('string', 'number')
    and length(value #>> '{}') between 1 and 500, true)
$$;

-- refuse_item: refuse an invalid item, with the reason.
create or replace function holdfast.refuse_item(item jsonb, ord bigint, payload_limit integer)
returns void
language plpgsql
as $$
declare
  v_item  constant text := format('item %s', ord);
  v_known constant text[] := holdfast.item_fields();
  v_field text;
begin
  if jsonb_typeof(item) <> 'object' then
    perform holdfast.refuse('HF201', format('%s is not an object: %s', v_item, holdfast.told(item)), null,
      'An item looks like {"kind": "greet", "payload": {"name": "Ada"}}.');
  end if;
  select k into v_field from jsonb_object_keys(item) k where not k = any(v_known) limit 1;
  if v_field is not null then
    perform holdfast.refuse('HF201', format('%s has an unknown field %L', v_item, v_field), null,
      'Fields are: ' || array_to_string(v_known, ', ') || '.');
  end if;
  if item ->> 'kind' is null then
    perform holdfast.refuse('HF201', format('%s has no kind', v_item), null,
      'The kind names the handler, for example "send_email".');
  end if;
  if not holdfast.is_id(item ->> 'id') then
    perform holdfast.refuse('HF201', format('id %L of %s is not a UUID', item ->> 'id', v_item), null,
      'Leave it out, or create it with holdfast.new_id(queue).');
  end if;
  foreach v_field in array '{kind,queue,lane,tenant,key,subject}'::text[] loop
    if jsonb_typeof(item -> v_field) in ('array', 'object', 'boolean')
       or jsonb_typeof(item -> v_field) = 'number' and not v_field in ('key', 'subject') then
      perform holdfast.refuse('HF202', format('%s %s of %s is not a text', v_field, holdfast.told(item -> v_field),
        v_item));
    end if;
  end loop;
  perform holdfast.named('kind of ' || v_item, item ->> 'kind');
  if item ->> 'queue' is not null then
    perform holdfast.named('queue of ' || v_item, item ->> 'queue', 120);
    perform holdfast.refuse_ours(item ->> 'queue');
  end if;
  foreach v_field in array '{lane,tenant}'::text[] loop
    if item ->> v_field is not null then
      perform holdfast.named(v_field || ' of ' || v_item, item ->> v_field);
    end if;
  end loop;
  foreach v_field in array '{key,subject}'::text[] loop
    if not coalesce(length(item ->> v_field) between 1 and 500
      and (v_field = 'subject' or octet_length(item ->> v_field) <= 1000), true) then
      perform holdfast.refuse('HF202', format('%s of %s is %s characters and %s bytes long', v_field, v_item,
        length(item ->> v_field), octet_length(item ->> v_field)),
        null, 'It may have 1 to 500 characters, a key at most 1000 bytes; pass a hash of longer values.');
    end if;
  end loop;
  if item ? 'priority' and not item -> 'priority' in ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'null') then
    perform holdfast.refuse('HF203', format('priority %s of %s is not a whole number from 0 to 9',
      holdfast.told(item -> 'priority'), v_item), null, 'Priority 9 runs first; the default is 0.');
  end if;
  foreach v_field in array '{run_at,expires_at}'::text[] loop
    if item ->> v_field is not null and not holdfast.is_time(item ->> v_field) then
      perform holdfast.refuse('HF204', format('%s %L of %s is not a time', v_field, item ->> v_field, v_item), null,
        'For example "2030-01-31T08:00:00Z".');
    end if;
  end loop;
  if item ->> 'delay' is not null and item ->> 'run_at' is not null then
    perform holdfast.refuse('HF204', format('%s has both delay and run_at', v_item), null, 'Give one of them.');
  end if;
  if item ->> 'expires' is not null and item ->> 'expires_at' is not null then
    perform holdfast.refuse('HF204', format('%s has both expires and expires_at', v_item), null, 'Give one of them.');
  end if;
  foreach v_field in array '{max_attempts,lease,delay,expires}'::text[] loop
    if not holdfast.item_details_ok(jsonb_build_object(v_field, item -> v_field)) then
      perform holdfast.refuse('HF204', format('%s %s of %s is not a %s', v_field, holdfast.told(item -> v_field),
        v_item, case v_field when 'max_attempts' then 'whole number from 1 to 32767'
          when 'delay' then 'number of seconds from 0 to 3153600000'
          when 'expires' then 'number of seconds above 0, up to 3153600000'
          else 'number of seconds above 0, up to 31536000' end),
        null, 'For example {"max_attempts": 5, "lease": 60, "delay": 3600, "expires": 86400}.');
    end if;
  end loop;
  if not coalesce(item ->> 'on_conflict', 'skip') in ('skip', 'replace', 'after') then
    perform holdfast.refuse('HF205', format('on_conflict %L of %s is not skip, replace or after',
      item ->> 'on_conflict', v_item));
  end if;
  perform holdfast.refuse_order(item, v_item);
  foreach v_field in array '{workflow,child_of}'::text[] loop
    if not holdfast.is_id(item ->> v_field) then
      perform holdfast.refuse('HF204', format('%s %s of %s is not an id', v_field, holdfast.told(item -> v_field),
        v_item), null, 'It is the id that workflow_start returned, or that of a job.');
    end if;
  end loop;
  if holdfast.out_of_range(item) then
    perform holdfast.refuse('HF204', format('%s of %s (%s) contains a number beyond 1e308',
      case when holdfast.out_of_range(item -> 'payload') then 'payload' else 'headers' end, v_item, item ->> 'kind'),
      null,
      'Numbers can be as large as a double, about 1.8e308; send larger ones as a string.');
  end if;
  if holdfast.item_size(item) > payload_limit then
    perform holdfast.refuse('HF210',
      format('payload of %s (%s) is %s bytes, the limit for queue %L is %s bytes', v_item, item ->> 'kind',
        holdfast.item_size(item), coalesce(item ->> 'queue', 'default'), payload_limit),
      null, 'Store the data elsewhere and pass its address, or raise payload_limit of the queue.');
  end if;
  perform holdfast.refuse('HF201', format('headers of %s must be an object, got %s', v_item,
    holdfast.told(item -> 'headers')));
end
$$;
