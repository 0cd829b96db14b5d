-- Four roles, nothing for anyone else. Functions run as their owner with a pinned search_path, so a
-- role needs no right on the tables. Where the installer may not create roles, they are left to the
-- administrator and the grants are skipped.

revoke all on all tables in schema holdfast from public;
revoke all on all sequences in schema holdfast from public;
revoke all on all functions in schema holdfast from public;
revoke all on schema holdfast from public;

-- grant_all_but: let a role read a table, except one column.
create or replace function holdfast.grant_all_but(hidden text, relation text, role text)
returns void
language plpgsql
as $$
begin
  execute format('grant select (%s) on holdfast.%I to %I', (
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
    from pg_attribute a
    where a.attrelid = format('holdfast.%I', relation)::regclass and a.attnum > 0 and not a.attisdropped
      and a.attname <> hidden), relation, role);
end
$$;
revoke all on function holdfast.grant_all_but(text, text, text) from public;

-- hide_tokens: take the column token from a role, in every table that has one: also in those that upkeep makes day by
-- day, which are there when this runs again, and in the parts of a table that is split.
create or replace function holdfast.hide_tokens(role text)
returns void
language plpgsql
as $$
declare
  v_table record;
begin
  for v_table in
    select c.relname as name, c.relispartition as part
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attname = 'token' and not a.attisdropped
    where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
  loop
    execute format('revoke select on holdfast.%I from %I', v_table.name, role);
    -- what is read through the whole table needs no right of its own
    perform holdfast.grant_all_but('token', v_table.name, role) where not v_table.part;
  end loop;
end
$$;
revoke all on function holdfast.hide_tokens(text) from public;

do $$
declare
  v_role text;
begin
  foreach v_role in array '{holdfast_reader,holdfast_producer,holdfast_worker,holdfast_operator}'::text[] loop
    if not exists (select from pg_roles r where r.rolname = v_role) then
      begin
        execute format('create role %I nologin', v_role);
      exception
        when insufficient_privilege then
          raise notice 'role % is missing and may not be created here: its grants are skipped', v_role;
        when duplicate_object or unique_violation then
          null;   -- made by another installation of the same cluster just now
      end;
    end if;
    continue when not exists (select from pg_roles r where r.rolname = v_role);

    execute format('grant usage on schema holdfast to %I', v_role);
    execute format('grant select on holdfast.migration to %I', v_role);
    execute format('grant execute on function holdfast.now(), holdfast.version(), holdfast.new_id(text),
      holdfast.queue_part(text),
      holdfast.part_of(uuid), holdfast.oldest(text), holdfast.unset_queue(text),
      holdfast.usual_attempts(), holdfast.members(), holdfast.homes(text[]) to %I', v_role);
    if v_role in ('holdfast_reader', 'holdfast_operator') then
      execute format('grant select on all tables in schema holdfast to %I', v_role);
      -- What proves something is nobody's to read: secrets of webhooks, hashes of tokens, answers that may come twice,
      -- and the tokens of leases, by which jobs are ended.
      execute format('revoke select on holdfast.webhook, holdfast.api_token, holdfast.reply_link, holdfast.request,
        holdfast.attempt_rest from %I', v_role);
      perform holdfast.hide_tokens(v_role);
      execute format('grant execute on function holdfast.get(uuid), holdfast.list(text, integer, uuid),
        holdfast.find(text, integer, uuid),
        holdfast.died(text, integer, timestamptz, uuid), holdfast.upcoming(text, integer),
        holdfast.search(text, integer, uuid, interval), holdfast.adopted_rows(smallint, uuid[], uuid, integer),
          holdfast.count_jobs(text, integer, interval), holdfast.attempts(uuid), holdfast.steps(uuid),
          holdfast.lines(uuid, integer, integer), holdfast.last_lines(uuid[]),
          holdfast.explain(uuid), holdfast.waited_for(uuid), holdfast.followers(uuid), holdfast.workflow_of(uuid),
          holdfast.workflow_state(uuid), holdfast.workflow_counts(uuid), holdfast.workflow_ended_at(uuid),
          holdfast.workflow_of_link(uuid), holdfast.workflow_find(text, integer),
          holdfast.workflow_within(uuid, text[]),
          holdfast.workflow_groups(uuid, integer),
          holdfast.workflow_jobs(uuid, text, text, integer, bigint) to %I', v_role);
      execute format('grant execute on function holdfast.activity(text[], text, text, text, text, uuid, timestamptz,
        timestamptz, bigint,
        bigint, integer, interval), holdfast.tail(bigint, bigint[], bigint[], integer), holdfast.log_state(),
          holdfast.series(text, text[], text, timestamptz, timestamptz, interval),
          holdfast.success(text, interval) to %I', v_role);
      execute format('grant execute on function holdfast.explain_queue(text), holdfast.explain_lane(text, text),
        holdfast.forecast(text, interval, interval), holdfast.doctor(), holdfast.nodes() to %I', v_role);
    end if;
    if v_role in ('holdfast_producer', 'holdfast_worker', 'holdfast_operator') then
      execute format('grant execute on function holdfast.enqueue(jsonb, boolean),
        holdfast.enqueue_one(uuid, text, text, jsonb, smallint, boolean), holdfast.copied(text, text[], bigint[]),
        holdfast.large_put(text, bytea),
        holdfast.send_event(text, text, jsonb, interval, boolean, text), holdfast.workflow_of(uuid),
        holdfast.await_end(uuid[], text, interval), holdfast.not_ending(uuid[]),
        holdfast.workflow_start(text, jsonb, text, interval, uuid, uuid, boolean, text) to %I', v_role);
      execute format('grant insert (%s) on holdfast.job to %I', array_to_string(holdfast.copied_fields(), ', '),
        v_role);
      execute format('grant usage on sequence holdfast.pos to %I', v_role);
      execute format('grant select on holdfast.queues to %I', v_role);
    end if;
    if v_role in ('holdfast_worker', 'holdfast_operator') then
      execute format('grant execute on function
        holdfast.claim(text, text, uuid, integer, interval, text[], boolean),
        holdfast.claim_each(text, text[], uuid[], integer[], interval, text[], boolean),
        holdfast.touch(uuid[], uuid[], interval, jsonb),
        holdfast.ack(uuid[], uuid[], jsonb, boolean, integer),
        holdfast.nack(uuid[], uuid[], text, text, text, interval, boolean, text),
        holdfast.large_get(text), holdfast.large_list(timestamptz), holdfast.large_used(text),
        holdfast.large_delete(text[]),
        holdfast.release(uuid[], uuid[], interval), holdfast.settle(jsonb), holdfast.held(uuid[]),
        holdfast.await_work(text[], text, interval, text[], integer), holdfast.hear(), holdfast.pass_on(text),
        holdfast.ping(text), holdfast.reap(integer, text), holdfast.promote(integer, text), holdfast.sweep(integer),
        holdfast.raise_floors(interval, integer), holdfast.fold(), holdfast.turn_pages(integer),
        holdfast.upkeep(text[]), holdfast.upkeep_steps(),
        holdfast.hand_over(uuid, uuid, uuid, interval, text), holdfast.guard(uuid, uuid), holdfast.declare_kinds(jsonb),
        holdfast.doubtful(text[], integer), holdfast.reconcile(uuid[], uuid[], boolean[]),
        holdfast.get(uuid), holdfast.explain(uuid), holdfast.step(jsonb), holdfast.steps(uuid),
        holdfast.log(uuid[], uuid[], jsonb, bigint[]),
        holdfast.await_event(uuid, uuid, text, text, text, integer),
        holdfast.reply_link(text, bytea, uuid, text, text, interval, text),
        holdfast.waited_for(uuid), holdfast.followers(uuid) to %I', v_role);
      execute format('grant execute on function
        holdfast.beat(text, jsonb, jsonb), holdfast.leave(text), holdfast.lead(text, interval),
        holdfast.tend(text, interval, text[], jsonb, text[]),
        holdfast.operation_step(integer), holdfast.schedule_declare(jsonb, text, jsonb), holdfast.schedule_due(integer),
        holdfast.queue_declare(jsonb, text),
        holdfast.schedule_fire(text, timestamptz, timestamptz[], timestamptz, bigint, text),
        holdfast.schedule_fault(text, bigint, text), holdfast.detect(text[]), holdfast.detector_due(text, interval),
        holdfast.report(text, jsonb), holdfast.webhook_target(text) to %I', v_role);
    end if;
    if v_role = 'holdfast_operator' then
      execute format('grant execute on function
        holdfast.watch(text[], interval), holdfast.cancel(uuid[], text, text),
        holdfast.retry(uuid[], text, text, interval, boolean), holdfast.edit(uuid[], jsonb, text, text),
        holdfast.move(uuid[], text, text, text), holdfast.archive(uuid[], text, text),
        holdfast.delete(uuid[], text, text), holdfast.workflow_cancel(uuid, text, text, text[]),
        holdfast.workflow_retry(uuid, uuid, text, text, text[]),
        holdfast.queue_set(text, jsonb, text), holdfast.sort_some(text, uuid, integer),
        holdfast.lane_set(text, text, jsonb, text),
        holdfast.pause(text, text, timestamptz, text), holdfast.resume(text, text), holdfast.recount(),
        holdfast.stop_worker(text, text), holdfast.schedule_set(text, jsonb, text), holdfast.schedule_run(text, text),
        holdfast.schedule_pause(text, text, text), holdfast.schedule_resume(text, text),
        holdfast.schedule_delete(text, text),
        holdfast.lane_release(text, text, text), holdfast.place(text, integer, text) to %I', v_role);
      execute format('grant execute on function
        holdfast.token_create(text, bytea, text, text[], text[], interval, text, text, text), holdfast.token_find(text),
        holdfast.link_spend(text, bytea), holdfast.token_revoke(text, text),
        holdfast.reply_asked(text, bytea), holdfast.reply(text, bytea, jsonb), holdfast.reply_link_revoke(text, text),
        holdfast.once(text, text, text),
        holdfast.answered(text, text, text), holdfast.tell(text, jsonb, jsonb, jsonb), holdfast.receipt(uuid),
        holdfast.operation_preview(text, text, jsonb, bigint, text, text, uuid),
        holdfast.operation_start(uuid, double precision, text),
        holdfast.operation_cancel(bigint, text), holdfast.operation_undo(bigint, double precision, text, text, uuid),
        holdfast.strike_lift(bigint, text, text),
        holdfast.strike_add(text, text, text, jsonb, text, interval, text) to %I', v_role);
      execute format('grant execute on function
        holdfast.anomaly_ack(text, text, text), holdfast.anomaly_mute(text, timestamptz, text, text, text, text),
        holdfast.anomaly_unmute(text, text, text, text), holdfast.detector_set(text, jsonb, text, text),
        holdfast.webhook_set(text, jsonb, text), holdfast.webhook_delete(text, text) to %I', v_role);
    end if;
  end loop;
end
$$;
