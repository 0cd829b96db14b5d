-- What upkeep remembers, so that a turn costs what has changed and not how many names there ever were.

-- Queues whose counters changed lately, noted when deltas are folded. Those who follow the counters look here.
create table holdfast.stir (
  queue  text collate "C" primary key,
  at     timestamptz not null,
  clock  timestamptz not null,                        -- the same moment by the real clock, which floors go by
  raised boolean     not null default false           -- its floors have been to what had changed then
) with (fillfactor = 50);
create index stir_new on holdfast.stir (queue) where not raised;

-- Queues that samples keep one by one; all others are in one sum.
create table holdfast.sampled (
  queue text collate "C" primary key
);

-- Steps of upkeep that fail, since when and why. A queue of '' is all of them.
create table holdfast.failing (
  step    text        not null,
  queue   text collate "C" not null default '',
  since   timestamptz not null,
  at      timestamptz not null,
  times   bigint      not null default 1,
  problem text        not null,
  primary key (step, queue)
);

-- How far a chore has come that is done in parts; null or empty: it begins anew.
alter table holdfast.chore add column cursor text[] not null default '{}';
insert into holdfast.chore (name) values ('paged'), ('activity'), ('unused'), ('due'), ('floors'), ('strays');

-- When a counter last changed. Constant for the rows that are there: none of them is forgotten too soon.
alter table holdfast.total add column at timestamptz not null default statement_timestamp();

-- Somebody made or set up this queue. Others are registered by their jobs, and forgotten when nobody uses them.
alter table holdfast.queue add column set_at timestamptz;
update holdfast.queue q
set set_at = statement_timestamp()
where (q.max_attempts, q.lease, q.keep_done, q.payload_limit, q.backoff, q.backoff_cap, q.fair, q.by_kind, q.lane_limit,
       q.lane_on_failure, q.fanout, q.activity, q.keep_activity)
      is distinct from (3, interval '30 seconds', interval '0', 262144, interval '1 second', interval '1 hour', false, false, 1,
       'skip', 1, 'failures', interval '7 days')
   or num_nonnulls(q.lease_limit, q.rate_limit, q.paused_at, q.adopted) > 0;

-- Longer than anybody can mean: a moment that far away is none that a clock could reach.
update holdfast.queue q
set lease = least(q.lease, '1 year'), keep_done = least(q.keep_done, '100 years'), backoff = least(q.backoff, '1 year'),
    backoff_cap = least(q.backoff_cap, '1 year'), rate_period = least(q.rate_period, '1 year'),
    paused_until = case when q.paused_until between '0001-01-02 00:00Z' and '9999-12-30 00:00Z' then q.paused_until end
where q.lease > '1 year' or q.keep_done > '100 years' or q.backoff > '1 year' or q.backoff_cap > '1 year' or q.rate_period > '1 year'
   or not q.paused_until between '0001-01-02 00:00Z' and '9999-12-30 00:00Z';
update holdfast.lane l set rate_period = '1 year' where l.rate_period > '1 year';
alter table holdfast.queue
  add constraint "lease is at most 1 year" check (lease <= '1 year'),
  add constraint "keep_done is at most 100 years" check (keep_done <= '100 years'),
  add constraint "backoff is at most 1 year" check (backoff <= '1 year'),
  add constraint "backoff_cap is at most 1 year" check (backoff_cap <= '1 year'),
  add constraint "rate_period is at most 1 year" check (rate_period <= '1 year'),
  add constraint "paused_until is a time of the calendar" check (paused_until between '0001-01-02 00:00Z' and '9999-12-30 00:00Z');
alter table holdfast.lane add constraint "rate_period is at most 1 year" check (rate_period <= '1 year');

-- So that the longest of each is found without reading every queue.
create index queue_keep_done on holdfast.queue (keep_done) where keep_done > '0';
create index queue_keep_activity on holdfast.queue (keep_activity);
create index queue_rate on holdfast.queue (rate_period) where rate_period is not null;
create index lane_rate on holdfast.lane (rate_period) where rate_period is not null;

create index reading_at on holdfast.reading (at);

-- What a job was before an operation retried it, so that an undo gives all of it back.
alter table holdfast.operation_chunk add column ended jsonb[];
