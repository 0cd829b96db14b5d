-- Tokens: who may call the server. Clients create and hash secrets; the database never sees one.

-- token_create: store the hash of a secret under a public id. sort is token (for programs), session (a signed-in
-- browser) or link (signs in once); parent is the token it was created with.
create or replace function holdfast.token_create(
  id text, hash bytea, name text, scopes text[], queues text[] default null, expires interval default null,
  sort text default 'token', parent text default null, actor text default null)
returns setof holdfast.api_tokens
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_odd text;
begin
  perform holdfast.named('id', id);
  perform holdfast.named('name', name);
  perform holdfast.check_length('expires', expires, '100 years');
  if coalesce(cardinality(scopes), 0) = 0 or not scopes <@ '{read,produce,consume,operate,admin}' then
    perform holdfast.refuse('HF224', format('scopes %s are not valid', scopes), null,
      'Scopes are: read, produce, consume, operate, admin.');
  end if;
  -- as they can stand in a filter, by which the token's jobs are found
  select q into v_odd from unnest(queues) q where not coalesce(q ~ '^[^\s,"*]{1,120}$', false) limit 1;
  if found or cardinality(queues) = 0 then
    perform holdfast.refuse('HF224', format('queue %L cannot be used in a token', v_odd), null,
      'Use names without spaces, commas, quotes and stars; leave queues out to allow all.');
  end if;
  if length(hash) <> 32 or hash is null or not coalesce(sort in ('token', 'link', 'session'), false) then
    perform holdfast.refuse('HF224', 'hash is not the SHA-256 of a secret, or sort is unknown');
  end if;
  return query
    with made as (
      insert into holdfast.api_token (id, sort, name, hash, scopes, queues, parent, created_at, created_by, expires_at)
      values (token_create.id, token_create.sort, token_create.name, token_create.hash, token_create.scopes,
        token_create.queues, token_create.parent, holdfast.now(), token_create.actor,
          holdfast.now() + token_create.expires)
      returning *
    )
    select m.id, m.sort, m.name, m.scopes, m.queues, m.created_at, m.created_by, m.expires_at, m.used_at, m.revoked_at,
           m.revoked_by
    from made m;
  if sort = 'token' then
    perform holdfast.note('token_created', actor, detail => jsonb_build_object('token', id, 'name', name, 'scopes',
      scopes, 'queues', queues));
  end if;
end
$$;

-- token_find: a valid token, with its hash for the caller to compare. Records its use, at most once a minute.
create or replace function holdfast.token_find(id text)
returns table (name text, hash bytea, scopes text[], queues text[], sort text, expires_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.now();
begin
  return query
    select t.name, t.hash, t.scopes, t.queues, t.sort, t.expires_at
    from holdfast.api_token t
    where t.id = token_find.id and t.sort <> 'link' and t.revoked_at is null
      and (t.expires_at is null or t.expires_at > v_now)
      and not exists (
        select from holdfast.api_token p
        where p.id = t.parent and (p.revoked_at is not null or p.sort = 'token' and p.expires_at <= v_now));
  if found and current_setting('transaction_read_only') = 'off' then
    update holdfast.api_token t set used_at = v_now
    where t.ctid = any(array(
      select x.ctid from holdfast.api_token x
      where x.id = token_find.id and (x.used_at is null or x.used_at < v_now - interval '1 minute')
      for update skip locked));
  end if;
end
$$;

-- link_spend: use a link once; no row if it was used, has expired or does not exist.
create or replace function holdfast.link_spend(id text, hash bytea)
returns table (name text, scopes text[], queues text[])
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  update holdfast.api_token t
  set used_at = holdfast.now()
  where t.id = link_spend.id and t.hash = link_spend.hash and t.sort = 'link' and t.used_at is null
    and t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.now())
  returning t.name, t.scopes, t.queues
$$;

-- token_revoke: revoke a token; returns whether it exists.
create or replace function holdfast.token_revoke(id text, actor text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.api_token t
  set revoked_at = coalesce(t.revoked_at, holdfast.now()), revoked_by = coalesce(t.revoked_by, token_revoke.actor)
  where t.id = token_revoke.id;
  if not found then
    return false;
  end if;
  perform holdfast.note('token_revoked', actor, detail => jsonb_build_object('token', id));
  return true;
end
$$;
