-- Dead jobs grouped by failure, with counters, so that this works for millions of jobs.

-- fold_dead: add up the changes, if there are many; returns how many.
create or replace function holdfast.fold_dead()
returns bigint
language plpgsql
as $$
declare
  v_changes bigint;
begin
  if not (
       select count(*) >= 1000 and count(*) >= 2 * count(distinct (t.part, t.fingerprint, t.kind, t.queue))
       from (select x.* from holdfast.dead_tally x limit 20000) t)
     or not holdfast.take_turn('fold dead') then
    return 0;
  end if;
  with changes as (
    delete from holdfast.dead_tally returning *
  ), sums as (
    insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
    select c.part, c.fingerprint, c.kind, c.queue, sum(c.jobs)
    from changes c
    group by c.part, c.fingerprint, c.kind, c.queue
    having sum(c.jobs) <> 0
  )
  select count(*) into v_changes from changes;
  return v_changes;
end
$$;

-- recount_dead: write the difference between the counters and the rows as one more change.
create or replace function holdfast.recount_dead()
returns void
language sql
as $$
  insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)
  select x.part, x.fingerprint, x.kind, x.queue, sum(x.jobs)
  from (
    select d.part, d.fingerprint, d.kind, d.queue, count(*) as jobs from holdfast.dead d
      group by d.part, d.fingerprint, d.kind, d.queue
    union all
    select t.part, t.fingerprint, t.kind, t.queue, -t.jobs from holdfast.dead_tally t
  ) x
  group by x.part, x.fingerprint, x.kind, x.queue
  having sum(x.jobs) <> 0
$$;
