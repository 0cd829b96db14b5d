-- What the server keeps: who may call it, what must not happen twice, and work on many jobs at once.

-- Secrets that let callers in. Only a hash is kept: whoever reads this table can call nobody.
create table holdfast.api_token (
  id         text collate "C" primary key,            -- the part of a token that is no secret
  sort       text        not null,
  name       text        not null,
  hash       bytea       not null,
  scopes     text[]      not null,
  queues     text[],                                  -- null: all
  parent     text,                                    -- what it was got by: a revoked parent ends it too
  created_at timestamptz not null,
  created_by text,
  expires_at timestamptz,
  used_at    timestamptz,                             -- to the minute; a link is used once
  revoked_at timestamptz,
  revoked_by text,
  constraint "sort is token, link or session" check (sort in ('token', 'link', 'session')),
  constraint "scopes are read, produce, consume, operate and admin"
    check (scopes <> '{}' and scopes <@ '{read,produce,consume,operate,admin}')
);
create index api_token_expires on holdfast.api_token (expires_at) where sort <> 'token';

-- Answers to requests that may come twice: written in the transaction of what the request did.
create table holdfast.request (
  caller text        not null,
  key    text        not null,
  digest text        not null,                        -- of what was asked: another request may not use the key
  at     timestamptz not null,
  answer text,
  primary key (caller, key)
);
create index request_at on holdfast.request (at);

-- One verb for all jobs that match a filter, done in chunks. A preview is one that nobody has started.
create table holdfast.operation (
  id         bigint      generated always as identity primary key,
  token      uuid        not null default gen_random_uuid() unique,   -- of the preview
  state      text        not null default 'previewed',
  verb       text        not null,
  filter     text        not null,
  arguments  jsonb       not null default '{}',
  most       bigint,                                  -- only so many, the newest
  as_of      timestamptz not null,                    -- jobs that came to match later are left alone
  total      bigint      not null,
  capped     boolean     not null,                    -- there are more than total
  rate       double precision,                        -- jobs per second; null: as fast as it goes
  reason     text,
  actor      text,
  seen       bigint      not null default 0,
  changed    bigint      not null default 0,
  at_part    smallint    not null default 0,          -- where it goes on
  at_id      uuid,
  next_at    timestamptz,
  created_at timestamptz not null,
  started_at timestamptz,
  ended_at   timestamptz,
  ended_by   text,
  problem    text,
  constraint "state is previewed, running, done, cancelled or failed"
    check (state in ('previewed', 'running', 'done', 'cancelled', 'failed')),
  constraint "verb is retry, cancel, archive, purge or move" check (verb in ('retry', 'cancel', 'archive', 'purge', 'move')),
  constraint "rate is above 0" check (rate > 0)
);
create index operation_running on holdfast.operation (next_at) where state = 'running';
create index operation_created on holdfast.operation (created_at);

-- How many dead jobs failed alike: changes, summed up now and then.
create table holdfast.dead_tally (
  part        smallint not null,
  fingerprint text,
  kind        text collate "C" not null,
  queue       text collate "C" not null,
  jobs        bigint not null
);
insert into holdfast.dead_tally
select d.part, d.fingerprint, d.kind, d.queue, count(*) from holdfast.dead d group by d.part, d.fingerprint, d.kind, d.queue;
