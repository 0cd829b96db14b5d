-- Where jobs and lanes live, and under which ids they are known.

-- The lane that a job has halted, wherever the lane is by now.
create index lane_halted on holdfast.lane (halted_by) where halted_by is not null;

-- Settings of lanes that a growing fanout left behind in the part where the lane was before. A row that is where it
-- belongs wins; so does, of several, one with settings. On a new database there are no queues, and no functions yet.
do $$
declare
  fanned record;
begin
  for fanned in select q.name, q.fanout from holdfast.queue q where q.fanout > 1 loop
    execute $move$
      with gone as (
        delete from holdfast.lane l where l.queue = $1 returning l.*
      )
      insert into holdfast.lane (part, queue, name, lane_limit, on_failure, rate_limit, rate_period, halted_by)
      select distinct on (g.name) h.part, g.queue, g.name, g.lane_limit, g.on_failure, g.rate_limit, g.rate_period, g.halted_by
      from gone g
      cross join lateral (select holdfast.fanned_part($1, $2, jsonb_build_object('lane', g.name), 0) as part) h
      order by g.name, num_nonnulls(g.lane_limit, g.on_failure, g.rate_limit, g.halted_by) > 0 desc, g.part = h.part desc
    $move$ using fanned.name, fanned.fanout::integer;
  end loop;
end
$$;

-- Jobs that lie in another part than their id says: no verb reaches them. They get the right one into their ids, and
-- times that every calendar has. Reads the hot table once.
do $$
declare
  bad record;
begin
  for bad in
    select j.part, j.id, j.ctid as in_row
    from holdfast.job j
    where get_byte(uuid_send(j.id), 7) <> j.part or get_byte(uuid_send(j.id), 6) & 15 <> 0
  loop
    begin
      update holdfast.job j
      set id = encode(set_byte(set_byte(uuid_send(j.id), 6, 128), 7, j.part & 255), 'hex')::uuid
      where j.ctid = bad.in_row;
    exception when unique_violation then
      update holdfast.job j
      set id = encode(set_byte(set_byte(uuid_send(gen_random_uuid()), 6, 128), 7, j.part & 255), 'hex')::uuid
      where j.ctid = bad.in_row;
    end;
  end loop;
end
$$;
update holdfast.job j
set run_at = case when j.run_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z' then j.run_at else now() end,
    created_at = case when j.created_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z' then j.created_at else now() end
where not j.run_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z'
   or not j.created_at between '0001-01-02 00:00Z' and '9999-12-30 00:00Z';

-- Why a claim's expired jobs could not be taken back: reported, and tried again later.
alter table holdfast.lease add column problem text;
create index lease_problem on holdfast.lease (until) where problem is not null;

-- Ids that jobs had before they were moved. Others of the same number are other jobs: a caller may have given one id
-- to jobs of two queues, and each carries the part of its own.
create table holdfast.alias (
  part   smallint    not null,
  id     uuid        not null,
  queue  text collate "C" not null,                        -- where it had it
  stored uuid        not null,                             -- what it became, which may have been moved as well
  at     timestamptz not null default statement_timestamp(),
  primary key (part, id)
);
create index alias_at on holdfast.alias (at);
create index queue_fanned on holdfast.queue (name) where fanout > 1;

-- The last moves are on record; the log is too long to be read from its beginning.
insert into holdfast.alias (part, id, queue, stored)
select distinct on (m.was) m.was_part, m.was, m.came_from, m.job
from (
  select e.seq, e.job, e.detail ->> 'from' as came_from, (e.detail ->> 'was')::uuid as was,
         ((get_byte(uuid_send((e.detail ->> 'was')::uuid), 6) & 15) << 8 | get_byte(uuid_send((e.detail ->> 'was')::uuid), 7))::smallint as was_part
  from holdfast.event e
  where e.seq > coalesce((select max(x.seq) from holdfast.event x), 0) - 500000 and e.event = 'moved' and e.job is not null and e.detail ->> 'was' is not null
) m
where m.was <> m.job and m.came_from is not null
order by m.was, m.seq desc;
