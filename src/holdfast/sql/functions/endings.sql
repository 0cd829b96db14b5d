-- What stands on both sides of a job's end: the row it leaves behind, the way back from there, and whom its place
-- lets in. Here, and nowhere else, are the columns of a job and of an ended one said together.

-- ended_of: a job as one that has ended. Written as `from … job j cross join lateral ended_of(j, …)` it costs nothing:
-- it is part of the query that calls it.
create or replace function holdfast.ended_of(
  j holdfast.job, state text, at timestamptz, reason text, fingerprint text default null, result jsonb default null)
returns setof holdfast.ended
language sql stable rows 1
as $$
  select j.part, j.id, ended_of.state, j.queue, j.kind, j.priority, j.attempt, j.max_attempts, j.run_at, j.created_at,
         ended_of.at, j.worker, j.key, j.lane, j.tenant, j.subject, j.lease_for, j.error, ended_of.fingerprint,
         ended_of.reason, j.headers, j.payload, ended_of.result, j.attempts_before
$$;

-- job_of: a job that ended as one that waits, in a part and a queue, under an id. fresh: in another life, without
-- the error and the attempts of the one before, which are summed up; else as it was.
create or replace function holdfast.job_of(
  e holdfast.ended, part smallint, id uuid, queue text, fair boolean, by_kind boolean, fresh boolean,
  due timestamptz, place bigint, lane_place bigint, reason text)
returns setof holdfast.job
language sql stable rows 1
as $$
  select job_of.part, job_of.id, job_of.place as pos, job_of.lane_place as lane_seq, job_of.due as run_at, e.created_at,
         null::uuid as token, null::timestamptz as lease_until, e.priority,
         case when fresh then 0::smallint else e.attempt end as attempt, e.max_attempts, false as blocked,
         false as follow, coalesce(job_of.by_kind, false) as by_kind, null::boolean as held, job_of.queue, e.kind,
         null::text as worker, e.key, e.lane, coalesce(e.tenant, case when fair then '' end) as tenant, e.subject,
         e.lease_for, case when not fresh then e.error end as error, job_of.reason, e.headers, e.payload,
         null::jsonb as progress, null::bigint as strike,
         case when fresh then nullif(coalesce(e.attempts_before, 0) + e.attempt, 0) else e.attempts_before
         end as attempts_before
$$;

-- place_of: what a job that is over or goes elsewhere leaves free: its key, and its place in a lane.
create or replace function holdfast.place_of(part smallint, queue text, kind text, key text, lane text)
returns jsonb
language sql stable parallel safe
as $$ select jsonb_build_array(part, queue, kind, key, lane) $$;

-- let_next_in: places are free, an array of place_of: the follow-ups of these keys become ready, and whoever is next
-- in these lanes.
create or replace function holdfast.let_next_in(places jsonb, at timestamptz)
returns void
language plpgsql
as $$
begin
  perform holdfast.unfollow((p -> 0)::smallint, array_agg(p ->> 1), array_agg(p ->> 2), array_agg(p ->> 3), at)
  from jsonb_array_elements(places) p
  where p ->> 3 is not null
  group by p -> 0;
  perform holdfast.unblock((p -> 0)::smallint, array_agg(p ->> 1), array_agg(p ->> 4), at)
  from jsonb_array_elements(places) p
  where p ->> 4 is not null
  group by p -> 0;
end
$$;
