-- Rows that producers insert themselves (COPY) pass what enqueue checks. Jobs that functions of Holdfast store are
-- their owner's, and pass by at the cost of comparing two names; the condition is short because it is read anew for
-- every statement. After the row, not before it: a trigger before would keep COPY from writing rows many at a time.
-- Takes a lock on the jobs that writers feel for a moment.
create function holdfast.check_row() returns trigger language plpgsql as $$ begin return null; end $$;

do $$
begin
  execute format('create trigger "rows of producers are checked" after insert on holdfast.job for each row
    when (current_user <> %L::name) execute function holdfast.check_row()', current_user);
end
$$;
