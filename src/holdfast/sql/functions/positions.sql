-- Sequences that are behind the rows they number. A logical replica has the rows but not the sequences: after a
-- cut-over, new jobs would get positions below the floors, where claims do not look, and new rows would get the
-- numbers of old ones.

-- highest_place: the highest position of any floor, probe or job.
create or replace function holdfast.highest_place()
returns bigint
language sql stable
as $$
  select greatest(
    (select max(p.probe_pos) from holdfast.pulse p),
    (select max(x.floor) from holdfast.floor f cross join lateral unnest(f.floors) x(floor)),
    (select max(greatest(j.pos, j.lane_seq)) from holdfast.job j), 0)
$$;

-- highest_floor: the highest floor of all. Few rows, unlike jobs.
create or replace function holdfast.highest_floor()
returns bigint
language sql stable
as $$ select coalesce(max(x.floor), 0) from holdfast.floor f cross join lateral unnest(f.floors) x(floor) $$;

-- catch_up: advance every sequence to the rows it numbers, and return the position after which the next job comes.
-- Sequences only go up, so concurrent use of nextval does no harm.
create or replace function holdfast.catch_up()
returns bigint
language plpgsql
as $$
declare
  v_high bigint;
  v_last bigint;
  own    record;
begin
  for own in
    select pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname) as sequence,
           format('select max(%I) from %I.%I', a.attname, n.nspname, c.relname) as highest
    from pg_attribute a
    join pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'p')
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast' and a.attidentity <> '' and not a.attisdropped
    union all
    select 'holdfast.event_seq', 'select max(seq) from holdfast.event'
    union all
    select 'holdfast.pos', 'select holdfast.highest_place()'
  loop
    execute own.highest into v_high;
    v_last := coalesce(pg_sequence_last_value(own.sequence::regclass), 0);
    if v_last < v_high then
      perform setval(own.sequence::regclass, v_high);
      perform holdfast.note('caught_up', 'upkeep',
        format('sequence %s was at %s and the rows at %s, as after a restore or a cut-over',
        own.sequence, v_last, v_high));
    end if;
  end loop;
  return coalesce(pg_sequence_last_value('holdfast.pos'), 0);
end
$$;
