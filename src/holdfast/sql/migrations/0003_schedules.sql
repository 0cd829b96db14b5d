-- Who works, who leads, and what is to happen when.

-- Workers that said they live. For people, and for deciding who is asked; never for safety.
create table holdfast.worker (
  name       text collate "C" primary key,
  seen_at    timestamptz not null,
  started_at timestamptz not null,
  host       text,
  pid        integer,
  version    text,
  python     text,
  queues     text[]      not null default '{}',
  kinds      text[]      not null default '{}',
  slots      integer     not null default 0,
  busy       integer     not null default 0,
  rss        bigint,                                  -- bytes
  loop_lag   double precision,                        -- seconds
  claimed    bigint      not null default 0,          -- these four since it started
  acked      bigint      not null default 0,
  failed     bigint      not null default 0,
  lost       bigint      not null default 0,
  stop_at    timestamptz,                             -- somebody asked it to stop
  stop_by    text
) with (fillfactor = 50);

-- Who does upkeep now. It saves work and is no lock.
alter table holdfast.pulse
  add column leader       text,
  add column leader_until timestamptz not null default '-infinity',
  add column term         bigint      not null default 0;

-- What is to be enqueued again and again. Clients compute slots, since time zones and their calendars are
-- theirs to know; the database decides which of them have come.
create table holdfast.schedule (
  name          text collate "C" primary key,
  kind          text collate "C" not null,
  queue         text collate "C" not null default 'default',
  payload       jsonb       not null default '{}',
  options       jsonb       not null default '{}',    -- what else an item of enqueue may say
  cron          text,
  every         interval,
  anchor        timestamptz,                          -- slots of an interval are anchor + n * every
  tz            text        not null default 'UTC',
  missed        text        not null default 'once',
  overlap       text        not null default 'queue',
  -- -infinity: the first slot after `since` is still to be computed; infinity: there is none
  next_at       timestamptz not null default '-infinity',
  since         timestamptz not null,
  revision      bigint      not null default 1,       -- of the rule: slots computed by an older one do not count
  last_at       timestamptz,                          -- the newest slot that was decided about
  last_job      uuid,
  fired         bigint      not null default 0,
  skipped       bigint      not null default 0,
  problem       text,                                 -- why it cannot go on, or why its last slot made no job
  paused_at     timestamptz,
  paused_by     text,
  paused_reason text,
  owner         text,                                 -- the program that declares it
  withdrawn_at  timestamptz,                          -- its owner declares it no more
  declared      jsonb,                                -- as code said it last; null: made by a person
  edited        boolean     not null default false,   -- a person changed it since
  created_at    timestamptz not null,
  updated_at    timestamptz not null,
  updated_by    text,
  constraint "a schedule has a cron expression or an interval" check ((cron is null) <> (every is null)),
  constraint "an interval has an anchor" check ((every is null) = (anchor is null)),
  constraint "every is 1 second to 366 days" check (every between '1 second' and '366 days'),
  constraint "missed is skip, once or all" check (missed in ('skip', 'once', 'all')),
  constraint "overlap is queue, skip or cancel" check (overlap in ('queue', 'skip', 'cancel'))
);
create index schedule_due on holdfast.schedule (next_at) where paused_at is null and withdrawn_at is null;

-- What became of each slot. The primary key is what makes it one job per slot.
create table holdfast.schedule_slot (
  name    text collate "C" not null,
  slot    timestamptz not null,
  outcome text        not null,
  job     uuid,
  at      timestamptz not null,
  primary key (name, slot)
);
