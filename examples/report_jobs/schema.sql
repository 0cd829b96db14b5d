-- A shop's report queue, as it was before Holdfast: a table, a status, and a script that polled it.

create table sale (
  id     bigint generated always as identity primary key,
  sold   date           not null,
  store  text           not null,
  amount numeric(10, 2) not null
);

create table jobs (
  id           bigint generated always as identity primary key,
  store        text        not null,
  month        date        not null,
  status       varchar(20) not null default 'queued'
    check (status in ('queued', 'started', 'completed', 'failed')),
  created_at   timestamp   not null default now(),
  started_at   timestamp,
  completed_at timestamp
);

create table report (
  id     bigint generated always as identity primary key,
  job_id bigint references jobs (id),
  title  text not null,
  chart  text not null
);

insert into sale (sold, store, amount)
select date '2026-01-01' + d, s.store, round((40 + 25 * sin((d + length(s.store)) / 9.0) + (d * 37 % 11))::numeric, 2)
from generate_series(0, 180) d
cross join (values ('Lisbon'), ('Oslo'), ('Tallinn')) s(store);

-- January was made long ago; a script died in the middle of February; the rest waits.
insert into jobs (store, month, status, started_at, completed_at)
select s.store, m.month::date,
  case when m.month < '2026-02-01' then 'completed' when m.month < '2026-03-01' then 'started' else 'queued' end,
  case when m.month < '2026-03-01' then now() - interval '2 hours' end,
  case when m.month < '2026-02-01' then now() - interval '2 hours' end
from (values ('Lisbon'), ('Oslo'), ('Tallinn')) s(store)
cross join generate_series('2026-01-01', '2026-06-01', interval '1 month') m(month);

-- The script had finished Oslo's February and had no time to say so.
insert into report (job_id, title, chart)
select j.id, 'Oslo, February 2026', '…'
from jobs j
where j.store = 'Oslo' and j.month = '2026-02-01' or j.status = 'completed';
