-- The defaults of a queue stand in the function unset_queue alone: a row is made from it, and a job that is copied
-- without max_attempts gets them from there.
do $$
declare
  v_column text;
begin
  for v_column in
    select a.attname
    from pg_attribute a
    where a.attrelid = 'holdfast.queue'::regclass and a.atthasdef
  loop
    execute format('alter table holdfast.queue alter %I drop default', v_column);
  end loop;
end
$$;
-- Defined once more among the functions, with the one that it calls.
set local check_function_bodies = off;
create function holdfast.usual_attempts()
returns smallint
language sql stable
as $$ select (holdfast.unset_queue(null)).max_attempts $$;
alter table holdfast.job alter max_attempts set default holdfast.usual_attempts();
