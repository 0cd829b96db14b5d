-- Payloads that are too large for the row of their job: stored in the caller's transaction, read by a worker, deleted
-- when no job has their address any more.

-- large_put: store the payload of a job that is enqueued in the same transaction.
create or replace function holdfast.large_put(address text, data bytea)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.large_payload (address, data, created_at)
  values (large_put.address, large_put.data, holdfast.now())
$$;

-- large_get: return a payload; null if there is none.
create or replace function holdfast.large_get(address text)
returns bytea
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.data from holdfast.large_payload p where p.address = large_get.address
$$;

-- large_list: return the addresses of payloads stored before a time.
create or replace function holdfast.large_list(before timestamptz)
returns setof text
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.address from holdfast.large_payload p where p.created_at < before
$$;

-- large_used: return which addresses jobs have in a store, live or ended: those must not be deleted.
create or replace function holdfast.large_used(store text)
returns setof text
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select j.payload #>> '{$holdfast,address}'
  from (
    select x.payload from holdfast.job x
    union all
    select e.payload from holdfast.ended e
  ) j
  where holdfast.is_coded(j.payload) and j.payload #>> '{$holdfast,store}' = store
$$;

-- large_delete: delete payloads; returns how many there were.
create or replace function holdfast.large_delete(addresses text[])
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_gone bigint;
begin
  delete from holdfast.large_payload p where p.address = any(addresses);
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;
