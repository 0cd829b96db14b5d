-- Time, ids and refusals, which every other function uses.

-- now: the time of the statement. PostgreSQL's now() does not advance in a long transaction and would make leases
-- short; clock_timestamp() is volatile and cannot be used in index conditions. Tests replace this one function, and
-- move holdfast.clock() with it.
create or replace function holdfast.now()
returns timestamptz
language sql stable parallel safe
as $$ select statement_timestamp() $$;

-- clock: the current time, for functions that set or compare times. The statement's time does not advance while a
-- call waits for a lock, nor during a procedure or a DO block: a lease counted from it may end before it is given.
-- Volatile: read it once into a variable, after everything that may wait.
create or replace function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as $$ select holdfast.now() + (clock_timestamp() - statement_timestamp()) $$;

-- commit_lightly: do not wait for the disk when this transaction commits. Where a standby is synchronous, it waits all
-- the same: a claim that the standby has not received is undone when that one takes over, and its job would run again
-- while the first handler still runs. Written so that it becomes a part of the expression that calls it.
create or replace function holdfast.commit_lightly()
returns text
language sql
as $$
  select set_config('synchronous_commit', case
    when current_setting('synchronous_standby_names') = '' then 'off'
    else current_setting('synchronous_commit') end, true)
$$;

-- queue_part: the part of a queue. Clients compute the same: first four bytes of md5, modulo 64.
create or replace function holdfast.queue_part(queue text)
returns smallint
language sql immutable parallel safe
as $$ select ((('x'::text || substr(md5(queue), 1, 8))::bit(32)::bigint) % 64::bigint)::smallint $$;

-- part_of: the part in an id, in the twelve bits after its version.
create or replace function holdfast.part_of(id uuid)
returns smallint
language sql immutable parallel safe
as $$ select (((get_byte(uuid_send(id), 6) & 15) << 8) | get_byte(uuid_send(id), 7))::smallint $$;

-- stamp: the same id with another part.
create or replace function holdfast.stamp(id uuid, part smallint)
returns uuid
language sql immutable parallel safe
as $$
  select encode(
    set_byte(set_byte(uuid_send(id), 6, 128 | (part >> 8)), 7, part & 255), 'hex')::uuid
$$;

-- id_in: a new UUIDv8 in a part: 48 bits of milliseconds, the part, 62 random bits.
create or replace function holdfast.id_in(part smallint)
returns uuid
language sql volatile parallel safe
as $$
  select encode(
    substr(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint), 3)
    || set_byte(set_byte(substr(uuid_send(gen_random_uuid()), 7), 0, 128 | (part >> 8)), 1, part & 255),
    'hex')::uuid
$$;

-- new_id: an id for a job of this queue, created before an enqueue that may have to be repeated.
create or replace function holdfast.new_id(queue text default 'default')
returns uuid
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$ select holdfast.id_in(holdfast.queue_part(queue)) $$;

-- refuse: raise misuse under its own SQLSTATE.
create or replace function holdfast.refuse(code text, message text, detail text default null, hint text default null)
returns void
language plpgsql volatile
as $$
begin
  if detail is null then
    raise exception using errcode = refuse.code, message = refuse.message,
      hint = coalesce(refuse.hint, 'See the SQL reference.');
  else
    raise exception using errcode = refuse.code, message = refuse.message, detail = refuse.detail,
      hint = coalesce(refuse.hint, 'See the SQL reference.');
  end if;
end
$$;

-- named: the value if it is a valid name; otherwise refuse, with the field and the reason.
create or replace function holdfast.named(field text, value text, longest integer default 200)
returns text
language plpgsql immutable parallel safe
as $$
begin
  if value is null or value = '' then
    perform holdfast.refuse('HF202', format('%s is missing', field), null,
      format('Give %s a name of 1 to %s characters.', field, longest));
  elsif length(value) > longest then
    perform holdfast.refuse('HF202', format('%s %L is %s characters long, the limit is %s', field, left(value, 40)
      || '…', length(value), longest));
  elsif value ~ '[[:cntrl:]]' then
    perform holdfast.refuse('HF202', format('%s %L contains a control character', field, value), null,
      'Use printable characters only.');
  elsif not holdfast.is_name(value, longest) then
    perform holdfast.refuse('HF202',
      format('%s contains an invisible character or one that changes the direction of text: %s', field,
      left(to_json(regexp_replace(value, '[^ -~]', '?', 'g'))::text, 100)), null, 'Use printable characters only.');
  end if;
  return value;
end
$$;

-- is_name: whether a text can be a name: not empty, not too long, and only visible characters. Control characters are
-- refused, and so are characters that are invisible or change the direction of text, because two names could look the
-- same. Joiners of letters and of emoji are allowed.
create or replace function holdfast.is_name(value text, longest integer default 200)
returns boolean
language sql immutable parallel safe
as $$
  select length(value) between 1 and longest
     and value !~ '[\u0001-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff'
       '\ufff9-\ufffb]'
$$;

-- is_ours: whether a queue belongs to Holdfast itself; users cannot put jobs there.
create or replace function holdfast.is_ours(queue text)
returns boolean
language sql immutable parallel safe
as $$ select starts_with(queue, 'holdfast.') $$;

create or replace function holdfast.refuse_ours(queue text)
returns void
language plpgsql
as $$
begin
  if holdfast.is_ours(queue) then
    perform holdfast.refuse('HF211', format('queue %L belongs to Holdfast', left(queue, 120)), null,
      'Names that begin with "holdfast." are reserved; choose another.');
  end if;
end
$$;

-- text_size: how many bytes a value takes as text, as it is sent. jsonb stores 1e131071 in a dozen bytes, so a large
-- value is converted piece by piece, after its numbers were checked to be in range.
create or replace function holdfast.text_size(value jsonb)
returns bigint
language plpgsql immutable parallel safe
as $$
declare
  v_size  bigint := 0;
  v_large jsonb[] := array[value];
  turn    record;
begin
  if pg_column_size(value) <= 65536 then
    return octet_length(value::text);
  end if;
  while v_large is not null loop   -- level by level: a value may be nested deeper than functions can be
    select sum(c.size + case when pg_column_size(c.value) <= 65536
           or c.size = 0 then octet_length(c.value::text) else 0 end) as size,
           array_agg(c.value) filter (where pg_column_size(c.value) > 65536 and c.size > 0) as large
    into turn
    from unnest(v_large) l(value)
    cross join lateral (
      select e as value, 2 as size from jsonb_array_elements(case jsonb_typeof(l.value) when 'array' then l.value
             else '[]' end) e
      union all
      select e.value, 4 + octet_length(to_json(e.key)::text)
        from jsonb_each(case jsonb_typeof(l.value) when 'object' then l.value else '{}' end) e
      union all
      select l.value, 0 where not jsonb_typeof(l.value) in ('array', 'object')
    ) c;
    v_size := v_size + turn.size;
    v_large := turn.large;
  end loop;
  return v_size;
end
$$;

-- out_of_range: whether a value contains a number that does not fit a double: clients could not read it, and as text
-- it may be thousands of times longer.
create or replace function holdfast.out_of_range(value jsonb)
returns boolean
language sql immutable parallel safe
as $$ select value @? 'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)' $$;

-- check_value: refuse JSON that is longer than a limit when sent, or that contains a number out of range.
create or replace function holdfast.check_value(what text, value jsonb, longest bigint)
returns void
language plpgsql
as $$
begin
  if holdfast.out_of_range(value) then
    perform holdfast.refuse('HF204', format('%s contains a number beyond 1e308', what), null,
      'Numbers can be as large as a double, about 1.8e308; send larger ones as a string.');
  elsif holdfast.text_size(value) > longest then
    perform holdfast.refuse('HF210', format('%s is %s bytes, the limit is %s bytes', what, holdfast.text_size(value),
      longest), null,
      'Store the data elsewhere and pass its address.');
  end if;
end
$$;

-- told: the beginning of a value, for an error message.
create or replace function holdfast.told(value jsonb, longest integer default 80)
returns text
language sql immutable parallel safe
as $$ select case when pg_column_size(value) > 4000 then 'a large ' || jsonb_typeof(value)
  else left(value::text, longest) end $$;

-- fingerprint: one group for errors that differ only in numbers, ids, quoted values and addresses.
create or replace function holdfast.fingerprint(error_kind text, message text)
returns text
language sql immutable parallel safe
as $$ select left(md5(coalesce(error_kind, '') || ':' || holdfast.error_pattern(message)), 8) $$;

create or replace function holdfast.error_pattern(message text)
returns text
language sql immutable parallel safe
as $$
  select regexp_replace(regexp_replace(regexp_replace(left(split_part(coalesce(message, ''), E'\n', 1), 500),
    '[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|\m[0-9a-f]{16,}\M', '*', 'g'),
    '''[^'']*''|"[^"]*"', '*', 'g'),
    '[0-9]+', '*', 'g')
$$;

-- parts: all parts that can have jobs: those of queues, and those of adopted tables.
create or replace function holdfast.parts()
returns smallint[]
language sql stable
as $$
  select array(select p::smallint from generate_series(0, 63) p)
         || array(select a.part from holdfast.adopted a where a.live order by a.part)
$$;

-- oldest: the time since which the longest-waiting ready job of a queue has been due.
create or replace function holdfast.oldest(queue text)
returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$ select o.since from holdfast.oldest_of(oldest.queue) o $$;

-- oldest_of: the same, for many queues in one statement. One probe per priority.
create or replace function holdfast.oldest_of(queue text)
returns table (since timestamptz)
language sql stable
as $$
  select min(h.run_at)
  from holdfast.settings_of(oldest_of.queue) q
  cross join lateral (
    select j.run_at
    from generate_series(0, q.fanout - 1) step
    cross join lateral (select ((holdfast.queue_part(oldest_of.queue) + step) % 64)::smallint as part) p
    cross join lateral unnest(coalesce((
      select f.floors from holdfast.floor f
      where f.part = p.part and f.queue = oldest_of.queue
      order by f.gen desc limit 1), '{0,0,0,0,0,0,0,0,0,0}'::bigint[])) with ordinality as l(floor, nth)
    cross join lateral (
      select x.run_at
      from holdfast.job x
      where x.part = p.part and x.queue = oldest_of.queue and x.priority = (10 - l.nth)::smallint
        and x.pos >= l.floor and x.token is null
      order by x.pos
      limit 1
    ) j
    union all
    select holdfast.oldest_adopted(q.adopted) where q.adopted is not null
  ) h
$$;

-- oldest_adopted: the same, of an adopted table.
create or replace function holdfast.oldest_adopted(part smallint)
returns timestamptz
language plpgsql stable
as $$
declare
  v_since   timestamptz;
  v_context text;
  v_marks   text[];
begin
  if exists (select from holdfast.adopted a where a.part = oldest_adopted.part and a.live) then
    v_marks := holdfast.marks_before(part);
    execute format('select holdfast_adopted.%I()', part || '_oldest') into v_since;
    perform holdfast.check_after(part, v_marks);
  end if;
  return v_since;
-- a table that cannot be read returns no rows, and does not affect the others
exception when others or query_canceled or assert_failure then
  get stacked diagnostics v_context = pg_exception_context;
  perform holdfast.tidy_session(v_marks);
  if holdfast.is_of_the_caller(sqlstate, v_context) and sqlstate <> '55P03' then
    raise;
  end if;
  return null;
end
$$;

-- adopted_read: rows of an adopted table, as adopted_jobs asks for them. If one of them cannot be read, they are halved
-- until it is found: it is returned with an empty payload, and its error is why.
create or replace function holdfast.adopted_read(part smallint, ids uuid[], before uuid, most integer)
returns holdfast_adopted.job_row[]
language plpgsql stable
as $$
declare
  v_sql   constant text := format('select array_agg(r) from holdfast_adopted.%I($1, $2, $3, $4) r', part || '_rows');
  v_rows  holdfast_adopted.job_row[];
  v_half  integer;
  v_why   text;
  v_context text;
  v_marks   text[];
begin
  v_marks := holdfast.marks_before(part);
  begin
    execute v_sql into v_rows using ids, before, most, false;
    perform holdfast.check_after(part, v_marks);
    return v_rows;
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    perform holdfast.tidy_session(v_marks);
    if holdfast.is_of_the_caller(sqlstate, v_context) then
      raise;
    end if;
    v_why := sqlerrm;
  end;
  begin
    v_marks := holdfast.marks_before(part);   -- a session that was tidied is another than before
    execute v_sql into v_rows using ids, before, most, true;
    perform holdfast.check_after(part, v_marks);
  exception when others or query_canceled or assert_failure then
    perform holdfast.tidy_session(v_marks);
    raise;
  end;
  if cardinality(v_rows) = 1 then
    v_rows[1].error := left(v_why, 1000);
  elsif v_rows is not null then
    ids := array(select r.id from unnest(v_rows) r order by r.id desc);
    v_half := cardinality(ids) / 2;
    v_rows := array(
      select r from (
        select * from unnest(holdfast.adopted_read(part, ids[:v_half], null, null))
        union all
        select * from unnest(holdfast.adopted_read(part, ids[v_half + 1:], null, null))) r
      order by r.id desc);
  end if;
  return v_rows;
end
$$;

-- adopted_jobs: rows of an adopted table as jobs: those with these ids, or a page, newest first. A table that cannot
-- be read returns no rows, so that it does not affect the others.
create or replace function holdfast.adopted_jobs(part smallint, ids uuid[] default null, before uuid default null,
  most integer default null)
returns table (
  id uuid, queue text, kind text, state text, priority smallint, attempt smallint, max_attempts smallint,
  run_at timestamptz, created_at timestamptz,
  lease_until timestamptz, worker text, lane text, tenant text, subject text, payload jsonb, error text,
  fingerprint text, reason text, ended_at timestamptz, token uuid, total_attempts integer)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_queue text;
  v_most  smallint;
  v_rows  holdfast_adopted.job_row[];
  v_context text;
begin
  select a.queue, q.max_attempts into v_queue, v_most
  from holdfast.adopted a
  cross join lateral holdfast.settings_of(a.queue) q
  where a.part = adopted_jobs.part and a.live;
  if not found then
    return;
  end if;
  begin
    v_rows := holdfast.adopted_read(part, ids, before, most);
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    if holdfast.is_of_the_caller(sqlstate, v_context) and sqlstate <> '55P03' then
      raise;
    end if;
    return;
  end;
  return query
    select r.id, v_queue, holdfast.adopted_kind(r.kind, v_queue), case when f.id is null then s.state else 'dead' end,
           least(greatest(r.priority, 0), 9)::smallint, coalesce(r.attempt, 0::smallint),
           coalesce(r.max_attempts, v_most), r.run_at, r.created_at,
           case when f.id is null then r.lease_until end, r.worker, r.lane, r.tenant, r.subject, r.payload,
           case when f.id is null then r.error else f.message end,
           case when f.id is not null then holdfast.fingerprint('Refused', f.message)
                when s.state = 'dead' then left(md5(':' || coalesce(r.error, '')), 8) end,
           case when f.id is null then r.reason else format('the row refused to be changed (%s)', f.verb) end,
           coalesce(f.at, r.ended_at), r.token, coalesce(b.attempts, 0) + coalesce(r.attempt, 0)
    from unnest(v_rows) with ordinality r(id, token, kind, state, priority, attempt, max_attempts, run_at, created_at,
      lease_until, worker,
      lane, tenant, subject, payload, error, reason, ended_at, nth)
    cross join lateral (
      select case when r.state in ('queued', 'leased', 'done', 'dead', 'cancelled') then r.state
             else 'archived' end as state) s
    left join holdfast.adopted_fault f on f.part = adopted_jobs.part and f.id = r.id
    left join holdfast.adopted_lives b on b.part = adopted_jobs.part and b.id = r.id
    where holdfast.part_of(r.id) = adopted_jobs.part
    order by r.nth;
end
$$;

-- version: the schema's version, the number of its newest migration.
create or replace function holdfast.version()
returns integer
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select max(m.version)::integer from holdfast.migration m $$;

-- shell: a word quoted for a shell, for commands that users copy. A word that looks like an option follows two dashes.
create or replace function holdfast.shell(word text)
returns text
language sql immutable parallel safe
as $$
  select case when word like '-%' then '-- ' else '' end
         || case when word ~ '^[A-Za-z0-9_@%+=:,./-]+$' then word
                 else format('%1$s%2$s%1$s', chr(39), replace(word, chr(39), format('%1$s"%1$s"%1$s', chr(39)))) end
$$;

-- filter_word: a name quoted for a filter.
create or replace function holdfast.filter_word(name text)
returns text
language sql immutable parallel safe
as $$
  select case when name ~ '^[A-Za-z0-9_@%+=./-]+$' then name
              else '"' || replace(replace(name, '\', '\\'), '"', '\"') || '"' end
$$;

-- is_coded: whether a payload is not stored as it was enqueued: it is encrypted, or kept elsewhere.
create or replace function holdfast.is_coded(payload jsonb)
returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(payload) = 'object' and payload ? '$holdfast'
$$;
