-- Adopted tables: a table of the application is the queue. For each, a few functions are generated that only read and
-- write its rows. They belong to the owner of the table and run with its rights; their results are checked here like
-- any caller's input. Everything that Holdfast stores about such rows (leases, counters, attempts, notes) is written
-- here. The rows themselves contain the state of a job, so that writes of other code are understood.

-- owner_of_holdfast: the role whose functions call the generated ones.
create or replace function holdfast.owner_of_holdfast()
returns name
language sql stable
as $$ select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'holdfast' $$;

-- table_of: the table of an adoption, if it is there: the one of that name and number; what has its triggers, since it
-- may have been renamed, and numbers are given anew when a database is restored; the one of that name.
create or replace function holdfast.table_of(a holdfast.adopted)
returns oid
language sql stable
as $$
  with named as (
    select c.oid
    from pg_namespace n
    join pg_class c on c.relnamespace = n.oid and c.relname = (parse_ident(a.relation))[2] and c.relkind = 'r'
    where n.nspname = (parse_ident(a.relation))[1]
  )
  select coalesce(
    (select n.oid from named n where n.oid = a.relid),
    (select t.tgrelid
     from pg_proc p
     join pg_depend d on d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
       and d.classid = 'pg_trigger'::regclass
     join pg_trigger t on t.oid = d.objid
     where p.proname = any(array[a.part || '_inserted', a.part || '_updated', a.part || '_deleted']::name[])
       and p.pronamespace = 'holdfast_adopted'::regnamespace
     limit 1),
    (select n.oid from named n),
    -- renamed, and without any trigger: if it still has a column of the lease
    (select c.oid from pg_class c join pg_attribute t on t.attrelid = c.oid
      and t.attname = a.spec -> 'columns' ->> 'token' and not t.attisdropped
     where c.oid = a.relid and c.relkind = 'r'))
$$;

-- may_act_as: whether this session may act as a role.
create or replace function holdfast.may_act_as(role name)
returns boolean
language sql stable
as $$
  select pg_has_role(session_user, role, case when current_setting('server_version_num')::integer >= 160000 then 'SET'
         else 'MEMBER' end)
$$;

-- run_as_owner: run a script, or ask a query for one value, with the rights of a table's owner and no way back to
-- those of the session, which SET ROLE alone would leave open to whatever is called. Only while a script makes what
-- is generated may the owner reach the schema it is in: whatever of the owner's is called meanwhile could, too.
create or replace function holdfast.run_as_owner(
  relation oid, script text, asks boolean default false, makes boolean default false)
returns text
language plpgsql
as $$
declare
  v_owner    constant name := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = run_as_owner.relation);
  v_holdfast constant name := holdfast.owner_of_holdfast();
  v_role     constant text := current_setting('role');
  v_name     constant text := 'run_' || pg_backend_pid();
  v_marks    text[];
  v_said     text;
begin
  perform set_config('role', v_holdfast, true);
  perform from holdfast.turn t where t.name = 'grants' for update;   -- grants on one schema do not wait for each other
  execute format('grant usage, create on schema holdfast_adopted to %I', v_owner);
  perform set_config('role', v_owner, true);
  execute format('create function holdfast_adopted.%I() returns text language plpgsql security definer'
    || ' set search_path = pg_catalog, pg_temp as %L', v_name,
    format(case when asks then 'declare v_said text; begin execute %L into v_said; return v_said; end'
      else 'begin execute %L; return null; end' end, script));
  execute format('revoke all on function holdfast_adopted.%1$I() from public; grant execute on function '
    'holdfast_adopted.%1$I() to %2$I', v_name, v_holdfast);
  perform set_config('role', v_holdfast, true);
  if not makes then
    perform holdfast.shut_out(v_owner);
  end if;
  v_marks := holdfast.session_marks();
  begin
    execute format('select holdfast_adopted.%I()', v_name) into v_said;
    perform holdfast.check_marks(v_marks);
  exception when others or query_canceled or assert_failure then
    perform holdfast.tidy_session(v_marks);
    raise;
  end;
  execute format('drop function holdfast_adopted.%I()', v_name);
  perform holdfast.shut_out(v_owner);
  perform set_config('role', v_role, true);
  return v_said;
end
$$;

-- shut_out: a table's owner neither makes nor changes what is generated, its own: made SECURITY INVOKER it would run
-- as Holdfast's owner. Whose last table was given back has no right left.
create or replace function holdfast.shut_out(owner name)
returns void
language plpgsql
as $$
begin
  if owner = holdfast.owner_of_holdfast() then
    return;
  end if;
  execute format('revoke all on schema holdfast_adopted from %I', owner);
  if not exists (
    select from pg_proc p
    where p.pronamespace = 'holdfast_adopted'::regnamespace and pg_get_userbyid(p.proowner) = shut_out.owner)
  then
    execute format('revoke all on schema holdfast_told from %I', owner);
  end if;
end
$$;

-- session_settings: what a session may set: of every version of PostgreSQL that Holdfast runs on, and PL/pgSQL.
create or replace function holdfast.session_settings()
returns text[]
language sql immutable
as $$
  select '{
    allow_in_place_tablespaces, allow_system_table_mods, application_name, array_nulls, backend_flush_after,
    backslash_quote, backtrace_functions, bytea_output, check_function_bodies, client_connection_check_interval,
    client_encoding, client_min_messages, commit_delay, commit_siblings, compute_query_id, constraint_exclusion,
    cpu_index_tuple_cost, cpu_operator_cost, cpu_tuple_cost, createrole_self_grant, cursor_tuple_fraction,
    DateStyle, deadlock_timeout, debug_discard_caches, debug_logical_replication_streaming, debug_parallel_query,
    debug_pretty_print, debug_print_parse, debug_print_plan, debug_print_rewritten, default_statistics_target,
    default_table_access_method, default_tablespace, default_text_search_config, default_toast_compression,
    default_transaction_deferrable, default_transaction_isolation, default_transaction_read_only,
    effective_cache_size, effective_io_concurrency, enable_async_append, enable_bitmapscan,
    enable_distinct_reordering, enable_gathermerge, enable_group_by_reordering, enable_hashagg, enable_hashjoin,
    enable_incremental_sort, enable_indexonlyscan, enable_indexscan, enable_material, enable_memoize,
    enable_mergejoin, enable_nestloop, enable_parallel_append, enable_parallel_hash, enable_partition_pruning,
    enable_partitionwise_aggregate, enable_partitionwise_join, enable_presorted_aggregate,
    enable_self_join_elimination, enable_seqscan, enable_sort, enable_tidscan, escape_string_warning,
    event_triggers, exit_on_error, extra_float_digits, file_copy_method, force_parallel_mode, from_collapse_limit,
    geqo, geqo_effort, geqo_generations, geqo_pool_size, geqo_seed, geqo_selection_bias, geqo_threshold,
    gin_fuzzy_search_limit, gin_pending_list_limit, hash_mem_multiplier, holdfast.unplaced, icu_validation_level,
    idle_in_transaction_session_timeout, idle_session_timeout, ignore_checksum_failure, IntervalStyle,
    io_combine_limit, jit, jit_above_cost, jit_dump_bitcode, jit_expressions, jit_inline_above_cost,
    jit_optimize_above_cost, jit_tuple_deforming, join_collapse_limit, lc_messages, lc_monetary, lc_numeric,
    lc_time, lo_compat_privileges, local_preload_libraries, lock_timeout, log_duration, log_error_verbosity,
    log_executor_stats, log_lock_failures, log_lock_waits, log_min_duration_sample, log_min_duration_statement,
    log_min_error_statement, log_min_messages, log_parameter_max_length, log_parameter_max_length_on_error,
    log_parser_stats, log_planner_stats, log_replication_commands, log_statement, log_statement_sample_rate,
    log_statement_stats, log_temp_files, log_transaction_sample_rate, logical_decoding_work_mem,
    maintenance_io_concurrency, maintenance_work_mem, max_parallel_maintenance_workers, max_parallel_workers,
    max_parallel_workers_per_gather, max_stack_depth, md5_password_warnings, min_parallel_index_scan_size,
    min_parallel_table_scan_size, operator_precedence_warning, parallel_leader_participation, parallel_setup_cost,
    parallel_tuple_cost, password_encryption, plan_cache_mode, plpgsql.check_asserts, plpgsql.extra_errors,
    plpgsql.extra_warnings, plpgsql.print_strict_params, plpgsql.variable_conflict, quote_all_identifiers,
    random_page_cost, recursive_worktable_factor, restrict_nonsystem_relation_kind, role, row_security,
    scram_iterations, search_path, seq_page_cost, session_authorization, session_replication_role,
    standard_conforming_strings, statement_timeout, stats_fetch_consistency, synchronize_seqscans,
    synchronous_commit, tcp_keepalives_count, tcp_keepalives_idle, tcp_keepalives_interval, tcp_user_timeout,
    temp_buffers, temp_file_limit, temp_tablespaces, TimeZone, timezone_abbreviations, trace_notify, trace_sort,
    track_activities, track_cost_delay_timing, track_counts, track_functions, track_io_timing,
    track_wal_io_timing, transaction_deferrable, transaction_isolation, transaction_read_only,
    transaction_timeout, transform_null_equals, update_process_title, vacuum_buffer_usage_limit,
    vacuum_cleanup_index_scale_factor, vacuum_cost_delay, vacuum_cost_limit, vacuum_cost_page_dirty,
    vacuum_cost_page_hit, vacuum_cost_page_miss, vacuum_failsafe_age, vacuum_freeze_min_age,
    vacuum_freeze_table_age, vacuum_max_eager_freeze_failure_rate, vacuum_multixact_failsafe_age,
    vacuum_multixact_freeze_min_age, vacuum_multixact_freeze_table_age, vacuum_truncate, wal_compression,
    wal_consistency_checking, wal_init_zero, wal_recycle, wal_sender_timeout, wal_skip_threshold, work_mem,
    xmlbinary, xmloption, zero_damaged_pages
  }'::text[]
$$;

-- session_marks: what a session is told by, and could be misled by, if what a table's owner has on it changed it.
-- It may have changed the search path: names are resolved only where the path is pinned.
create or replace function holdfast.session_marks()
returns text[]
language sql
as $$ select holdfast.marks_of_session(pg_catalog.current_setting('search_path')) $$;

-- marks_of_session: first what no rollback restores, in the places that check_session and tidy_session know; then the
-- rest. Volatile, or a caller that is not would see no table that was made meanwhile.
create or replace function holdfast.marks_of_session(path text)
returns text[]
language sql
set search_path = pg_catalog, pg_temp
as $$
  select array[
      array(select l.key from holdfast.session_locks() l)::text,
      (select md5(coalesce(string_agg(format('%s %L %s %s', p.name, p.statement, p.prepare_time, p.from_sql), ','
                order by p.name), ''))
       from pg_prepared_statements p),
      coalesce(current_setting('holdfast.rung', true), ''),
      -- one WITH HOLD runs when the transaction commits, as whoever commits; any, as whoever fetches from it
      'cursors: ' || (select coalesce(string_agg(format('%s %s %s', c.name, c.is_holdable, c.creation_time), ', '
                             order by c.name), '')
                      from pg_cursors c),
      -- a temporary table is found before others of the same name
      'temporary objects: ' || case when pg_my_temp_schema() <> 0 then (
        select count(*) || ' ' || md5(coalesce(string_agg(d.objid::text, ',' order by d.classid, d.objid), ''))
        from pg_depend d
        where d.refclassid = 'pg_namespace'::regclass and d.refobjid = pg_my_temp_schema()) else '0' end,
      'search_path = ' || path]
    || array(
      select s.name || ' = ' || coalesce(current_setting(s.name, true), '')
      from unnest(holdfast.session_settings()) s(name))
$$;

-- session_locks: the advisory locks that this session has.
create or replace function holdfast.session_locks()
returns table (key text, parts integer, one bigint, two bigint, shared boolean)
language sql
as $$
  select format('%s %s %s %s', l.classid, l.objid, l.objsubid, l.mode), l.objsubid::integer, l.classid::bigint,
         l.objid::bigint, l.mode = 'ShareLock'
  from pg_locks l
  where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
  order by 1
$$;

create or replace function holdfast.check_marks(marks text[])
returns void
language plpgsql
as $$
begin
  if marks is not null then
    perform holdfast.check_session(marks, pg_catalog.current_setting('search_path'));
  end if;
end
$$;

create or replace function holdfast.check_session(marks text[], path text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_marks constant text[] := holdfast.marks_of_session(path);
begin
  perform holdfast.tidy_session(marks);
  if v_marks[2] <> marks[2] or v_marks[4:] <> marks[4:] then
    perform set_config('exit_on_error', 'off', true);   -- or this would be the end of the session
    raise exception using errcode = '42501', message = (
      select format('a function of the table''s owner left the session changed (%s)', string_agg(left(m, 200), ', '))
      from (select 'prepared statements' where v_marks[2] <> marks[2]
            union all
            select m from unnest(v_marks[4:]) m where m <> all(marks[4:])) x(m));
  end if;
  if v_marks[3] <> marks[3] then
    -- triggers ring as well; but what it says now may be the owner's
    perform set_config('holdfast.rung', '', false), set_config('holdfast.rung', marks[3], true);
  end if;
end
$$;

-- tidy_session: end what no rollback ends of what the owner of a table did to a session. Called after each failure of
-- its functions as well. Locks that the session has beyond the transaction are released. If prepared statements were
-- changed, none is left that might be another than whoever executes it means; and the session ends when it is idle,
-- as it does if a lock of its own was released.
create or replace function holdfast.tidy_session(marks text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = error
as $$
declare
  v_marks constant text[] := case when marks is not null then holdfast.marks_of_session('') end;
  v_ends  boolean;
  v_lock  record;
begin
  if marks is null then
    return;
  end if;
  if marks[1] = '{}' then
    perform pg_advisory_unlock_all();   -- not those of transactions
  elsif v_marks[1] <> marks[1] then
    for v_lock in select l.* from holdfast.session_locks() l where l.key <> all(marks[1]::text[]) loop
      loop   -- once for each time that it was taken
        exit when not case
          when v_lock.parts = 1 and v_lock.shared then pg_advisory_unlock_shared((v_lock.one << 32) | v_lock.two)
          when v_lock.parts = 1 then pg_advisory_unlock((v_lock.one << 32) | v_lock.two)
          when v_lock.shared
            then pg_advisory_unlock_shared(v_lock.one::bit(32)::integer, v_lock.two::bit(32)::integer)
          else pg_advisory_unlock(v_lock.one::bit(32)::integer, v_lock.two::bit(32)::integer) end;
      end loop;
    end loop;
    v_ends := not marks[1]::text[] <@ v_marks[1]::text[];
  end if;
  if v_marks[2] <> marks[2] then
    execute 'deallocate all';
    v_ends := true;
  end if;
  if v_ends then
    perform set_config(s.name, '1', false)
    from unnest('{idle_session_timeout,idle_in_transaction_session_timeout}'::text[]) s(name);
  end if;
end
$$;

-- strange_trigger: a trigger that would run code of another role with the rights of the table's owner: whoever has the
-- privilege TRIGGER may have made it. Its condition may call anything, and does not say who wrote it. Null if none.
create or replace function holdfast.strange_trigger(relation oid)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select format('trigger %I on %s %s', t.tgname, c.oid::regclass, x.runs)
  from pg_class c
  join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal and t.tgenabled <> 'D'
  cross join lateral (
    select p.proowner, format('calls %s of role %I', p.oid::regprocedure, pg_get_userbyid(p.proowner))
    from pg_proc p
    where p.oid = t.tgfoid
    union all
    select g.grantee, format('has a condition, and %s may create triggers', case when g.grantee = 0 then 'everybody'
      else format('role %I', pg_get_userbyid(g.grantee)) end)
    from aclexplode(c.relacl) g
    where g.privilege_type = 'TRIGGER' and t.tgqual is not null
    union all
    select o.owner, format('uses %s of role %I', pg_describe_object(d.refclassid, d.refobjid, 0),
      pg_get_userbyid(o.owner))
    from pg_depend d
    cross join lateral (
      select p.proowner from pg_proc p where d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
      union all
      select p.oprowner from pg_operator p where d.refclassid = 'pg_operator'::regclass and p.oid = d.refobjid
      union all
      select p.typowner from pg_type p where d.refclassid = 'pg_type'::regclass and p.oid = d.refobjid) o(owner)
    where d.classid = 'pg_trigger'::regclass and d.objid = t.oid and t.tgqual is not null
  ) x(owner, runs)
  where c.oid = strange_trigger.relation and x.owner <> c.relowner
    and not exists (
      select from pg_roles r
      where r.oid = x.owner and (r.rolsuper or pg_has_role(r.oid, c.relowner, 'MEMBER')
        or r.rolname = holdfast.owner_of_holdfast()))
  order by t.tgname
  limit 1
$$;

-- refuse_strangers: nothing is written to a table with such a trigger.
create or replace function holdfast.refuse_strangers(part smallint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_said constant text := (
    select holdfast.strange_trigger(holdfast.table_of(a)) from holdfast.adopted a where a.part = refuse_strangers.part);
begin
  if v_said is not null then
    raise exception using errcode = '42501', message = v_said || ', with the rights of the owner of the table';
  end if;
end
$$;

-- marks_before: what is generated for a table is about to be called: its owner is who the table's is. What to compare
-- the session with afterwards; null if that owner is trusted with it anyway, and nobody else's rows refer to its.
create or replace function holdfast.marks_before(part smallint)
returns text[]
language plpgsql stable
as $$
declare
  v_owner   oid;
  v_trusted boolean;
begin
  perform holdfast.refuse_strangers(part);
  select c.relowner, (n.nspowner = c.relowner or r.rolsuper) and not exists (
           select from pg_trigger t join pg_class o on o.oid = t.tgconstrrelid
           where t.tgrelid = c.oid and o.relowner <> c.relowner)
  into v_owner, v_trusted
  from holdfast.adopted a
  join pg_class c on c.oid = a.relid
  join pg_namespace s on s.oid = c.relnamespace and format('%I.%I', s.nspname, c.relname) = a.relation
  join pg_proc p on p.proname = (a.part || '_claim')::name and p.pronamespace = 'holdfast_adopted'::regnamespace
    and p.proowner = c.relowner and p.prosecdef
  join pg_roles r on r.oid = c.relowner
  join pg_namespace n on n.nspname = 'holdfast'
  where a.part = marks_before.part;
  if v_trusted then
    return null;
  elsif v_owner is null and not exists (   -- renamed, or restored
    select from holdfast.adopted a
    join pg_class c on c.oid = holdfast.table_of(a)
    join pg_proc o on o.proname = (a.part || '_claim')::name and o.pronamespace = 'holdfast_adopted'::regnamespace
      and o.proowner = c.relowner and o.prosecdef
    where a.part = marks_before.part)
  then
    raise exception using errcode = '42501', message = (
      select format('generated functions of table %s are missing, or do not belong to its owner', a.relation)
      from holdfast.adopted a where a.part = marks_before.part);
  end if;
  return holdfast.session_marks();
end
$$;

-- check_after: after that call. Before PostgreSQL 18, triggers that are put off run as whoever commits.
create or replace function holdfast.check_after(part smallint, marks text[])
returns void
language plpgsql
as $$
begin
  perform holdfast.refuse_strangers(part);   -- it may have come before the table was locked
  if marks is null then
    return;
  end if;
  perform holdfast.check_marks(marks);
  if current_setting('server_version_num')::integer < 180000 and holdfast.puts_off(part) then
    raise exception using errcode = '42501',
      message = 'a trigger on the table is deferrable, and would run with the rights of the session that commits';
  end if;
end
$$;

create or replace function holdfast.puts_off(part smallint)
returns boolean
language sql stable
as $$
  select exists (
    select from holdfast.adopted a join pg_trigger t on t.tgrelid = holdfast.table_of(a)
    where a.part = puts_off.part and t.tgdeferrable and not t.tgisinternal)
$$;

-- readopt: generate the functions of adopted tables again. Part of every migration, so that they match the rest.
-- Tables of owners as whom this session may not act keep their functions; holdfast.doctor reports it if they are old.
create or replace function holdfast.readopt()
returns void
language plpgsql
as $$
declare
  a holdfast.adopted;
begin
  for a in select x.* from holdfast.adopted x where x.live order by x.part loop
    begin
      perform holdfast.readopt_one(a.part);
    exception when others then
      if holdfast.is_of_the_caller(sqlstate) and sqlstate <> 'HF250' then
        raise;
      end if;
      raise warning '%: %', a.relation, sqlerrm;
    end;
  end loop;
end
$$;

-- mend_adopted: readopt tables that are broken, with their triggers, as far as this session may; returns the repaired
-- tables. holdfast.doctor reports the others.
create or replace function holdfast.mend_adopted()
returns setof text
language plpgsql
as $$
#variable_conflict use_column
declare
  v_table    oid;
  v_relation text;
  v_step     text;
  a          holdfast.adopted;
begin
  for a in select x.* from holdfast.adopted x where x.live and holdfast.adopted_problem(x) is not null
    order by x.part loop
    v_table := holdfast.table_of(a);
    continue when v_table is null;
    begin
      perform holdfast.readopt_one(a.part);
      v_relation := (select x.relation from holdfast.adopted x where x.part = a.part);
      for v_step in
        select replace(s ->> 'do', format(' on %s ', a.relation), format(' on %s ', v_relation))
        from jsonb_array_elements(a.steps) s where s ->> 'name' like 'trigger: %'
      loop
        perform holdfast.run_as_owner(v_table, v_step, makes => true);
      end loop;
      perform from holdfast.recount_adopted(a.part);
      return next v_relation;
    exception when others then
      raise warning '%: %', a.relation, sqlerrm;
    end;
  end loop;
end
$$;

-- readopt_one: generate the functions of one table, for its current shape. Renamed columns are followed.
create or replace function holdfast.readopt_one(part smallint)
returns void
language plpgsql
as $readopt$
#variable_conflict use_column
declare
  v_holdfast constant name := holdfast.owner_of_holdfast();
  v_role     constant text := current_setting('role');
  v_table    oid;
  v_owner    name;
  v_routine  record;
  a          holdfast.adopted;
begin
  select x.* into a from holdfast.adopted x where x.part = readopt_one.part;
  v_table := holdfast.table_of(a);
  if v_table is null then
    perform holdfast.refuse('HF250', format('table %s is gone', a.relation), null,
      format('Remove its queue: holdfast unadopt %s', a.relation));
  end if;
  v_owner := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = v_table);
  perform holdfast.refuse('HF250', format('role %I may not act for %I, who owns %s', session_user, r.role, r.what),
    null,
    format('grant %I to %I;', r.role, session_user))
  from (values (v_owner, a.relation), (v_holdfast, 'Holdfast')) r(role, what)
  where not holdfast.may_act_as(r.role);
  a := holdfast.fitted(a, v_table);

  perform set_config('role', v_holdfast, true);
  update holdfast.adopted x set relation = a.relation, spec = a.spec, relid = a.relid, shape = a.shape
  where x.part = a.part;
  execute format('grant usage, create on schema holdfast_adopted to %I', v_owner);
  execute format('grant usage on schema holdfast_told to %I', v_owner);
  -- The triggers' functions stay, since triggers stand on them; the rest is made anew.
  execute format('drop view if exists holdfast_adopted.%I', a.part::text);
  for v_routine in
    select p.oid::regprocedure as name, p.prorettype = 'trigger'::regtype as fires, p.proowner
    from pg_proc p
    where p.pronamespace in ('holdfast_adopted'::regnamespace, 'holdfast_told'::regnamespace)
      and p.proname like a.part || '\_%'
  loop
    if not v_routine.fires then
      execute format('drop routine %s', v_routine.name);
    elsif pg_get_userbyid(v_routine.proowner) <> v_owner then
      perform set_config('role', v_role, true);
      execute format('alter routine %s owner to %I', v_routine.name, v_owner);
      perform set_config('role', v_holdfast, true);
    end if;
  end loop;
  execute format($script$
    create function holdfast_told.%1$I(
      hf_kinds text[], hf_states text[], hf_counts bigint[], hf_ready bigint, hf_whats text[], hf_jobs bigint[],
        hf_samples text[])
    returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as
      'begin return holdfast.adopted_wrote(%3$s::smallint, hf_kinds, hf_states, hf_counts, hf_ready, hf_whats, '
        'hf_jobs, hf_samples); end';
    create function holdfast_told.%2$I(hf_ids uuid[])
    returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as
      'begin perform holdfast.adopted_mended(%3$s::smallint, hf_ids); end';
    revoke all on function holdfast_told.%1$I, holdfast_told.%2$I from public;
    grant execute on function holdfast_told.%1$I, holdfast_told.%2$I to %4$I;
  $script$, a.part || '_wrote', a.part || '_mended', a.part, v_owner);
  perform set_config('role', v_role, true);

  perform holdfast.run_as_owner(v_table, holdfast.adopted_code(a) || format($script$
    do $do$
    declare
      v_routine regprocedure;
    begin
      for v_routine in
        select p.oid from pg_proc p
        where p.pronamespace = 'holdfast_adopted'::regnamespace and p.proname like %L
          and p.proowner = (select r.oid from pg_roles r where r.rolname = current_user)
      loop
        execute format('revoke all on function %%s from public', v_routine);
        execute format('grant execute on function %%s to %%I', v_routine, %L);
      end loop;
    end
    $do$
  $script$, a.part || '\_%', v_holdfast), makes => true);
end
$readopt$;

-- fitted: an adoption adjusted to its table: changed names, types, and conditions with resolved names.
create or replace function holdfast.fitted(a holdfast.adopted, relation oid)
returns holdfast.adopted
language plpgsql
as $$
#variable_conflict use_column
declare
  v_renamed jsonb;
  v_gone    text;
  v_path    constant text := current_setting('search_path');
begin
  -- so that names of types are told with their schemas
  perform set_config('search_path', 'pg_catalog, pg_temp', true);
  a.relid := fitted.relation;
  a.relation := (select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n
    on n.oid = c.relnamespace where c.oid = fitted.relation);
  select jsonb_object_agg(s.key, t.attname) into v_renamed
  from jsonb_each(a.shape) s
  join pg_attribute t on t.attrelid = a.relid and t.attnum = (s.value -> 'number')::smallint and not t.attisdropped
    and t.attname <> s.key
  where not exists (select from pg_attribute o where o.attrelid = a.relid and o.attname = s.key and not o.attisdropped);
  if v_renamed is not null then
    a.spec := a.spec || jsonb_strip_nulls(jsonb_build_object(
      'status', coalesce(v_renamed ->> (a.spec ->> 'status'), a.spec ->> 'status'),
      'payload_column', coalesce(v_renamed ->> (a.spec ->> 'payload_column'), a.spec ->> 'payload_column'),
      'columns', (select jsonb_object_agg(c.key, coalesce(v_renamed ->> c.value, c.value))
        from jsonb_each_text(a.spec -> 'columns') c),
      'key', holdfast.renamed(a.spec -> 'key', v_renamed), 'order', holdfast.renamed(a.spec -> 'order', v_renamed),
      'payload', holdfast.renamed(a.spec -> 'payload', v_renamed), 'row', holdfast.renamed(a.spec -> 'row', v_renamed),
      'hidden', holdfast.renamed(a.spec -> 'hidden', v_renamed),
      'done_when', holdfast.renamed_in(a.spec ->> 'done_when', v_renamed),
      'where', (select jsonb_agg(w || jsonb_build_object('column',
        coalesce(v_renamed ->> (w ->> 'column'), w ->> 'column')))
                from jsonb_array_elements(a.spec -> 'where') w)));
  end if;
  select string_agg(u.name, ', ') into v_gone
  from holdfast.used_columns(a) u
  where not exists (select from pg_attribute t where t.attrelid = a.relid and t.attname = u.name and t.attnum > 0
    and not t.attisdropped);
  if v_gone is not null then
    perform holdfast.refuse('HF250', format('table %s no longer has column %s', a.relation, v_gone), null,
      format('Restore the column, or adopt the table again: holdfast unadopt %1$s, then holdfast adopt %1$s',
        a.relation));
  end if;
  a.spec := a.spec || jsonb_build_object(
    'status_type', (select format_type(t.atttypid, t.atttypmod) from pg_attribute t where t.attrelid = a.relid
      and t.attname = a.spec ->> 'status'),
    'types', (select jsonb_object_agg(c.key, format_type(t.atttypid, t.atttypmod))
              from jsonb_each_text(a.spec -> 'columns') c join pg_attribute t on t.attrelid = a.relid
                and t.attname = c.value));
  if not a.spec ?| '{payload,payload_column,row}' then
    a.spec := a.spec || jsonb_build_object('row', (
      select jsonb_agg(t.attname order by t.attnum) from pg_attribute t
      where t.attrelid = a.relid and t.attnum > 0 and not t.attisdropped and not a.spec -> 'hidden' ? t.attname));
  end if;
  if a.spec ? 'done_when' and (not a.spec ? 'done_when_sql' or v_renamed is not null) then
    a.spec := a.spec || jsonb_build_object('done_when_sql', holdfast.resolved(a.relation, a.spec ->> 'done_when'));
  end if;
  a.shape := (
    select jsonb_object_agg(u.name, jsonb_build_object('number', t.attnum, 'type',
           format_type(t.atttypid, t.atttypmod)))
    from holdfast.used_columns(a) u join pg_attribute t on t.attrelid = a.relid and t.attname = u.name);
  perform set_config('search_path', v_path, true);
  return a;
end
$$;

create or replace function holdfast.renamed(names jsonb, renames jsonb)
returns jsonb
language sql immutable
as $$ select jsonb_agg(coalesce(renames ->> n.name, n.name) order by n.nth)
  from jsonb_array_elements_text(names) with ordinality n(name, nth) $$;

create or replace function holdfast.renamed_in(condition text, renames jsonb)
returns text
language plpgsql immutable
as $$
declare
  v_one record;
begin
  for v_one in select r.key as old, quote_ident(r.value) as new from jsonb_each_text(renames) r loop
    condition := regexp_replace(replace(condition, format('job."%s"', v_one.old), 'job.' || v_one.new),
      '\mjob\.' || regexp_replace(v_one.old, '(\W)', '\\\1', 'g') || '\M', 'job.' || v_one.new, 'g');
  end loop;
  return condition;
end
$$;

-- used_columns: the columns of an adopted table that the generated functions use. Columns of the payload may come and
-- go.
create or replace function holdfast.used_columns(a holdfast.adopted)
returns table (name text)
language sql immutable
as $$
  select a.spec ->> 'status'
  union select jsonb_array_elements_text(a.spec -> 'key')
  union select jsonb_array_elements_text(a.spec -> 'order')
  union select c.value from jsonb_each_text(a.spec -> 'columns') c
  union select a.spec ->> 'payload_column' where a.spec ? 'payload_column'
  union select w ->> 'column' from jsonb_array_elements(a.spec -> 'where') w
$$;

-- resolved: a condition on the row `job` with every name in it written out as what it means now. Names without a
-- schema are those of PostgreSQL, then those beside the table.
create or replace function holdfast.resolved(relation text, condition text)
returns text
language plpgsql
as $$
declare
  v_path  constant text := current_setting('search_path');
  v_query constant text := 'create temporary view %I as select (%s)::boolean as hf_done_when '
    'from %s job, (values (1)) hf_one(n)';
  v_true  text;
  v_said  text;
begin
  perform set_config('search_path', format('pg_catalog, %I, pg_temp', (parse_ident(relation))[1]), true);
  execute format(v_query, 'holdfast_true', 'true', relation);
  execute format(v_query, 'holdfast_said', condition, relation);
  perform set_config('search_path', 'pg_catalog', true);
  v_true := pg_get_viewdef('pg_temp.holdfast_true'::regclass);
  v_said := pg_get_viewdef('pg_temp.holdfast_said'::regclass);
  drop view pg_temp.holdfast_true, pg_temp.holdfast_said;
  perform set_config('search_path', v_path, true);
  -- what stands between the SELECT and what follows the condition, which is the same in both
  return substr(v_said, position('true' in v_true), length(v_said) - length(v_true) + length('true'));
end
$$;

-- adopted_problem: what is wrong with an adopted table as a whole, and what to type; null if nothing is.
create or replace function holdfast.adopted_problem(a holdfast.adopted)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_table constant oid := holdfast.table_of(a);
  v_said  text;
begin
  if v_table is null then
    return format('Table %s is gone. Remove its queue: holdfast unadopt %1$s', a.relation);
  end if;
  select format('%I.%I', n.nspname, c.relname) into v_said from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.oid = v_table;
  if v_said <> a.relation then
    return format('Table %s was renamed to %s. Type: holdfast adopt %2$s --refresh', a.relation, v_said);
  end if;
  select string_agg(case when t.attname is null then format('no longer has column %s', s.key)
                         when t.attname <> s.key then format('has renamed column %s to %s', s.key, t.attname)
                         else format('has changed column %s to %s', s.key, format_type(t.atttypid, t.atttypmod)) end,
                    ', ' order by s.key)
  into v_said
  from jsonb_each(a.shape) s
  left join pg_attribute n on n.attrelid = v_table and n.attname = s.key and n.attnum > 0 and not n.attisdropped
  left join pg_attribute t on t.attrelid = v_table and t.attnum = coalesce(n.attnum, (s.value -> 'number')::smallint)
    and not t.attisdropped
  where t.attname is distinct from s.key or format_type(t.atttypid, t.atttypmod) <> s.value ->> 'type';
  if v_said is not null then
    return format('Table %s %s. Type: holdfast adopt %1$s --refresh', a.relation, v_said);
  end if;
  if exists (
    select from pg_proc p
    where p.pronamespace in ('holdfast_adopted'::regnamespace, 'holdfast_told'::regnamespace)
      and p.proname like a.part || '\_%'
    having count(*) < 19 or not bool_and(p.prosecdef
      and (p.proowner = (select c.relowner from pg_class c where c.oid = v_table)
      or p.pronamespace = 'holdfast_told'::regnamespace)))
  then
    return format('Generated functions of table %s are missing, or do not belong to its owner. Type: holdfast '
      'adopt %1$s --refresh', a.relation);
  end if;
  if (select count(*) from pg_trigger t where t.tgrelid = v_table and t.tgenabled <> 'D' and t.tgname in (
        'holdfast_inserted', 'holdfast_updated', 'holdfast_deleted', 'holdfast_truncated')) < 4 then
    return format('Triggers of Holdfast on table %s are missing or disabled: its counters are wrong. Type: holdfast '
      'adopt %1$s --refresh', a.relation);
  end if;
  if current_setting('server_version_num')::integer < 180000 and holdfast.puts_off(a.part) and not exists (
    select from pg_class c join pg_roles r on r.oid = c.relowner where c.oid = v_table
           and (r.rolsuper or r.rolname = holdfast.owner_of_holdfast()))
  then
    return format('Table %s has a deferrable trigger, which would run with the rights of the session that commits. '
      'Create it again, not deferrable.', a.relation);
  end if;
  v_said := holdfast.strange_trigger(v_table);
  if v_said is not null then
    return format('Table %s: %s, with the rights of its owner. Drop the trigger, or make its function the owner''s; '
      'and: revoke trigger on %1$s from … Its jobs wait.', a.relation, v_said);
  end if;
  v_said := holdfast.adopted_misfit(a, v_table);
  if v_said is not null then
    return v_said;
  end if;
  if (select count(*) from holdfast.adopted_fault f where f.part = a.part) >= 10000 then
    return format('Ten thousand rows of table %s cannot be written: Holdfast tries no more. Type: holdfast job list '
      'queue:%s state:dead', a.relation, a.queue);
  end if;
  if a.fault is not null then
    return format('No row of table %s can be claimed (%s). Fix what fails, then type: holdfast doctor', a.relation,
      a.fault);
  end if;
  return null;
end
$$;

-- adopted_misfit: what a table has come to have since it was adopted, or no longer has, for which it would have been
-- refused; and what to type. Null: nothing.
create or replace function holdfast.adopted_misfit(a holdfast.adopted, relation oid)
returns text
language sql stable
as $$
  select coalesce(
    (select format(case when c.relispartition and i.inhrelid = c.oid
              then 'Table %1$s is a partition of %2$s: rows written through that are not noticed. Type: alter table '
                '%2$s detach partition %1$s'
            when i.inhrelid = c.oid
              then 'Table %1$s inherits from %2$s: rows written through that are not noticed. Type: alter table %1$s '
                'no inherit %2$s'
            else 'Table %1$s has child tables such as %2$s, whose rows are not jobs. Type: alter table %2$s no inherit '
              '%1$s' end, a.relation, format('%I.%I', n.nspname, k.relname))
     from pg_inherits i
     join pg_class k on k.oid = case when i.inhrelid = c.oid then i.inhparent else i.inhrelid end
     join pg_namespace n on n.oid = k.relnamespace
     where c.oid in (i.inhrelid, i.inhparent)
     order by i.inhrelid = c.oid desc, k.oid
     limit 1),
    (select format('Row level security is forced on table %s: the queue, which acts for its owner, does not see every '
       'row. Type: alter table %1$s no force row level security', a.relation)
     from pg_roles o
     where o.oid = c.relowner and c.relrowsecurity and c.relforcerowsecurity and not (o.rolsuper or o.rolbypassrls)),
    (select format('Type %s of column %s of table %s no longer has value %s. Add it again, or adopt the table again '
       'with other values: holdfast unadopt %3$s', format_type(t.oid, null), a.spec ->> 'status', a.relation,
       string_agg(distinct w.value, ', '))
     from pg_attribute s
     join pg_type d on d.oid = s.atttypid
     join pg_type t on t.oid = case when d.typtype = 'd' then d.typbasetype else d.oid end and t.typtype = 'e'
     cross join lateral jsonb_each(a.spec -> 'states') e
     cross join lateral jsonb_array_elements_text(e.value) w
     where s.attrelid = c.oid and s.attname = a.spec ->> 'status'
       and not exists (select from pg_enum l where l.enumtypid = t.oid and l.enumlabel = w.value)
     group by t.oid),
    (select format('Table %s no longer has a unique key of %s, by which its rows are found. Type: alter table %1$s add '
       'primary key (%s)', a.relation, string_agg(k.name, ', ' order by k.nth),
       string_agg(quote_ident(k.name), ', ' order by k.nth))
     from jsonb_array_elements_text(a.spec -> 'key') with ordinality k(name, nth)
     where not exists (
       select from pg_index i
       where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
         and not exists (
           select from unnest(i.indkey::smallint[]) with ordinality x(number, nth)
           join pg_attribute n on n.attrelid = c.oid and n.attnum = x.number
           where x.nth <= i.indnkeyatts and not a.spec -> 'key' ? n.attname))
     having count(*) > 0))
  from pg_class c
  where c.oid = adopted_misfit.relation
$$;

-- is_of_the_caller: errors that are not a row's or a table's: they are the call's, which must fail by them. What a
-- trigger raises by itself is the row's, whatever it calls it: where it arose tells it from a true one.
create or replace function holdfast.is_of_the_caller(code text, context text default '')
returns boolean
language sql immutable
as $$ select code like any ('{40%,53%,57%,58%,HF%,55P03}') and split_part(context, E'\n', 1) !~ '\mRAISE\M' $$;

-- adopted_wrote: count what a statement did to the rows of a table. Its input comes from the table's owner. True if
-- rows of the table could not be written before: then the caller asks which of them were.
create or replace function holdfast.adopted_wrote(
  part smallint, kinds text[], states text[], counts bigint[], ready bigint, whats text[], jobs bigint[],
    samples text[])
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  v_queue constant text := (select a.queue from holdfast.adopted a where a.part = adopted_wrote.part);
begin
  if v_queue is null then
    return false;
  end if;
  if kinds is not null then
    insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
    select adopted_wrote.part, v_queue, c.kind, coalesce(sum(c.n) filter (where c.state = 'queued'), 0),
           coalesce(sum(c.n) filter (where c.state = 'leased'), 0),
           coalesce(sum(c.n) filter (where c.state = 'dead'), 0), coalesce(sum(c.n) filter (where c.state = 'done'), 0),
           coalesce(sum(c.n) filter (where c.state = 'cancelled'), 0),
             coalesce(sum(c.n) filter (where c.state = 'archived'), 0)
    from (
      select holdfast.adopted_kind(x.kind, v_queue) as kind, x.state, least(greatest(x.n, -100000000), 100000000) as n
      from unnest(kinds, states, counts) x(kind, state, n)
    ) c
    group by c.kind;
  end if;
  if ready > 0 then
    perform holdfast.wake(array[v_queue], least(ready, 1000000));
  end if;
  if whats is not null then
    insert into holdfast.adopted_note (part, hour, who, what, jobs, sample)
    select adopted_wrote.part, date_trunc('hour', holdfast.now()),
           concat_ws(' as ', nullif(current_setting('application_name', true), ''), session_user),
           left(coalesce(w.what, ''), 300), least(greatest(w.jobs, 0), 100000000), left(w.sample, 300)
    from unnest(whats, jobs, samples) w(what, jobs, sample);
  end if;
  return exists (select from holdfast.adopted_fault f where f.part = adopted_wrote.part);
end
$$;

-- adopted_kind: the kind in a row, changed to a valid one if necessary.
create or replace function holdfast.adopted_kind(kind text, queue text)
returns text
language sql immutable
as $$ select coalesce(nullif(left(regexp_replace(kind, '[[:cntrl:]]', ' ', 'g'), 200), ''), queue) $$;

-- adopted_mended: rows that could not be written before were written by other code: their own state counts again.
-- Null: all rows, and none exists any more.
create or replace function holdfast.adopted_mended(part smallint, ids uuid[])
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  with mended as (
    delete from holdfast.adopted_fault f
    where f.part = adopted_mended.part and (ids is null or f.id = any(ids))
    returning f.kind, f.state
  )
  insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
  select a.part, a.queue, m.kind, count(*) filter (where m.state = 'queued'),
         count(*) filter (where m.state = 'leased'),
         -count(*) + count(*) filter (where m.state = 'dead'), count(*) filter (where m.state = 'done'),
         count(*) filter (where m.state = 'cancelled'), count(*) filter (where m.state = 'archived')
  from mended m
  join holdfast.adopted a on a.part = adopted_mended.part
  group by a.part, a.queue, m.kind;
  if ids is null then
    perform from holdfast.recount_adopted(part);
  end if;
end
$$;

-- note_fault: record that a row could not be written: it is shown as a dead job with the error.
create or replace function holdfast.note_fault(
  a holdfast.adopted, id uuid, verb text, code text, message text, at timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_kind  text := a.queue;
  v_state text := 'queued';
  v_context text;
  v_marks text[];
begin
  update holdfast.adopted_fault f
  set verb = note_fault.verb, code = note_fault.code, message = left(note_fault.message, 1000), at = note_fault.at,
    times = f.times + 1
  where f.part = a.part and f.id = note_fault.id;
  if found then
    return;
  end if;
  begin
    v_marks := holdfast.marks_before(a.part);
    execute format('select holdfast.adopted_kind(r.kind, $2), r.state from '
      'holdfast_adopted.%I(array[$1], null, null, true) r', a.part || '_rows')
    into v_kind, v_state using id, a.queue;
    perform holdfast.check_after(a.part, v_marks);
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    perform holdfast.tidy_session(v_marks);
    if holdfast.is_of_the_caller(sqlstate, v_context) then
      raise;
    end if;
  end;
  if not coalesce(v_state in ('queued', 'leased', 'dead', 'done', 'cancelled', 'archived'), false) then
    return;   -- there is no such row
  end if;
  with noted as (
    insert into holdfast.adopted_fault (part, id, kind, state, verb, code, message, at)
    values (a.part, note_fault.id, v_kind, v_state, note_fault.verb, note_fault.code, left(note_fault.message, 1000),
      note_fault.at)
    on conflict do nothing
    returning 1
  )
  insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
  select a.part, a.queue, v_kind, -(v_state = 'queued')::integer, -(v_state = 'leased')::integer,
         1 - (v_state = 'dead')::integer,
         -(v_state = 'done')::integer, -(v_state = 'cancelled')::integer, -(v_state = 'archived')::integer
  from noted;
end
$$;

-- note_suppressed: the same of rows that a trigger kept as they were, without an error.
create or replace function holdfast.note_suppressed(a holdfast.adopted, ids uuid[], verb text, at timestamptz)
returns void
language sql
as $$
  select holdfast.note_fault(a, i.id, verb, '27000', 'a trigger suppressed the update', at)
  from unnest(ids) i(id)
$$;

-- list_adopted: the rows of an adopted table that match a filter, newest first, read page by page.
create or replace function holdfast.list_adopted(part smallint, filter text, max_jobs integer, before uuid)
returns setof holdfast.own_jobs
language plpgsql stable
as $$
declare
  v_page holdfast.own_jobs[];
  v_step integer := greatest(max_jobs, 100);
  v_left integer := max_jobs;
  v_got  integer;
begin
  loop
    select array_agg(j) into v_page from holdfast.adopted_rows(part, null, before, v_step) j;
    exit when v_page is null;
    return query execute 'select j.* from unnest($1) j where ' || holdfast.filter_sql(filter)
      || ' order by j.id desc limit $2' using v_page, v_left;
    get diagnostics v_got = row_count;
    v_left := v_left - v_got;
    exit when v_left <= 0 or cardinality(v_page) < v_step;
    before := v_page[cardinality(v_page)].id;
    v_step := least(4 * v_step, 10000);
  end loop;
end
$$;

-- claim_adopted: claim, for a queue that is a table. Claims with limits, rates and lanes take turns at the gate.
-- Returns the leased rows as jobs.
create or replace function holdfast.claim_adopted(
  queue_row holdfast.queue, worker text, token uuid, max_jobs integer, lease interval, kinds text[], durable boolean,
  at timestamptz)
returns setof holdfast.job
language plpgsql
as $$
#variable_conflict use_column
declare
  v_commit constant text := current_setting('synchronous_commit');
  v_left   integer := max_jobs;
  v_want   integer;
  v_lanes  boolean;
  v_leased integer;
  v_jobs   holdfast_adopted.job_row[];
  a        holdfast.adopted;
begin
  select x.* into a from holdfast.adopted x where x.part = queue_row.adopted and x.live;
  if not found then
    return;
  end if;
  perform holdfast.commit_lightly() where not durable;
  v_lanes := a.spec -> 'columns' ? 'lane';
  for turn in 1 .. 2 loop
    loop
      v_want := v_left;
      if queue_row.lease_limit is not null or queue_row.rate_limit is not null or v_lanes then
        queue_row := holdfast.hold_gate(queue_row, a.part);   -- it may wait there
        v_want := least(v_want, holdfast.pass_gate(queue_row, a.part));
        at := holdfast.clock();
        if queue_row.lease_limit is not null then
          v_leased := holdfast.leased_adopted(queue_row.adopted);
          v_want := least(v_want, queue_row.lease_limit - v_leased - (
            select count(*)::integer from holdfast.leaving g where g.part = a.part));
        end if;
      end if;
      exit when not coalesce(v_want > 0, false);
      v_jobs := holdfast.take_adopted(a, worker, token, v_want, lease, kinds, queue_row.lane_limit, at);
      exit when v_jobs is null;
      if holdfast.clock() - at >= interval '1 second' then   -- it waited for the table: leases are counted from now
        at := holdfast.clock();
        perform from holdfast.touch_adopted(array(select j.id from unnest(v_jobs) j),
          array_fill(token, array[cardinality(v_jobs)]), lease, at);
      end if;
      insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids)
      select claim_adopted.token, a.part, a.queue, claim_adopted.worker, claim_adopted.at, claim_adopted.lease,
             claim_adopted.at + claim_adopted.lease, array_agg(j.id)
      from unnest(v_jobs) j;
      return query
        select j.* from unnest(v_jobs) r cross join lateral holdfast.adopted_job(r, queue_row, at + lease) j;
      v_left := v_left - cardinality(v_jobs);
      if queue_row.rate_limit is not null then
        insert into holdfast.rate_use (part, queue, lane, at, starts)
        values (queue_row.adopted, queue_row.name, '', claim_adopted.at, cardinality(v_jobs));
      end if;
      -- of each lane one at a time: only those with room for more can give another
      exit when v_left <= 0 or not v_lanes or queue_row.lane_limit = 1;
    end loop;
    exit when v_left <= 0 or turn = 2;
    exit when not exists (select from holdfast.reap_at(v_left, queue_row.name, at));
  end loop;
  if v_left < max_jobs and (queue_row.lease_limit is not null or queue_row.rate_limit is not null or v_lanes) then
    perform set_config('synchronous_commit', v_commit, true);   -- let in by them: as durable as the session is
  end if;
end
$$;

-- adopted_job: a leased row of an adopted table as a job. What a table has no column for is null.
create or replace function holdfast.adopted_job(
  r holdfast_adopted.job_row, queue_row holdfast.queue, lease_until timestamptz)
returns holdfast.job
language plpgsql stable
as $$
declare
  j holdfast.job;
begin
  j.id := r.id;
  j.queue := queue_row.name;
  j.kind := holdfast.adopted_kind(r.kind, queue_row.name);
  j.payload := r.payload;
  j.priority := least(greatest(r.priority, 0), 9);
  j.attempt := coalesce(r.attempt, 1::smallint);
  j.max_attempts := coalesce(r.max_attempts, queue_row.max_attempts);
  j.lease_until := lease_until;
  j.run_at := r.run_at;
  j.created_at := r.created_at;
  j.lane := r.lane;
  j.tenant := r.tenant;
  j.subject := r.subject;
  return j;
end
$$;

create or replace function holdfast.leased_adopted(part smallint)
returns integer
language plpgsql stable
as $$
declare
  v_leased  integer;
  v_context text;
  v_marks   text[];
begin
  v_marks := holdfast.marks_before(part);
  execute format('select holdfast_adopted.%I()', part || '_leased') into v_leased;
  perform holdfast.check_after(part, v_marks);
  return v_leased;
exception when others or query_canceled or assert_failure then
  get stacked diagnostics v_context = pg_exception_context;
  perform holdfast.tidy_session(v_marks);
  if holdfast.is_of_the_caller(sqlstate, v_context) then
    raise;
  end if;
  return null;
end
$$;

-- note_table_fault: record why no row of a table can be claimed, or that one can be again. Another call may be at it:
-- then it is left to the next.
create or replace function holdfast.note_table_fault(part smallint, fault text)
returns void
language sql
as $$
  update holdfast.adopted a set fault = note_table_fault.fault
  where a.ctid = (
    select x.ctid from holdfast.adopted x
    where x.part = note_table_fault.part and x.fault is distinct from note_table_fault.fault
    for update skip locked)
$$;

-- take_adopted: take rows all at once; if that fails, one by one. Rows that cannot be written are recorded and
-- skipped; if it is not known which they are, that is recorded of the table.
create or replace function holdfast.take_adopted(
  a holdfast.adopted, worker text, token uuid, most integer, lease interval, kinds text[], lane_limit integer,
    at timestamptz)
returns holdfast_adopted.job_row[]
language plpgsql
as $$
declare
  v_sql  constant text := format(
    'select array_agg(c) from (select c.* from holdfast_adopted.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) c where '
      'holdfast.part_of(c.id) = %s limit $3) c',
    a.part || '_claim', a.part);
  v_skip uuid[] := (select array_agg(f.id) from holdfast.adopted_fault f where f.part = a.part);
  v_leaving constant text[] := case when a.spec -> 'columns' ? 'lane' then (
    select array_agg(g.lane) from holdfast.leaving g where g.part = a.part) end;
  v_jobs holdfast_adopted.job_row[];
  v_some holdfast_adopted.job_row[];
  v_one  holdfast_adopted.job_row;
  v_why  text;
  v_context text;
  v_marks   text[];
begin
  if cardinality(v_skip) >= 10000 then
    return null;
  end if;
  begin
    v_marks := holdfast.marks_before(a.part);
    execute v_sql into v_jobs using worker, token, most, lease, kinds, lane_limit, v_skip, null::uuid, at,
      v_leaving;
    perform holdfast.check_after(a.part, v_marks);
    if a.fault is not null then
      perform holdfast.note_table_fault(a.part, null);
    end if;
    return v_jobs;
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    perform holdfast.tidy_session(v_marks);
    if holdfast.is_of_the_caller(sqlstate, v_context) then
      raise;
    end if;
    a.fault := null;   -- of an earlier claim: it says nothing of this one
    if sqlstate like '42%' and holdfast.adopted_problem(a) is not null then
      return null;
    end if;
    v_jobs := null;   -- told, and taken back
    v_why := format('%s (SQLSTATE %s)', left(sqlerrm, 1000), sqlstate);
  end;
  for turn in 1 .. 5 loop
    begin
      v_marks := holdfast.marks_before(a.part);   -- a session that was tidied is another than before
      execute v_sql into v_some using worker, null::uuid, most - coalesce(cardinality(v_jobs), 0), lease, kinds,
        lane_limit, v_skip, null::uuid, at, v_leaving;
      perform holdfast.check_after(a.part, v_marks);
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_context = pg_exception_context;
      perform holdfast.tidy_session(v_marks);
      if holdfast.is_of_the_caller(sqlstate, v_context) then
        raise;
      end if;
      perform holdfast.note_table_fault(a.part, v_why);
      exit;
    end;
    exit when v_some is null;
    foreach v_one in array v_some loop
      begin
        v_marks := holdfast.marks_before(a.part);
        execute v_sql into v_some using worker, token, 1, lease, kinds, lane_limit, null::uuid[], v_one.id, at,
          v_leaving;
        perform holdfast.check_after(a.part, v_marks);
        v_jobs := v_jobs || v_some;
      exception when others or query_canceled or assert_failure then
        get stacked diagnostics v_context = pg_exception_context;
        perform holdfast.tidy_session(v_marks);
        if holdfast.is_of_the_caller(sqlstate, v_context) then
          raise;
        end if;
        perform holdfast.note_fault(a, v_one.id, 'claim', sqlstate, sqlerrm, at);
        v_skip := v_skip || v_one.id;
      end;
    end loop;
    exit when cardinality(v_jobs) >= most;
  end loop;
  return v_jobs;
end
$$;

-- lock_adopted: lock those of these rows that are of adopted tables, table by table and in the order of their ids. Who
-- goes on to lock receipts does it before. What cannot be locked is told by the verb that follows.
create or replace function holdfast.lock_adopted(ids uuid[])
returns void
language plpgsql
as $$
declare
  v_part    smallint;
  v_context text;
  v_marks   text[];
begin
  for v_part in
    select a.part
    from (select distinct holdfast.part_of(i) as part from unnest(ids) i) u
    join holdfast.adopted a on a.part = u.part and a.live
    where u.part >= 64
    order by a.part
  loop
    begin
      v_marks := holdfast.marks_before(v_part);
      execute format('select holdfast_adopted.%I($1)', v_part || '_lock')
      using array(select i from unnest(ids) i where holdfast.part_of(i) = v_part);
      perform holdfast.check_after(v_part, v_marks);
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_context = pg_exception_context;
      perform holdfast.tidy_session(v_marks);
      if holdfast.is_of_the_caller(sqlstate, v_context) then
        raise;
      end if;
    end;
  end loop;
end
$$;

-- touch_adopted: touch, for rows of adopted tables. If it fails, the rows are halved until the failing row is found.
create or replace function holdfast.touch_adopted(ids uuid[], tokens uuid[], lease interval, at timestamptz)
returns table (id uuid, token uuid, lease_until timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  a     holdfast.adopted;
  asked record;
  these record;
  v_context text;
  v_marks   text[];
begin
  for a in
    select x.* from holdfast.adopted x
    where x.live and x.part in (select holdfast.part_of(i) from unnest(ids) i) order by x.part
  loop
    select array_agg(u.id) as ids, array_agg(u.token) as tokens,
           array_agg(touch_adopted.at + coalesce(touch_adopted.lease, (
        select l.length from holdfast.lease l where l.token = u.token limit 1),
        (holdfast.settings_of(a.queue)).lease)) as untils
    into asked
    from unnest(ids, tokens) u(id, token)
    where holdfast.part_of(u.id) = a.part;
    begin
      v_marks := holdfast.marks_before(a.part);
      execute format('select array_agg(t.id) as ids, array_agg(t.token) as tokens, array_agg(t.lease_until) as untils '
        'from holdfast_adopted.%I($1, $2, $3) t',
        a.part || '_touch')
      into these
      using asked.ids, asked.tokens, asked.untils;
      perform holdfast.check_after(a.part, v_marks);
      return query
        select t.id, t.token, t.lease_until
        from unnest(these.ids, these.tokens, these.untils) t(id, token, lease_until)
        where t.id = any(asked.ids) and t.token = any(asked.tokens) and t.lease_until is not null;
      perform holdfast.note_suppressed(a, array_agg(t.id), 'touch', touch_adopted.at)
      from unnest(these.ids, these.untils) t(id, lease_until)
      where t.id = any(asked.ids) and t.lease_until is null;
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_context = pg_exception_context;
      perform holdfast.tidy_session(v_marks);
      if holdfast.is_of_the_caller(sqlstate, v_context) then
        raise;
      elsif sqlstate like '42%' and holdfast.adopted_problem(a) is not null then
        null;   -- the table as a whole: the answer says what to do
      elsif cardinality(asked.ids) = 1 then
        perform holdfast.note_fault(a, asked.ids[1], 'touch', sqlstate, sqlerrm, at);
      else
        return query
          select t.id, t.token, t.lease_until
          from (values (1, cardinality(asked.ids) / 2),
            (cardinality(asked.ids) / 2 + 1, cardinality(asked.ids))) h(first, last)
          cross join lateral holdfast.touch_adopted(asked.ids[h.first:h.last], asked.tokens[h.first:h.last],
            touch_adopted.lease, touch_adopted.at) t;
      end if;
    end;
  end loop;
end
$$;

-- note_attempts: record the attempts of rows that settle_rows has ended. Errors are parallel to ids and tokens, and are
-- found by hashing: a call may end thousands.
create or replace function holdfast.note_attempts(
  part smallint, ended jsonb, ids uuid[], tokens uuid[], error_kinds text[], messages text[], tracebacks text[],
  how text, at timestamptz)
returns void
language sql
set plan_cache_mode = force_custom_plan set jit = off
set enable_nestloop = off set enable_hashjoin = on set enable_mergejoin = off
as $$
  insert into holdfast.attempt (
    part, id, attempt, token, outcome, worker, started_at, ended_at, error_kind, message, traceback, fingerprint)
  select note_attempts.part, t.id, t.attempt, t.token, case when t.outcome = 'done' then 'reconciled' else how end,
         t.worker,
         (select max(l.claimed_at) from holdfast.lease l where l.token = t.token and l.part = note_attempts.part),
         note_attempts.at,
         case when t.outcome <> 'done' then left(u.error_kind, 200) end,
         case when t.outcome = 'done' then 'its work was found to be done' else left(u.message, 10000) end,
         left(u.traceback, 100000), case when t.outcome <> 'done' then holdfast.fingerprint(u.error_kind, u.message) end
  from jsonb_to_recordset(ended) t(id uuid, token uuid, worker text, attempt smallint, outcome text)
  join (
    select distinct on (x.id, x.token) x.*
    from unnest(ids, tokens, error_kinds, messages, tracebacks) x(id, token, error_kind, message, traceback)
  ) u on u.id = t.id and u.token = t.token
$$;

-- settle_adopted: what ack, nack, release, cancel, retry and an expired lease do to rows of adopted tables; other ids
-- are ignored. tokens null: called by an operator.
create or replace function holdfast.settle_adopted(
  ids uuid[], tokens uuid[], verb text, at timestamptz, error_kinds text[] default null, messages text[] default null,
  tracebacks text[] default null, delays interval[] default null, finals boolean[] default null,
    reason text default null)
returns table (id uuid, token uuid, queue text, kind text, worker text, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_how constant text := case verb
    when 'ack' then 'acked' when 'nack' then 'failed' when 'release' then 'released' when 'expire' then 'expired'
    when 'cancel' then case when tokens is null then 'cancelled' else 'cancelled by its holder' end end;
  v_leaving holdfast.leaving[];
  a     holdfast.adopted;
  these record;
begin
  for a in
    select x.* from holdfast.adopted x
    where x.live and x.part in (select holdfast.part_of(i) from unnest(ids) i) order by x.part
  loop
    if verb = 'cancel' and tokens is null then
      v_leaving := holdfast.adopted_leaving(a, ids);
    end if;
    select array_agg(s.id) as ids, array_agg(s.token) as tokens,
           array_agg(holdfast.adopted_kind(s.kind, a.queue)) as kinds,
           array_agg(s.worker) as workers, array_agg(s.attempt) as attempts, array_agg(s.outcome) as outcomes
    into these
    from (
      select u.verb, array_agg(u.id) as ids, array_agg(u.token) as tokens, array_agg(u.final) as finals,
             array_agg(u.delay) as delays,
             array_agg(left(concat_ws(': ', u.error_kind, u.message), 2000)) as errors
      from (
        -- what could not be written is let in again, whatever its row says
        select x.*, case when settle_adopted.verb = 'retry'
               and exists (select from holdfast.adopted_fault f where f.part = a.part and f.id = x.id)
                         then 'reset' else settle_adopted.verb end as verb
        from unnest(ids, tokens, finals, delays, error_kinds, messages) x(id, token, final, delay, error_kind, message)
        where holdfast.part_of(x.id) = a.part
      ) u
      group by u.verb
    ) g
    cross join lateral holdfast.settle_rows(a, g.ids, g.tokens, g.verb, g.finals, g.errors, g.delays,
      settle_adopted.reason, settle_adopted.at) s;
    if verb = 'nack' and exists (select from holdfast.adopted_fault f where f.part = a.part and f.verb = 'nack'
      and f.at = settle_adopted.at) then
      -- the row does not know what its attempt came to: it is told all the same
      insert into holdfast.attempt (
        part, id, attempt, token, outcome, worker, started_at, ended_at, error_kind, message, traceback, fingerprint)
      select a.part, j.id, j.attempt, u.token, v_how, j.worker,
             (select max(l.claimed_at) from holdfast.lease l where l.token = u.token and l.part = a.part),
               settle_adopted.at,
             left(u.error_kind, 200), left(u.message, 10000), left(u.traceback, 100000),
               holdfast.fingerprint(u.error_kind, u.message)
      from unnest(ids, tokens, error_kinds, messages, tracebacks) u(id, token, error_kind, message, traceback)
      join holdfast.adopted_fault f on f.part = a.part and f.id = u.id and f.verb = 'nack' and f.at = settle_adopted.at
      cross join lateral holdfast.adopted_jobs(a.part, array[u.id]) j
      where j.token = u.token;
    end if;
    continue when these.ids is null;

    if v_leaving <> '{}' then
      insert into holdfast.leaving as l
      select g.*
      from unnest(v_leaving) g
      join unnest(these.ids, these.tokens) t(id, token) on t.id = g.id and t.token = g.token
      on conflict (part, id, token) do update set until = greatest(l.until, excluded.until);
    end if;
    if verb = 'retry' then
      insert into holdfast.adopted_lives as l (part, id, attempts, at)
      select a.part, t.id, t.attempt, settle_adopted.at
      from unnest(these.ids, these.attempts) t(id, attempt)
      where t.attempt > 0
      order by t.id
      -- the owner's code says what the attempt was: no number of its is too large
      on conflict (part, id) do update set attempts = least(l.attempts + excluded.attempts, 1000000), at = excluded.at;
    end if;
    if verb in ('nack', 'expire') then
      perform holdfast.note_attempts(a.part, jsonb_agg(to_jsonb(t)), ids, tokens, error_kinds, messages, tracebacks,
        v_how, settle_adopted.at)
      from unnest(these.ids, these.tokens, these.workers, these.attempts, these.outcomes)
        t(id, token, worker, attempt, outcome)
      where t.token is not null;
    end if;
    if v_how is not null then
      perform holdfast.mark_taken(array_agg(t.id), array_agg(t.token),
        case when verb = 'expire' and t.outcome = 'done' then 'reconciled' else v_how end)
      from unnest(these.ids, these.tokens, these.outcomes) t(id, token, outcome)
      where t.token is not null
      group by case when verb = 'expire' and t.outcome = 'done' then 'reconciled' else v_how end;
    end if;
    if 'done' = any(these.outcomes) and (verb = 'expire' or a.spec ->> 'on_success' = 'delete') then
      insert into holdfast.tally (part, queue, kind, reconciled, done)
      select a.part, a.queue, t.kind, case when verb = 'expire' then count(*) else 0 end,
             -- rows that were deleted count as done no longer; the jobs do
             case when a.spec ->> 'on_success' = 'delete' then count(*) else 0 end
      from unnest(these.kinds, these.outcomes) t(kind, outcome)
      where t.outcome = 'done'
      group by t.kind;
    end if;
    return query
      select t.id, t.token, a.queue, t.kind, t.worker, t.outcome
      from unnest(these.ids, these.tokens, these.kinds, these.workers, these.outcomes)
        t(id, token, kind, worker, outcome);
  end loop;
end
$$;

-- adopted_leaving: rows of an adopted table whose holders will have to let go of a slot if they are cancelled now.
create or replace function holdfast.adopted_leaving(a holdfast.adopted, ids uuid[])
returns holdfast.leaving[]
language plpgsql
as $$
declare
  v_ids constant uuid[] := array(select i from unnest(ids) i where holdfast.part_of(i) = a.part);
begin
  if not a.spec -> 'columns' ? 'lane' and (holdfast.settings_of(a.queue)).lease_limit is null then
    return null;
  end if;
  perform holdfast.lock_adopted(v_ids);
  return array(
    select row(a.part, j.id, j.token, a.queue, j.lane, null, coalesce(j.worker, ''), j.lease_until)::holdfast.leaving
    from holdfast.adopted_jobs(a.part, v_ids) j
    where j.state = 'leased' and j.token is not null and j.lease_until is not null);
end
$$;

-- settle_rows: settle rows of one table all at once; if it fails, the rows are halved until the failing row is found
-- and recorded. Results of the owner's functions are accepted only for rows that were requested.
create or replace function holdfast.settle_rows(
  a holdfast.adopted, ids uuid[], tokens uuid[], verb text, finals boolean[], errors text[], delays interval[],
    reason text, at timestamptz)
returns table (id uuid, token uuid, kind text, worker text, attempt smallint, outcome text)
language plpgsql
as $$
#variable_conflict use_column
declare
  q     holdfast.queue;
  these record;
  v_context text;
  v_marks   text[];
begin
  q := holdfast.settings_of(a.queue);
  begin
    v_marks := holdfast.marks_before(a.part);
    execute format(
      'select array_agg(s.id) as ids, array_agg(s.token) as tokens, array_agg(s.kind) as kinds, array_agg(s.worker) '
        'as workers,'
      || ' array_agg(s.attempt) as attempts, array_agg(s.outcome) as outcomes from holdfast_adopted.%I($1, $2, $3, '
        '$4, $5, $6, $7, $8, $9, $10, $11) s',
      a.part || '_settle')
    into these
    using ids, tokens, verb, finals, errors, delays, reason, q.max_attempts, q.backoff, q.backoff_cap, at;
    perform holdfast.check_after(a.part, v_marks);
    return query
      select distinct on (t.id) t.id, t.token, t.kind, t.worker, coalesce(t.attempt, 0::smallint), t.outcome
      from unnest(these.ids, these.tokens, these.kinds, these.workers, these.attempts, these.outcomes) t(id, token,
        kind, worker, attempt, outcome)
      where t.id = any(ids) and (t.token = any(tokens) or array_position(tokens, null) is not null)
        and t.outcome = any(case verb when 'ack' then '{done}' when 'cancel' then '{cancelled}' when 'nack'
          then '{queued,dead}'
          when 'expire' then '{queued,dead,done}' else '{queued}' end::text[]);
    perform holdfast.note_suppressed(a, array_agg(t.id), verb, at)
    from unnest(these.ids, these.outcomes) t(id, outcome)
    where t.id = any(ids) and t.outcome = 'suppressed';
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    perform holdfast.tidy_session(v_marks);
    if holdfast.is_of_the_caller(sqlstate, v_context) then
      raise;
    elsif sqlstate like '42%' and holdfast.adopted_problem(a) is not null then
      null;   -- the table as a whole: the answer says what to do
    elsif cardinality(ids) = 1 then
      perform holdfast.note_fault(a, ids[1], verb, sqlstate, sqlerrm, at);
    else
      return query
        select s.id, s.token, s.kind, s.worker, s.attempt, s.outcome
        from (values (1, cardinality(ids) / 2), (cardinality(ids) / 2 + 1, cardinality(ids))) h(first, last)
        cross join lateral holdfast.settle_rows(a, ids[h.first:h.last], tokens[h.first:h.last], verb,
          finals[h.first:h.last], errors[h.first:h.last],
          delays[h.first:h.last], reason, at) s;
    end if;
  end;
end
$$;

-- reap_adopted: expire leases of these claims, in adopted tables. If the output of a job exists, it is done. It never
-- waits for a lock, and a failing table does not affect others.
create or replace function holdfast.reap_adopted(tokens uuid[], at timestamptz, cut timestamptz, back timestamptz)
returns table (id uuid, queue text, kind text, worker text, outcome text)
language plpgsql
set lock_timeout = '500ms'
as $$
#variable_conflict use_column
declare
  l     record;
  these record;
  v_ids uuid[];
  v_ends  integer;
  v_marks text[];
  v_ended boolean := false;   -- somebody wants this call to end
begin
  for l in
    select x.token, x.part, x.ids, x.claimed_at, x.outside, x.worker, x.length, coalesce(a.live, false) as live
    from holdfast.lease x
    left join holdfast.adopted a on a.part = x.part
    where x.token = any(reap_adopted.tokens) and x.open and x.part >= 64
  loop
    select null::uuid[] as ids, null::timestamptz as until into these;
    begin
      v_ids := array(select i from unnest(l.ids) i
        where not exists (select from holdfast.adopted_fault f where f.part = l.part and f.id = i));
      if l.live and cardinality(v_ids) > 0 then
        v_marks := holdfast.marks_before(l.part);
        execute format(
          'select array_agg(e.id) filter (where e.expired) as ids, min(e.lease_until) filter (where not e.expired) as '
            'until'
          || ' from holdfast_adopted.%I($1, $2, $3) e', l.part || '_expired')
        into these
        using v_ids, l.token, case when l.claimed_at >= back then at else cut end;
        perform holdfast.check_after(l.part, v_marks);
      end if;
      v_ids := array(select i from unnest(these.ids) i where i = any(l.ids));
      if cardinality(v_ids) > 0 then
        return query
          select s.id, s.queue, s.kind, s.worker, s.outcome
          from holdfast.settle_adopted(v_ids, array_fill(l.token, array[cardinality(v_ids)]), 'expire', at,
            array_fill(case when l.outside then 'NoAnswer' else 'LeaseExpired' end, array[cardinality(v_ids)]),
            array_fill(case when l.outside then format('no answer from %s within %s', l.worker, l.length)
                            else 'the lease expired without being renewed' end, array[cardinality(v_ids)])) s;
        get diagnostics v_ends = row_count;
        -- what has neither ended nor become a fault has not been told why: later
        if v_ends + (select count(*) from holdfast.adopted_fault f where f.part = l.part and f.id = any(v_ids))
          < cardinality(v_ids)
        then
          these.until := at + interval '10 seconds';
        end if;
      end if;
    exception when others or query_canceled or assert_failure then
      -- The table cannot be read or written now: later. Whatever it is, even a statement timeout that a trigger has
      -- slept away, what expired in other queues is taken back.
      perform holdfast.tidy_session(v_marks);
      these.until := at + interval '10 seconds';
      v_ended := sqlstate = '57014';
    end;
    update holdfast.lease x
    set open = these.until is not null, until = coalesce(greatest(these.until, at + interval '1 second'),
      at + interval '5 minutes')
    where x.token = l.token and x.part = l.part and x.open;
    exit when v_ended;
  end loop;
end
$$;

create or replace function holdfast.hand_over_adopted(
  id uuid, token uuid, new_token uuid, until timestamptz, holder text)
returns table (queue text, lease_until timestamptz)
language plpgsql
as $$
declare
  a         holdfast.adopted;
  v_until   timestamptz;
  v_context text;
  v_marks   text[];
begin
  select x.* into a from holdfast.adopted x where x.part = holdfast.part_of(hand_over_adopted.id) and x.live;
  if not found then
    return;
  end if;
  begin
    v_marks := holdfast.marks_before(a.part);
    execute format('select holdfast_adopted.%I($1, $2, $3, $4, $5)', a.part || '_hand_over') into v_until using id,
      token, new_token, until, holder;
    perform holdfast.check_after(a.part, v_marks);
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_context = pg_exception_context;
    perform holdfast.tidy_session(v_marks);
    if holdfast.is_of_the_caller(sqlstate, v_context) then
      raise;
    end if;
    v_until := null;
    if sqlstate not like '42%' or holdfast.adopted_problem(a) is null then
      perform holdfast.note_fault(a, id, 'hand_over', sqlstate, sqlerrm, holdfast.clock());
    end if;
  end;
  if v_until is not null then
    return query select a.queue, v_until;
  end if;
end
$$;

-- refuse_adopted: refuse to enqueue into a queue that is a table.
create or replace function holdfast.refuse_adopted(queue text)
returns void
language plpgsql
as $$
declare
  v_table constant text := (select a.relation from holdfast.adopted a where a.queue = refuse_adopted.queue);
begin
  perform holdfast.refuse('HF226', format('queue %L is table %s', queue, v_table), null,
    format('Insert a row into %s instead; its status makes it a job.', v_table));
end
$$;

-- held_adopted: what a claim of an adopted table still holds, as jobs.
create or replace function holdfast.held_adopted(claimed holdfast.lease)
returns setof holdfast.job
language plpgsql stable
as $$
declare
  r record;
  j holdfast.job;
begin
  for r in
    select a.*
    from holdfast.adopted_jobs(claimed.part, claimed.ids) a
    where a.token = claimed.token and a.state = 'leased'
  loop
    j := null;
    j.id := r.id;
    j.queue := r.queue;
    j.kind := r.kind;
    j.payload := r.payload;
    j.priority := r.priority;
    j.attempt := r.attempt;
    j.max_attempts := r.max_attempts;
    j.token := r.token;
    j.lease_until := r.lease_until;
    j.worker := r.worker;
    j.run_at := r.run_at;
    j.created_at := r.created_at;
    j.lane := r.lane;
    j.tenant := r.tenant;
    j.subject := r.subject;
    return next j;
  end loop;
end
$$;

-- rescue: rows of adopted tables that other code took and abandoned, longer ago than the table's setting.
create or replace function holdfast.rescue(max_jobs integer default 1000)
returns integer
language plpgsql
set lock_timeout = '500ms'
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.clock();
  v_ids   uuid[];
  v_saved integer := 0;
  v_some  integer;
  v_marks text[];
  a       holdfast.adopted;
begin
  for a in select x.* from holdfast.adopted x where x.live and x.spec ? 'stuck_after' order by x.part loop
    begin
      v_marks := holdfast.marks_before(a.part);
      execute format('select array(select s from holdfast_adopted.%I($1, $2) s)', a.part || '_stuck')
      into v_ids
      using max_jobs, v_now - (a.spec ->> 'stuck_after')::interval;
      perform holdfast.check_after(a.part, v_marks);
      v_ids := array(
        select i from unnest(v_ids) i
        where holdfast.part_of(i) = a.part and not exists (select from holdfast.adopted_fault f where f.part = a.part
          and f.id = i));
      continue when cardinality(v_ids) = 0;
      with saved as materialized (
        select s.outcome
        from holdfast.settle_adopted(v_ids, null, 'expire', v_now,
          array_fill('Stuck'::text, array[cardinality(v_ids)]),
          array_fill('other code took the row and left it'::text, array[cardinality(v_ids)])) s
      ), noted as (
        insert into holdfast.adopted_note (part, hour, who, what, jobs)
        select a.part, date_trunc('hour', v_now), 'holdfast', 'found a row left by other code: ' || s.outcome, count(*)
        from saved s
        group by s.outcome
      )
      select count(*) into v_some from saved;
      v_saved := v_saved + v_some;
    exception when others or query_canceled or assert_failure then
      perform holdfast.tidy_session(v_marks);
      exit when sqlstate = '57014';   -- somebody wants this call to end; what was done is done
    end;
  end loop;
  return v_saved;
end
$$;

-- guard: whether the output of a job that the token holds still has to be created. Others that run the job wait until
-- the caller's transaction ends, and then see the output. Null: the token does not hold it.
create or replace function holdfast.guard(id uuid, token uuid)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_part constant smallint := holdfast.part_of(id);
  v_done  boolean;
  v_marks text[];
begin
  if v_part < 64 then
    perform from holdfast.job j where j.part = v_part and j.id = guard.id and j.token = guard.token for update;
    return case when found then true end;
  end if;
  if not exists (select from holdfast.adopted a where a.part = v_part and a.live) then
    return null;
  end if;
  v_marks := holdfast.marks_before(v_part);
  begin
    execute format('select holdfast_adopted.%I($1, $2)', v_part || '_guard') into v_done using id, token;
    perform holdfast.check_after(v_part, v_marks);
  exception when others or query_canceled or assert_failure then
    perform holdfast.tidy_session(v_marks);
    raise;
  end;
  if v_done then
    insert into holdfast.adopted_note (part, hour, who, what, jobs, sample)
    values (v_part, date_trunc('hour', holdfast.now()), 'holdfast', 'duplicate prevented', 1, id::text);
  end if;
  return not v_done;
end
$$;

-- fault_told: what is recorded of a row that could not be written, as a sentence; null if nothing is.
create or replace function holdfast.fault_told(fault holdfast.adopted_fault)
returns text
language sql stable
as $$
  select format('the row of job %s cannot be written: %s (%s, SQLSTATE %s)', fault.id, fault.message, fault.verb,
           fault.code)
  where fault.id is not null
$$;

-- why_not_written: why a row of an adopted table did not change: the table as a whole, or the row; null if neither.
create or replace function holdfast.why_not_written(id uuid)
returns text
language sql stable
as $$
  select coalesce(holdfast.adopted_problem(a), (
    select holdfast.fault_told(f)
    from holdfast.adopted_fault f
    where f.part = a.part and f.id = why_not_written.id))
  from holdfast.adopted a
  where a.part = holdfast.part_of(why_not_written.id) and a.live
$$;

-- explain_adopted: one sentence, for a row of an adopted table.
create or replace function holdfast.explain_adopted(id uuid, at timestamptz)
returns text
language plpgsql stable
as $$
#variable_conflict use_column
declare
  v_table   text;
  v_deletes boolean;
  v_said    text;
  q         holdfast.queue;
  g         holdfast.leaving;
  j         record;
begin
  select a.relation, a.spec ->> 'on_success' = 'delete', holdfast.adopted_problem(a) into v_table, v_deletes, v_said
  from holdfast.adopted a where a.part = holdfast.part_of(explain_adopted.id);
  if v_said is not null then
    return v_said;
  end if;
  select x.* into j from holdfast.get(explain_adopted.id) x;
  if j.id is null then
    if v_deletes then
      return format('No job has the id %s: its row in %s is gone. Rows are deleted when they are done.', id, v_table);
    end if;
    return format('No job has the id %s: its row in %s is gone, or the table is no longer a queue.', id,
      coalesce(v_table, 'an adopted table'));
  end if;
  select format('Row %s of %s could not be written at %s: %s (%s, SQLSTATE %s). Fix it, then: holdfast job retry %s',
         j.subject, v_table,
    to_char(f.at, 'YYYY-MM-DD HH24:MI:SS TZ'), f.message, f.verb, f.code, f.id)
  into v_said
  from holdfast.adopted_fault f
  where f.part = holdfast.part_of(explain_adopted.id) and f.id = explain_adopted.id;
  if found then
    return v_said;
  end if;
  select x.* into q from holdfast.queue x where x.name = j.queue;
  select x.* into g
  from holdfast.leaving x
  where x.part = holdfast.part_of(explain_adopted.id) and x.lane = j.lane
  order by x.until desc
  limit 1;
  return case
    when j.state = 'leased' and j.lease_until is null then format('Other code holds row %s of %s.', j.subject, v_table)
    when j.state = 'leased' and j.lease_until > at then format('Leased by %s until %s, attempt %s of %s.', j.worker,
      to_char(j.lease_until, 'HH24:MI:SS TZ'), j.attempt, j.max_attempts)
    when j.state = 'leased' then format('The lease of %s expired %s ago; the next reap reclaims row %s of %s.',
      j.worker,
      date_trunc('second', at - j.lease_until), j.subject, v_table)
    when j.state = 'dead' then format('Dead since %s after attempt %s of %s: %s',
      to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
      j.attempt, j.max_attempts, coalesce(nullif(j.error, ''), 'no error was given'))
    when j.state = 'done' then format('Done at %s%s.', to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
      coalesce(' by ' || j.worker, ''))
    when j.state = 'cancelled' then format('Cancelled at %s%s.', to_char(j.ended_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
      coalesce(': ' || j.reason, ''))
    when j.state = 'archived' then format('Row %s of %s has a status that is not a state of a job.', j.subject, v_table)
    when q.paused_at is not null and (q.paused_until is null or q.paused_until > at)
      then format('Queue %s has been paused%s since %s%s.', j.queue,
      coalesce(' by ' || q.paused_by, ''), to_char(q.paused_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
        coalesce(': ' || q.paused_reason, ''))
    when j.run_at > at and j.error is not null
      then format('Attempt %s of %s failed (%s); the next is due in %s.', j.attempt, j.max_attempts,
      left(j.error, 200), date_trunc('second', j.run_at - at + interval '1 second'))
    when j.run_at > at then format('Not due before %s.', to_char(j.run_at, 'YYYY-MM-DD HH24:MI:SS TZ'))
    when g.id is not null then format('Lane %s is held: job %s was cancelled, and %s has until %s to stop its handler.',
      j.lane, g.id, g.worker, holdfast.hour(g.until))
    else format('Ready: row %s of %s waits to be claimed%s.', j.subject, v_table, coalesce(', in lane ' || j.lane, ''))
  end;
end
$$;

-- recount_adopted: set the counters of an adopted table from its rows, in one snapshot. Two calls at once run one after
-- the other, whoever makes them: first the table is waited for, which a truncate holds that recounts, then each other.
create or replace function holdfast.recount_adopted(part smallint)
returns table (queue text, kind text, queued bigint, leased bigint, dead bigint, cancelled bigint, archived bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
  -- rows that success deleted cannot be counted again: once there are counters, those of done stay
  v_gone constant boolean := exists (select from holdfast.adopted a where a.part = recount_adopted.part
    and a.spec ->> 'on_success' = 'delete')
    and (exists (select from holdfast.total t where t.part = recount_adopted.part)
         or exists (select from holdfast.tally t where t.part = recount_adopted.part));
  v_context text;
  v_marks   text[];
begin
  v_marks := holdfast.marks_before(part);
  execute format('select holdfast_adopted.%I(''{}'')', part || '_lock');
  perform pg_advisory_xact_lock(4922, part);
  return query execute format($sql$
    with found as (
      select holdfast.adopted_kind(c.kind, a.queue) as kind, c.state, least(c.jobs, 2000000000) as n
      from holdfast_adopted.%1$I() c, holdfast.adopted a
      where a.part = %2$s and not ($1 and c.state = 'done')
      union all
      -- those that cannot be written are dead
      select f.kind, s.state, s.n from holdfast.adopted_fault f
      cross join lateral (values (f.state, -1), ('dead', 1)) s(state, n) where f.part = %2$s
      union all
      select c.kind, s.state, -sum(s.n)
      from (
        select t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.total t
        where t.part = %2$s
        union all
        select t.kind, t.queued, t.leased, t.dead, t.done, t.cancelled, t.archived from holdfast.tally t
        where t.part = %2$s
      ) c
      cross join lateral (values ('queued', c.queued), ('leased', c.leased), ('dead', c.dead),
        ('done', c.done), ('cancelled', c.cancelled), ('archived', c.archived)) s(state, n)
      where not ($1 and s.state = 'done')
      group by c.kind, s.state
    )
    insert into holdfast.tally (part, queue, kind, queued, leased, dead, done, cancelled, archived)
    select %2$s, (select a.queue from holdfast.adopted a where a.part = %2$s), d.* from (
      select f.kind, coalesce(sum(f.n) filter (where f.state = 'queued'), 0) as queued,
             coalesce(sum(f.n) filter (where f.state = 'leased'), 0) as leased,
        coalesce(sum(f.n) filter (where f.state = 'dead'), 0) as dead,
          coalesce(sum(f.n) filter (where f.state = 'done'), 0) as done,
        coalesce(sum(f.n) filter (where f.state = 'cancelled'), 0) as cancelled,
          coalesce(sum(f.n) filter (where f.state = 'archived'), 0) as archived
      from found f
      group by f.kind
    ) d
    where (d.queued, d.leased, d.dead, d.done, d.cancelled, d.archived) <> (0, 0, 0, 0, 0, 0)
    returning queue::text, kind::text, queued::bigint, leased::bigint, dead::bigint, cancelled::bigint, archived::bigint
  $sql$, part || '_count', part) using v_gone;
  perform holdfast.check_after(part, v_marks);
exception when others or query_canceled or assert_failure then
  get stacked diagnostics v_context = pg_exception_context;
  perform holdfast.tidy_session(v_marks);
  if holdfast.is_of_the_caller(sqlstate, v_context) then
    raise;
  end if;
end
$$;

-- fold_notes: sum up notes to one row per hour.
create or replace function holdfast.fold_notes()
returns void
language sql
as $$
  with gone as (
    delete from holdfast.adopted_note n
    where n.ctid = any(array(
      select x.ctid from holdfast.adopted_note x
      where not x.folded or x.hour > holdfast.now() - interval '2 hours' or x.hour < holdfast.now() - interval '30 days'
      for update skip locked))
    returning n.*
  )
  insert into holdfast.adopted_note (part, hour, who, what, jobs, sample, folded)
  select g.part, g.hour, g.who, g.what, sum(g.jobs), min(g.sample), true
  from gone g
  where g.hour >= holdfast.now() - interval '30 days'
  group by g.part, g.hour, g.who, g.what
$$;

-- linked: delete waiting jobs of a subject that was deleted. Arguments of the trigger: what subjects start with,
-- then the columns of the key.
create or replace function holdfast.linked()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  v_ids uuid[];
begin
  -- concat_ws writes values as they are stored: a cast of the table's owner would run with the rights of Holdfast
  execute format('select array_agg(j.id) from (select %L || concat_ws('','', %s) as subject from gone_rows o) s'
    || ' join holdfast.job j on j.subject = s.subject where j.token is null', tg_argv[0],
    (select string_agg(format('o.%I', c.name), ', ' order by c.nth)
      from unnest(tg_argv[1:]) with ordinality c(name, nth)))
  into v_ids;
  if v_ids is not null then
    perform holdfast.delete(v_ids, 'its subject was deleted');
  end if;
  return null;
end
$$;

-- adoption_of: an adoption as it would be, to see what would be generated for it.
create or replace function holdfast.adoption_of(part smallint, queue text, relation text, spec jsonb)
returns holdfast.adopted
language plpgsql stable
as $$
declare
  a holdfast.adopted;
begin
  a.part := adoption_of.part;
  a.queue := adoption_of.queue;
  a.relation := adoption_of.relation;
  a.spec := adoption_of.spec;
  a.adopted_at := now();
  return a;
end
$$;

-- free_part: the part that the next adopted table gets.
create or replace function holdfast.free_part()
returns integer
language sql stable
as $$
  select min(p)::integer
  from generate_series(64, 4095) p
  where not exists (select from holdfast.adopted a where a.part = p)
$$;

-- begin_adoption: store a plan before its first step. Returns what was adopted in its place meanwhile; null if
-- nothing, or if this plan was begun before.
create or replace function holdfast.begin_adoption(
  part smallint, queue text, relation text, spec jsonb, steps jsonb, actor text)
returns text
language plpgsql
as $$
#variable_conflict use_column
declare
  v_same  boolean;
  v_other text;
begin
  lock table holdfast.adopted in share row exclusive mode;
  select bool_and((a.part, a.relation, a.queue) = (
           begin_adoption.part, begin_adoption.relation, begin_adoption.queue)),
         min(format('%s was adopted meanwhile, as queue %s', a.relation, a.queue))
  into v_same, v_other
  from holdfast.adopted a
  where a.part = begin_adoption.part or a.relation = begin_adoption.relation or a.queue = begin_adoption.queue;
  if v_same is not null then
    return case when not v_same then v_other end;
  end if;
  insert into holdfast.adopted (part, queue, relation, spec, steps, adopted_by)
  values (begin_adoption.part, begin_adoption.queue, begin_adoption.relation, begin_adoption.spec, begin_adoption.steps,
    begin_adoption.actor);
  return null;
end
$$;

-- mark_step: a step of a plan is done, or undone.
create or replace function holdfast.mark_step(part smallint, name text, done boolean)
returns void
language sql
as $$
  update holdfast.adopted a
  set steps = (
    select jsonb_agg(case when s.step ->> 'name' = mark_step.name
             then s.step || jsonb_build_object('done', mark_step.done) else s.step end order by s.nth)
    from jsonb_array_elements(a.steps) with ordinality s(step, nth))
  where a.part = mark_step.part
$$;

-- end_adoption: forget a plan all of whose steps were undone.
create or replace function holdfast.end_adoption(part smallint)
returns void
language sql
as $$ delete from holdfast.adopted a where a.part = end_adoption.part $$;

-- begin_verbs, end_verbs: turn the verbs on and off for the rows of a table.
create or replace function holdfast.begin_verbs(part smallint)
returns void
language plpgsql
as $$
begin
  update holdfast.adopted a set live = true where a.part = begin_verbs.part;
  perform holdfast.readopt_one(part);
end
$$;

create or replace function holdfast.end_verbs(part smallint)
returns void
language plpgsql
as $$
begin
  update holdfast.adopted a set live = false where a.part = end_verbs.part;
  perform holdfast.forget_adopted(part);
end
$$;

-- begin_queue, end_queue: make a table a queue with counters; end that, and delete everything stored about it.
create or replace function holdfast.begin_queue(part smallint, queue text)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  perform from holdfast.recount_adopted(part);
  insert into holdfast.queue
  select d.*
  from jsonb_populate_record(holdfast.unset_queue(queue), jsonb_build_object('adopted', part)) d
  on conflict (name) do update set adopted = excluded.adopted;
end
$$;

create or replace function holdfast.end_queue(part smallint, queue text)
returns void
language plpgsql
as $$
#variable_conflict use_column
begin
  delete from holdfast.queue q where q.name = end_queue.queue and q.adopted = end_queue.part;
  delete from holdfast.tally t where t.part = end_queue.part;
  delete from holdfast.total t where t.part = end_queue.part;
  delete from holdfast.adopted_note n where n.part = end_queue.part;
  delete from holdfast.lease l where l.part = end_queue.part;
  delete from holdfast.leaving g where g.part = end_queue.part;
end
$$;

-- adopted_held: which rows of an adopted table are leased, and by which tokens.
create or replace function holdfast.adopted_held(part smallint)
returns table (id uuid, token uuid)
language sql stable
as $$
  select h.id, h.token
  from holdfast.held(array(select l.token from holdfast.lease l where l.part = adopted_held.part and l.open)) h
$$;

-- forget_adopted: drop what was generated for a table; the owner of the schema may.
create or replace function holdfast.forget_adopted(part smallint)
returns void
language plpgsql
as $$
declare
  v_role    constant text := current_setting('role');
  v_routine record;
begin
  perform set_config('role', holdfast.owner_of_holdfast(), true);
  execute format('drop view if exists holdfast_adopted.%I', part::text);
  for v_routine in
    select p.oid::regprocedure as name, pg_get_userbyid(p.proowner) as owner from pg_proc p
    where p.pronamespace in ('holdfast_adopted'::regnamespace, 'holdfast_told'::regnamespace) and p.proname like part
      || '\_%'
  loop
    execute format('drop routine %s', v_routine.name);
    perform holdfast.shut_out(v_routine.owner);
  end loop;
  delete from holdfast.adopted_fault f where f.part = forget_adopted.part;
  delete from holdfast.adopted_lives l where l.part = forget_adopted.part;
  perform set_config('role', v_role, true);
end
$$;

-- reconcile_adopted: check the rows of a table that are taken. Those that are no longer held are settled by whether
-- their output exists; dry_run only reports it.
create or replace function holdfast.reconcile_adopted(
  part smallint, dry_run boolean default true, max_jobs integer default 10000)
returns table (id uuid, subject text, worker text, since timestamptz, output boolean, verdict text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := holdfast.clock();
  v_ids uuid[];
  a     holdfast.adopted;
  said  record;
  v_marks text[];
begin
  select x.* into a from holdfast.adopted x where x.part = reconcile_adopted.part;
  v_marks := holdfast.marks_before(part);
  begin
    execute format('select array(select t from holdfast_adopted.%I($1) t)', part || '_taken') into v_ids
      using max_jobs;
    perform holdfast.check_after(part, v_marks);   -- before another name is resolved
    execute format(
      'select array_agg(j.id) as ids, array_agg(d.done) as done, array_agg(j.subject) as subjects, array_agg(j.worker) '
        'as workers,'
      || ' array_agg(j.lease_until) as untils, array_agg(j.attempt >= j.max_attempts) as last'
      || ' from holdfast.adopted_jobs($1, $2) j join holdfast_adopted.%I($2) d on d.id = j.id where j.state = $3',
      part || '_done')
    into said using part, v_ids, 'leased';
    perform holdfast.check_after(part, v_marks);
  exception when others or query_canceled or assert_failure then
    perform holdfast.tidy_session(v_marks);
    raise;
  end;
  if not dry_run then
    perform from holdfast.reap(max_jobs, a.queue);
    perform holdfast.rescue(max_jobs);
  end if;
  return query
    select s.id, s.subject, s.worker, s.until, s.done, case
      when s.until > v_now then 'held'
      when s.until is null and not a.spec ? 'stuck_after' then 'held'
      when s.done then 'done' when s.last then 'dead' else 'queued' end
    from unnest(said.ids, said.subjects, said.workers, said.untils, said.done, said.last) s(id, subject, worker, until,
      done, last);
end
$$;

select holdfast.readopt();
