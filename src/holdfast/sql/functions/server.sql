-- Functions for the HTTP server: requests that may be repeated, HTTP consumers, and receipts of deleted jobs.

-- once: whether a request was answered before; if not, the caller carries it out and stores the answer with
-- `answered`, in the same transaction. A repeat that arrives meanwhile waits for it. known is false for a new
-- request; same is false if the key was used for another one.
create or replace function holdfast.once(caller text, key text, digest text)
returns table (known boolean, same boolean, answer text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if not coalesce(length(key) between 1 and 200, false) then
    perform holdfast.refuse('HF202', format('key %L must have 1 to 200 characters', left(key, 40)));
  end if;
  insert into holdfast.request (caller, key, digest, at)
  values (once.caller, once.key, once.digest, holdfast.now())
  on conflict do nothing;
  if found then
    return query select false, true, null::text;
    return;
  end if;
  return query
    select true, r.digest = once.digest, r.answer
    from holdfast.request r
    where r.caller = once.caller and r.key = once.key;
end
$$;

-- answered: store the answer of a request that may be repeated.
create or replace function holdfast.answered(caller text, key text, answer text)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  update holdfast.request r
  set answer = answered.answer
  where r.caller = answered.caller and r.key = answered.key
$$;

-- receipt: what the ledger still knows about the last lease of a deleted job, for some minutes.
create or replace function holdfast.receipt(id uuid)
returns table (queue text, worker text, claimed_at timestamptz, outcome text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select l.queue, l.worker, l.claimed_at, coalesce(holdfast.how_taken(l.taken, receipt.id), 'acked')
  from holdfast.lease l
  where l.part = holdfast.part_of(receipt.id) and receipt.id = any(l.ids)
  order by l.claimed_at desc
  limit 1
$$;

-- tell: a beat for an HTTP consumer, with its counts since the last one. facts are those of beat; counts are claimed,
-- acked, failed, lost and busy_time, and are summed over all servers.
create or replace function holdfast.tell(worker text, facts jsonb default '{}', counts jsonb default '{}',
  measured jsonb default null)
returns table (stop boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query select b.stop from holdfast.beat(tell.worker, facts - 'claims', measured) b;
  update holdfast.worker w
  set claimed = w.claimed + coalesce((counts ->> 'claimed')::bigint, 0),
      acked   = w.acked + coalesce((counts ->> 'acked')::bigint, 0),
      failed  = w.failed + coalesce((counts ->> 'failed')::bigint, 0),
      lost    = w.lost + coalesce((counts ->> 'lost')::bigint, 0),
      busy_time = w.busy_time + coalesce((counts ->> 'busy_time')::double precision, 0),
      claims  = (array(select x::timestamptz from jsonb_array_elements_text(facts -> 'claims') x) || w.claims)[1:10]
  where w.name = tell.worker and (counts <> '{}' or facts ? 'claims');
end
$$;
