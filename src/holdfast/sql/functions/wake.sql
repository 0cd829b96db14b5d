-- Notifications: idle workers are notified when there are jobs, and callers when the job that they wait for has ended.

-- wake: notify idle workers of these queues when the caller's transaction commits. Only waiting workers are notified,
-- each once: if all are busy, producers send no notifications, which would serialise their commits. Here the queue is
-- only recorded: taking a worker from the list before the commit would keep other transactions from notifying it
-- while this one is open.
create or replace function holdfast.wake(queues text[], jobs bigint)
returns void
language plpgsql
as $$
declare
  v_rung  jsonb;     -- of each queue, for how many jobs this transaction has rung already
  v_queue text;
  v_more  integer;
begin
  if not exists (select from holdfast.waiter w where w.queue = any(queues) and w.until > holdfast.now()) then
    return;
  end if;
  v_rung := coalesce(nullif(current_setting('holdfast.rung', true), ''), '{}');
  for v_queue in select distinct q from unnest(queues) q loop
    v_more := least(jobs, 16 - coalesce((v_rung ->> v_queue)::integer, 0));
    continue when v_more <= 0;
    -- Whoever had all constraints checked at once would have who waits taken from the list now, and be the only one
    -- to tell them while its transaction is open.
    set constraints holdfast.ring deferred;
    insert into holdfast.bell (queue, jobs) values (v_queue, v_more);
    v_rung := v_rung || jsonb_build_object(v_queue, coalesce((v_rung ->> v_queue)::integer, 0) + v_more);
  end loop;
  perform set_config('holdfast.rung', v_rung::text, true);
end
$$;

-- wake_for_ready: the same for one queue, if a worker waits and jobs are ready.
create or replace function holdfast.wake_for_ready(queue text, jobs bigint)
returns void
language plpgsql
as $$
begin
  if exists (select from holdfast.waiter w where w.queue = wake_for_ready.queue and w.until > holdfast.now())
     and holdfast.oldest(queue) is not null then
    perform holdfast.wake(array[wake_for_ready.queue], jobs);
  end if;
end
$$;

-- ring: send the recorded notifications at the commit. A transaction that is being prepared cannot notify, and one
-- whose constraints are checked may stay open and would keep others from notifying: their records are kept, and upkeep
-- notifies once they are committed; as those that were kept from the beginning.
create or replace function holdfast.ring()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  v_where text;
begin
  get diagnostics v_where = pg_context;
  if new.kept then
    return null;
  elsif not holdfast.is_committing(current_query(), v_where) then
    update holdfast.bell b set kept = true where b.nth = new.nth;
    return null;
  end if;
  delete from holdfast.bell b where b.nth = new.nth;
  if new.queue is not null then
    perform holdfast.tell_waiters(new.queue, new.jobs);
  end if;
  if new.worker is not null then
    perform pg_notify('holdfast', E'\n' || new.worker);
  end if;
  if new.event is not null then
    perform holdfast.ring_event(new.event, new.key);
  end if;
  if new.ended is not null then
    perform pg_notify('holdfast_ended', new.ended);
  end if;
  return null;
end
$$;

-- is_committing: whether a trigger that may wait for the commit runs because of one. place: what runs it, from the
-- inside to the outside. Nothing at all does at a commit, unless it is that of a program, for which no language of
-- messages has another word; and the one statement that has a trigger run before, and nothing else around it, is
-- SET CONSTRAINTS.
create or replace function holdfast.is_committing(query text, place text)
returns boolean
language sql immutable
as $$
  select not holdfast.contains(query, 'prepare', 'transaction') and not holdfast.contains(query, 'set', 'constraints')
    and place ~ '^[^\n]*(?:\n[^\n]*\mCOMMIT(?:\n|$)|$)'
$$;

-- contains: whether a query has these two words, one after the other. Literals, names and comments are removed first;
-- most queries contain neither word.
create or replace function holdfast.contains(query text, first text, second text)
returns boolean
language sql immutable
as $$
  select coalesce(query ~* format('\m%s\M', first) and query ~* format('\m%s\M', second) and regexp_replace(query,
    -- {1,1}? makes it end at the first end that it can have
    '(?:\me''(?:[^''\\]|\\.)*''|''[^'']*''|"[^"]*"|\$(\w*)\$.*\$\1\$|/\*.*\*/|--[^\n]*(?:\n|$)){1,1}?', ' ', 'gi')
    ~* format('\m%s\s+%s\M', first, second), false)
$$;

-- tell_waiters: notify as many waiting workers of a queue as it has jobs, and remove them from the list. Workers with
-- different kinds are counted separately, because a notified worker may not handle the job. The worker that
-- registered last comes first: one that is frozen or disconnected is unlikely to be among the latest. A worker whose
-- listener is gone is only removed from the list. It never waits for a lock.
create or replace function holdfast.tell_waiters(queue text, jobs integer)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_left integer;
  these  record;
  one    record;
begin
  for these in
    select distinct w.kinds from holdfast.waiter w where w.queue = tell_waiters.queue and w.until > holdfast.now()
  loop
    v_left := jobs;
    while v_left > 0 loop
      delete from holdfast.waiter w
      where w.ctid = any(array(
        select x.ctid
        from holdfast.waiter x
        where x.queue = tell_waiters.queue and x.until > holdfast.now() and x.kinds is not distinct from these.kinds
        order by x.until desc
        limit 1
        for update skip locked))
      returning w.worker, w.ear into one;
      exit when not found;
      -- Shared among those who ask; only the session that listens has it for itself.
      continue when one.ear is not null and pg_try_advisory_xact_lock_shared(4917, one.ear);
      delete from holdfast.waiter w
      where w.ctid = any(array(
        select x.ctid
        from holdfast.waiter x
        where x.queue = tell_waiters.queue and x.until > holdfast.now() and x.worker = one.worker
        for update skip locked));
      perform pg_notify('holdfast', tell_waiters.queue || E'\n' || one.worker);
      v_left := v_left - 1;
    end loop;
  end loop;
end
$$;

-- ring_kept: notify for transactions that were prepared and have been committed, or that could not tell who waits for
-- an end: those have left the id alone, without a waiter.
create or replace function holdfast.ring_kept()
returns integer
language plpgsql
as $$
declare
  v_rung integer;
  v_left uuid[];
begin
  if not exists (select from holdfast.bell b where b.kept) then
    return 0;
  end if;
  with late as (
    delete from holdfast.bell b
    where b.nth = any(array(select x.nth from holdfast.bell x where x.kept and x.ended not like E'%\n%' order by x.nth
      limit 1000 for update skip locked))
    returning b.ended
  )
  select array_agg(distinct l.ended::uuid) into v_left from late l;
  perform holdfast.tell_awaited(v_left, late => true) where v_left is not null;
  with late as (
    delete from holdfast.bell b
    where b.nth = any(array(select x.nth from holdfast.bell x where x.kept and (x.ended is null or x.ended like E'%\n%')
      order by x.nth limit 1000 for update skip locked))
    returning b.queue, b.jobs, b.worker, b.event, b.key, b.ended
  )
  insert into holdfast.bell (queue, jobs, worker, event, key, ended)
  select l.queue, least(sum(l.jobs), 16), l.worker, l.event, l.key, l.ended
  from late l
  group by l.queue, l.worker, l.event, l.key, l.ended;
  get diagnostics v_rung = row_count;
  return v_rung;
end
$$;

-- await_work: request a notification of the next enqueue into one of these queues. kinds are those the worker
-- handles, if not all; ear is what hear() returned to the session that listens. NOTIFY is only a hint: workers also
-- poll.
create or replace function holdfast.await_work(
  queues text[], worker text, patience interval default '1 minute', kinds text[] default null, ear integer default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('worker', worker);
  perform holdfast.named('queue', q, 120) from unnest(queues) q;
  perform holdfast.named('kind', k) from unnest(kinds) k;
  if patience is null then
    perform holdfast.refuse('HF204', 'patience is missing', null,
      'Give the time to stay on the list, for example ''1 minute''.');
  end if;
  perform holdfast.check_length('patience', patience, '1 day');
  insert into holdfast.waiter (queue, until, worker, kinds, ear)
  select q, holdfast.now() + patience, await_work.worker,
         case when await_work.kinds is not null then array(select distinct k from unnest(await_work.kinds) k
           order by k) end, await_work.ear
  from unnest(queues) q;
end
$$;

-- hear: a number for await_work, by which others can check that the listening session is alive. It is a lock of this
-- session, which ends with the session, for whatever reason.
create or replace function holdfast.hear()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ear integer;
begin
  loop
    v_ear := floor(random() * 2147483647)::integer;
    exit when pg_try_advisory_lock(4917, v_ear);
  end loop;
  return v_ear;
end
$$;

-- pass_on: a notified worker passes the notification on to another waiting worker, if jobs are left: because it
-- cannot take one now, or because it has filled all its slots.
create or replace function holdfast.pass_on(queue text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.wake_for_ready(queue, 1);
end
$$;

-- ping: notify one worker, without a queue: to test its connection, or to make it check its leases.
create or replace function holdfast.ping(worker text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('worker', worker);
  perform pg_notify('holdfast', E'\n' || ping.worker);
end
$$;

-- await_end: request a notification on the channel holdfast_ended when these jobs end: its text is the id, a line feed
-- and the waiter. One is sent at once for each, so that the caller knows that notifications arrive. They are only a
-- hint, and one that ends at this moment may have passed by: ask not_ending in a transaction after this one.
create or replace function holdfast.await_end(ids uuid[], waiter text, patience interval default '1 minute')
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.named('waiter', waiter);
  if patience is null then
    perform holdfast.refuse('HF204', 'patience is missing', null,
      'Give the time to stay on the list, for example ''1 minute''.');
  end if;
  perform holdfast.check_length('patience', patience, '1 day');
  if cardinality(ids) > 1000 then
    perform holdfast.refuse('HF204', format('ids must be at most 1000 (got %s)', cardinality(ids)));
  end if;
  lock table holdfast.listening_now in row share mode;   -- so that nobody stops listening meanwhile
  if not holdfast.somebody_waits() then
    perform setval('holdfast.listening', 1);
  end if;
  insert into holdfast.awaited as a (part, id, waiter, until)
  select distinct holdfast.part_of(i), i, await_end.waiter, holdfast.now() + patience
  from unnest(ids) i
  where i is not null
  on conflict on constraint awaited_pkey do update set until = greatest(a.until, excluded.until);
  perform pg_notify('holdfast_ended', i::text || E'\n' || await_end.waiter) from unnest(ids) i where i is not null;
end
$$;

-- not_ending: those of these jobs that live and that no open transaction changes. Whoever ends a job deletes its row
-- first, and then looks for who waits. So a waiter that was on the list before this call will be notified of their
-- end.
create or replace function holdfast.not_ending(ids uuid[])
returns uuid[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  v_live  uuid[];
  v_marks xid[];   -- who last locked or deleted each
begin
  select array_agg(j.id), array_agg(j.xmax) into v_live, v_marks
  from unnest(ids) i
  join holdfast.job j on j.part = holdfast.part_of(i) and j.id = i
  where j.xmax::text = '0' or holdfast.has_finished(j.xmax);
  -- Again, because who had not finished when the first look began may have been deleting them.
  return array(
    select j.id
    from unnest(v_live, v_marks) l(id, mark)
    join holdfast.job j on j.part = holdfast.part_of(l.id) and j.id = l.id
    where j.xmax::text in ('0', l.mark::text));
end
$$;

-- has_finished: whether whoever last locked or deleted a row has finished. A row names a transaction, a part of one
-- (a savepoint) or a group of them, all as one kind of number and without its upper half.
create or replace function holdfast.has_finished(mark xid)
returns boolean
language plpgsql
as $$
begin
  if holdfast.is_open(mark) then
    return false;
  end if;
  begin
    return not exists (select from pg_get_multixact_members(mark) m where holdfast.is_open(m.xid));
  exception when internal_error or invalid_parameter_value then
    return true;   -- not the number of a group
  end;
end
$$;

-- is_open: whether a transaction, or a part of one, is in progress.
create or replace function holdfast.is_open(transaction xid)
returns boolean
language plpgsql
as $$
declare
  v_next constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
  v_ago  constant bigint := (v_next - transaction::text::bigint + 6442450944) % 4294967296 - 2147483648;
begin
  return coalesce(pg_xact_status((v_next - v_ago)::text::xid8) = 'in progress', false);
exception when invalid_parameter_value then
  return false;   -- no transaction has had this number yet
end
$$;

-- somebody_waits: whether somebody may wait for the end of a job. Known at once, also before that one commits.
create or replace function holdfast.somebody_waits()
returns boolean
language sql
as $$ select pg_sequence_last_value('holdfast.listening') is not null $$;

-- stop_listening: nobody waits for the end of a job any more. Not while somebody is about to.
create or replace function holdfast.stop_listening()
returns void
language plpgsql
as $$
begin
  if not holdfast.somebody_waits() then
    return;
  end if;
  begin
    lock table holdfast.listening_now in exclusive mode nowait;
  exception when lock_not_available then
    return;
  end;
  -- in a statement of its own, which sees who came before the lock
  perform setval('holdfast.listening', 1, false) where not exists (select from holdfast.awaited);
end
$$;

-- tell_awaited: notify who waits for the end of these jobs, when the caller's transaction commits. It is called after
-- the statement that removes them, never before: see not_ending. It waits for nobody who asks to wait once more. Those
-- whom somebody is at, or whom the caller's snapshot may not show, are left to upkeep, which is late.
create or replace function holdfast.tell_awaited(ids uuid[], late boolean default false)
returns void
language plpgsql
as $$
begin
  if not holdfast.somebody_waits() then
    return;
  end if;
  set constraints holdfast.ring deferred;
  if not late and current_setting('transaction_isolation') <> 'read committed' then
    insert into holdfast.bell (ended, kept) select i::text, true from unnest(ids) i;
    return;
  end if;
  with free as materialized (
    select a.part, a.id, a.waiter
    from unnest(ids) i
    join holdfast.awaited a on a.part = holdfast.part_of(i) and a.id = i
    for update of a skip locked
  ), told as (
    delete from holdfast.awaited a using free f where a.part = f.part and a.id = f.id and a.waiter = f.waiter
    returning a.id, a.waiter
  )
  insert into holdfast.bell (ended) select t.id::text || E'\n' || t.waiter from told t;
  insert into holdfast.bell (ended, kept)
  select distinct a.id::text, true
  from unnest(ids) i
  join holdfast.awaited a on a.part = holdfast.part_of(i) and a.id = i;
end
$$;
