-- Replies: a link lets somebody without an account see and answer one wait of one job, once. Clients create and hash
-- the secret; the database never sees it. A link is not a token: it opens nothing else.

-- reply_link: store the hash of a link's secret under a public id. The job may begin to wait later. step is the name
-- of the wait, 'event NAME' unless the handler says otherwise; question is shown with the form. Returns when it ends.
create or replace function holdfast.reply_link(
  id text, hash bytea, job uuid, step text, question text default null, expires interval default '7 days',
  actor text default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_ends  constant timestamptz := v_now + coalesce(expires, '7 days');
  j       record;
begin
  perform holdfast.named('id', id);
  perform holdfast.named('step', step);
  perform holdfast.check_length('expires', expires, '1 year');
  if length(hash) <> 32 or hash is null then
    perform holdfast.refuse('HF224', 'hash is not the SHA-256 of a secret');
  end if;
  if length(question) > 2000 then
    perform holdfast.refuse('HF202', format('question is %s characters long', length(question)), null,
      'It may have at most 2000 characters.');
  end if;
  if holdfast.part_of(job) >= 64 then
    perform holdfast.refuse_adopted_steps(job);
  end if;
  select x.part, x.id, x.queue, x.kind, x.worker into j
  from (select coalesce(holdfast.locate(reply_link.job), reply_link.job) as id) l
  join holdfast.job x on x.part = holdfast.part_of(l.id) and x.id = l.id;
  if not found then
    perform holdfast.refuse('HF218', format('job %s is not live, so nothing can be asked for it', job), null,
      'Create the link while the job runs or waits.');
  end if;
  insert into holdfast.reply_link (id, hash, job, step, question, created_at, created_by, expires_at)
  values (reply_link.id, reply_link.hash, j.id, reply_link.step, reply_link.question, v_now, reply_link.actor, v_ends);
  perform holdfast.note_jobs('reply_link_created', j.part, array[j.id], array[j.queue], array[j.kind], null, actor,
    null, v_now, array[jsonb_build_object('link', id, 'step', step, 'until', v_ends)]);
  return v_ends;
end
$$;

-- reply_asked: what a link asks: open, with the event and the schema of its payload; not_yet: the job does not wait at
-- this moment; closed: it was answered, in whatever way, its time was up, or the job has ended. No row: no such link.
create or replace function holdfast.reply_asked(id text, hash bytea)
returns table (
  state text, job uuid, kind text, queue text, step text, event text, question text, schema jsonb,
  expires_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select case
      when l.used_at is not null or s.ended_at is not null or j.id is null or s.kind <> 'event' then 'closed'
      when s.id is null then 'not_yet'
      else 'open' end,
    l.job, j.kind, j.queue, l.step, s.event, l.question, s.schema, l.expires_at
  from holdfast.reply_link l
  cross join lateral (select coalesce(holdfast.locate(l.job), l.job) as id) a
  left join holdfast.job j on j.part = holdfast.part_of(a.id) and j.id = a.id
  left join holdfast.step s on s.part = j.part and s.id = j.id and s.name = l.step
  where l.id = reply_asked.id and l.hash = reply_asked.hash and l.revoked_at is null
    and l.expires_at > holdfast.now()
$$;

-- reply: answer the wait of a link with the payload of its event, once. Returns received, not_yet or closed, as
-- reply_asked says them; null if there is no such link. Only this wait gets it, whoever else waits for the same event.
create or replace function holdfast.reply(id text, hash bytea, payload jsonb default null)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := holdfast.now();
  v_state text;
  v_id    uuid;
  l       holdfast.reply_link;
  j       record;
begin
  -- Locked before the job: of two who answer at once, the second finds it used.
  select x.* into l from holdfast.reply_link x
  where x.id = reply.id and x.hash = reply.hash and x.revoked_at is null and x.expires_at > v_now
  for update;
  if not found then
    return null;
  end if;
  perform holdfast.check_value(format('reply by link %s', id), payload, (holdfast.unset_queue(null)).payload_limit)
  where payload is not null;
  v_id := coalesce(holdfast.locate(l.job), l.job);
  perform holdfast.lock_jobs(array[v_id]);
  select a.state into v_state from holdfast.reply_asked(id, hash) a;
  if v_state is distinct from 'open' then
    return coalesce(v_state, 'closed');
  end if;
  if not holdfast.hand_event(holdfast.part_of(v_id), v_id, l.step, payload, v_now) then
    return 'not_yet';   -- it was moved just now
  end if;
  update holdfast.reply_link x set used_at = v_now where x.id = l.id;
  select x.part, x.id, x.queue, x.kind into j from holdfast.job x
  where x.part = holdfast.part_of(v_id) and x.id = v_id;
  perform holdfast.note_jobs('replied', j.part, array[j.id], array[j.queue], array[j.kind], null, 'link ' || l.id, null,
    v_now, array[jsonb_build_object('link', l.id, 'step', l.step)]);
  return 'received';
end
$$;

-- reply_link_revoke: a link opens nothing any more; returns whether it exists.
create or replace function holdfast.reply_link_revoke(id text, actor text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.reply_link l set revoked_at = coalesce(l.revoked_at, holdfast.now())
  where l.id = reply_link_revoke.id;
  if not found then
    return false;
  end if;
  perform holdfast.note('reply_link_revoked', actor, detail => jsonb_build_object('link', id));
  return true;
end
$$;
