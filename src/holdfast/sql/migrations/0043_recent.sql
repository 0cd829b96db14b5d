-- Done jobs that are kept for a day, so that a person finds what has just run. The new columns have constant defaults:
-- writers feel the lock for a moment.
alter table holdfast.queue add column keep_recent boolean not null default true;
alter table holdfast.queue alter column keep_recent drop default;   -- it stands in unset_queue
alter table holdfast.ended add column recent boolean;   -- true: it goes after a day, whatever its queue keeps

-- A page of the history has two halves from now on, so that one of them can go sooner. Those of the days to come are
-- empty: upkeep creates them again.
do $$
declare
  v_page text;
  v_used boolean;
begin
  for v_page in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'holdfast.history'::regclass and c.relname ~ '_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') > (now() at time zone 'UTC')::date
  loop
    execute format('select exists (select from holdfast.%I)', v_page) into v_used;
    if not v_used then
      execute format('drop table holdfast.%I', v_page);
    end if;
  end loop;
end
$$;
