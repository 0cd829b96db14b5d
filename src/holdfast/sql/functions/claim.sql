-- claim: lease up to max_jobs ready jobs of one queue to one worker, highest priority first, then in the order of
-- becoming due. The caller creates the token: after a lost reply it calls held(token). durable => false commits the
-- claim asynchronously, unless a standby is synchronous: a job whose claim is lost in a crash is only claimed again.
-- Use it only if the call is the whole transaction, because it applies to the caller's other writes too. If a limit, a
-- rate or a lane applies, the claim always commits as the session does: a claim lost in a crash would admit a second
-- holder beside the first. lease_for is the job's own lease, if it has one; it takes precedence over the claim's.
-- length is how long the lease is in either case, and for how long a touch renews it. error is the error of the last
-- attempt. followed: others may wait for its result. The statement that gives the leases reads the clock itself: it
-- may wait for the table, to which somebody else fans out a queue or adds a column.
create or replace function holdfast.claim(
  queue text, worker text, token uuid, max_jobs integer default 1, lease interval default null,
  kinds text[] default null, durable boolean default true)
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text, tenant text, subject text,
  headers jsonb, lease_for interval, length interval, error text, followed boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
-- The plan is made once, perhaps while the table is empty: an ordered index scan is the only choice left.
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_began  constant timestamptz := holdfast.clock();
  v_base   constant smallint := holdfast.queue_part(queue);
  v_commit constant text := current_setting('synchronous_commit');
  v_light  text;
  v_now    timestamptz := v_began;
  v_queue  holdfast.queue;
  v_part   smallint;
  v_want   integer := max_jobs;
  v_pass   boolean;    -- pass over jobs of lanes: they have given what they can
  v_bound  boolean;    -- what is taken is let in by a limit, a rate or a lane
  v_rounds integer := 0;
  v_got    integer;
  known    record;
  picked   record;
begin
  if token is null or not coalesce(holdfast.is_name(worker) and holdfast.is_name(queue, 120), false)
     or not coalesce(max_jobs between 1 and 10000, false) or not coalesce(lease > '0' and lease <= '1 year', true)
     or current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.refuse_claim(queue, worker, token, max_jobs, lease);
  end if;

  select q as row, exists (
           select from holdfast.strike s
           where s.ended_at is null and s.expires_at > v_now and coalesce(s.queue = claim.queue, true)) as struck,
         exists (select from holdfast.watched w where w.queue in (claim.queue, '') and w.until > v_now) as watched
  into known from (select claim.queue as name) n left join holdfast.queue q on q.name = n.name;
  v_queue := coalesce(known.row, holdfast.unset_queue(queue));
  if v_queue.paused_at is not null and (v_queue.paused_until is null or v_queue.paused_until > v_now) then
    return;
  end if;
  lease := coalesce(lease, v_queue.lease);
  if v_queue.adopted is not null then
    return query
      select t.id, t.kind, t.payload, t.priority, t.attempt, t.max_attempts, t.lease_until, t.run_at, t.created_at,
        t.key, t.lane, t.tenant, t.subject, t.headers, t.lease_for, coalesce(t.lease_for, claim.lease), t.error, false
      from holdfast.claim_adopted(v_queue, worker, token, max_jobs, lease, kinds, durable, v_now) t;
    return;
  end if;
  v_bound := v_queue.lease_limit is not null or v_queue.rate_limit is not null;
  v_light := case when not durable then holdfast.commit_lightly() end;   -- no statement: it would take longer

  -- Twice at most: a claim that comes up short lets due and abandoned jobs in and looks again.
  for turn in 1 .. 2 loop
    if v_bound or v_queue.fair then
      v_queue := holdfast.hold_gate(v_queue, v_base);   -- it may have waited, and more may have changed than who runs
      v_want := least(v_want, holdfast.pass_gate(v_queue, v_base));
      v_now := holdfast.clock();   -- a lease begins when it is given
      v_bound := v_queue.lease_limit is not null or v_queue.rate_limit is not null;
    end if;
    for step in 0 .. v_queue.fanout - 1 loop
      v_part := (v_base + (step + pg_backend_pid()) % v_queue.fanout) % 64;
      v_pass := false;
      -- More than once only where lanes are met: when they have given what they can, the others have their turn.
      while v_want > 0 loop
        picked := holdfast.pick(v_queue, v_part, v_want, kinds, v_pass, known.struck, v_now);
        return query
          with clock as materialized (select holdfast.clock() as at), taken as (   -- part + 0: no index is looked at
            update holdfast.job j
            set token = claim.token, worker = claim.worker, attempt = j.attempt + 1,
                lease_until = (select c.at from clock c) + coalesce(j.lease_for, claim.lease),
                held = case when v_queue.lease_limit is not null or j.lane is not null then true end
            where j.ctid = any(picked.chosen) and j.part + 0 = v_part
              and (j.expires_at is null or j.expires_at > (select c.at from clock c))
            returning j.id, j.kind, holdfast.payload_of(j.payload, j.takes, j.link) as payload, j.priority, j.attempt,
                      j.max_attempts, j.lease_until, j.run_at, j.created_at, j.key, j.lane, j.tenant, j.subject,
                      j.headers, j.lease_for, j.error, j.pos, j.link is not null as followed
          ), noted as (
            insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids)
            select claim.token, v_part, claim.queue, claim.worker, (select c.at from clock c), lease,
                   min(t.lease_until), array_agg(t.id) from taken t having count(*) > 0
          ), counted as (
            insert into holdfast.tally (part, queue, kind, queued, leased)
            select v_part, claim.queue, t.kind, -count(*), count(*) from taken t group by t.kind
          )
          select t.id, t.kind, t.payload, t.priority, t.attempt, t.max_attempts, t.lease_until, t.run_at,
                 t.created_at, t.key, t.lane, t.tenant, t.subject, t.headers, t.lease_for,
                 coalesce(t.lease_for, claim.lease), t.error, t.followed
          from taken t
          order by t.priority desc, case when v_queue.fair then array_position(picked.turns, t.id) end, t.pos;
        get diagnostics v_got = row_count;
        picked.struck := picked.struck + case when v_got < cardinality(picked.chosen)
          then holdfast.end_expired_of(v_queue.name, v_part, picked.chosen, holdfast.clock()) else 0 end;
        v_want := v_want - v_got;
        max_jobs := max_jobs - v_got;
        v_bound := v_bound or picked.laned;
        if v_bound and v_got > 0 then
          perform holdfast.note_starts(v_queue, v_base, v_got, holdfast.clock());
          perform set_config('synchronous_commit', v_commit, true);
        end if;
        v_rounds := v_rounds + least(picked.struck, 1);
        continue when picked.struck > 0 and v_rounds <= 5;   -- what they stood before may be free
        exit when not picked.lanes;
        v_pass := picked.short or v_got = 0;
      end loop;
    end loop;
    exit when max_jobs = 0 or turn = 2 or not holdfast.let_in(queue, max_jobs, v_began);
    v_want := max_jobs;
  end loop;
  -- Not a part of the statement above, which would open the log for everybody.
  if v_queue.activity = 'all' or known.watched and v_queue.activity <> 'off' then
    perform holdfast.note_claimed(queue, token, worker, v_began);
  end if;
end
$$;

-- claim_each: claims of one queue by several callers at once, for a server. Each gets up to its own number of jobs
-- under its own token and name; kinds, lease and durable are those of all. Plain jobs are taken by one statement for
-- all; where a limit, a rate, a lane, a strike or a turn has to decide, one claim is made after the other. A claim
-- that finds fewer jobs than it wants is the last one: the others, made at the same moment, would find none.
create or replace function holdfast.claim_each(
  queue text, workers text[], tokens uuid[], numbers integer[], lease interval default null,
  kinds text[] default null, durable boolean default true)
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text, tenant text, subject text,
  headers jsonb, lease_for interval, length interval, error text, token uuid, followed boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set jit = off
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set enable_nestloop = on
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := holdfast.clock();
  v_part    constant smallint := holdfast.queue_part(queue);
  v_queue   holdfast.queue;
  v_tokens  uuid[];      -- for each job that is wanted, in the order of the claims
  v_workers text[];
  v_ends    bigint[];    -- which of these are a claim's own: up to here, from the end of the one before
  v_taken   integer := 0;
  v_got     integer;
  v_alone   boolean := false;
  v_served  uuid[];      -- the tokens that have jobs, if it is not the first of them
  v_wrong   integer;
  known     record;
  picked    record;
begin
  if cardinality(tokens) is distinct from cardinality(workers)
     or cardinality(tokens) is distinct from cardinality(numbers) then
    perform holdfast.refuse('HF208', 'workers, tokens and numbers must have the same length');
  end if;
  select min(c.nth) into v_wrong
  from unnest(tokens, workers, numbers) with ordinality c(token, worker, number, nth)
  where c.token is null or not coalesce(holdfast.is_name(c.worker) and c.number between 1 and 10000, false);
  if v_wrong is not null or not coalesce(holdfast.is_name(queue, 120), false)
     or not coalesce(lease > '0' and lease <= '1 year', true)
     or current_setting('transaction_isolation') <> 'read committed' then
    v_wrong := coalesce(v_wrong, 1);
    perform holdfast.refuse_claim(queue, workers[v_wrong], tokens[v_wrong], numbers[v_wrong], lease);
  end if;
  select array_agg(c.reach order by c.nth) into v_ends
  from (
    select n.nth, sum(n.number) over (order by n.nth) as reach from unnest(numbers) with ordinality n(number, nth)) c;

  select q as row, exists (
           select from holdfast.strike s
           where s.ended_at is null and s.expires_at > v_now and coalesce(s.queue = claim_each.queue, true)) as struck,
         exists (select from holdfast.watched w where w.queue in (claim_each.queue, '') and w.until > v_now) as watched
  into known
  from (select claim_each.queue as name) n
  left join holdfast.queue q on q.name = n.name;
  v_queue := coalesce(known.row, holdfast.unset_queue(queue));
  if v_queue.paused_at is null and v_queue.adopted is null and v_queue.lease_limit is null
     and v_queue.rate_limit is null and not v_queue.fair and v_queue.fanout = 1 and v_queue.activity <> 'all'
     and not known.struck and not known.watched
     and v_ends[cardinality(v_ends)] <= 1000 then
    select array_agg(c.token order by c.nth, s.n), array_agg(c.worker order by c.nth, s.n)
    into v_tokens, v_workers
    from unnest(tokens, workers, numbers) with ordinality c(token, worker, number, nth)
    cross join lateral generate_series(1, c.number) s(n);
    picked := holdfast.pick(v_queue, v_part, cardinality(v_tokens), kinds, false, false, v_now);
    if not picked.lanes then
      return query
        with clock as materialized (select holdfast.clock() as at), taken as (   -- part + 0: no index is looked at
          update holdfast.job j
          set token = v_tokens[array_position(picked.chosen, j.ctid)],
              worker = v_workers[array_position(picked.chosen, j.ctid)], attempt = j.attempt + 1,
              lease_until = (select c.at from clock c) + coalesce(j.lease_for, claim_each.lease, v_queue.lease),
              held = null
          where j.ctid = any(picked.chosen) and j.part + 0 = v_part
            and (j.expires_at is null or j.expires_at > (select c.at from clock c))
          returning j.id, j.kind, holdfast.payload_of(j.payload, j.takes, j.link) as payload, j.priority, j.attempt,
                    j.max_attempts, j.lease_until, j.run_at, j.created_at, j.key, j.lane, j.tenant, j.subject,
                    j.headers, j.lease_for, j.error, j.pos, j.token, j.worker, j.link is not null as followed
        ), noted as (
          insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids)
          select t.token, v_part, claim_each.queue, min(t.worker), (select c.at from clock c),
                 coalesce(claim_each.lease, v_queue.lease), min(t.lease_until), array_agg(t.id)
          from taken t
          group by t.token
        ), counted as (
          insert into holdfast.tally (part, queue, kind, queued, leased)
          select v_part, claim_each.queue, t.kind, -count(*), count(*)
          from taken t
          group by t.kind
        )
        select t.id, t.kind, t.payload, t.priority, t.attempt, t.max_attempts, t.lease_until, t.run_at,
               t.created_at, t.key, t.lane, t.tenant, t.subject, t.headers, t.lease_for,
               coalesce(t.lease_for, claim_each.lease, v_queue.lease), t.error, t.token, t.followed
        from taken t
        order by t.priority desc, t.pos;
      get diagnostics v_taken = row_count;
      if v_taken < cardinality(picked.chosen) then   -- some had expired: whose they would have been is not in order
        perform holdfast.end_expired_of(v_queue.name, v_part, picked.chosen, holdfast.clock());
        v_served := array(select l.token from holdfast.lease l where l.token = any(claim_each.tokens));
      end if;
    end if;
  end if;

  for nth in 1 .. cardinality(tokens) loop
    continue when case when v_served is null then v_taken > v_ends[nth] - numbers[nth]
                       else tokens[nth] = any(v_served) end;   -- it has some
    -- Durable, as far as it knows: a claim that a limit or a lane lets in must not be undone by a crash because of
    -- another one, to which that does not matter.
    return query
      select c.id, c.kind, c.payload, c.priority, c.attempt, c.max_attempts, c.lease_until, c.run_at, c.created_at,
             c.key, c.lane, c.tenant, c.subject, c.headers, c.lease_for, c.length, c.error, tokens[nth], c.followed
      from holdfast.claim(queue, workers[nth], tokens[nth], numbers[nth], lease, kinds, durable => true) c;
    get diagnostics v_got = row_count;
    v_alone := v_alone or v_got > 0;
    exit when v_got < numbers[nth];
  end loop;
  perform holdfast.commit_lightly() where not durable and not v_alone;
end
$$;

-- held: the jobs that these tokens still hold, for a claim whose reply was lost.
create or replace function holdfast.held(tokens uuid[])
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, token uuid, queue text, worker text, lease_for interval, length interval,
  error text, followed boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select j.id, j.kind, holdfast.payload_of(j.payload, j.takes, j.link), j.priority, j.attempt, j.max_attempts,
         j.lease_until, j.run_at, j.created_at,
         j.key, j.lane, j.tenant, j.subject, j.headers, j.token, j.queue, j.worker, j.lease_for,
         case when l.outside then l.length else coalesce(j.lease_for, l.length) end, j.error, j.link is not null
  from holdfast.lease l
  cross join lateral (
    select x.*
    from unnest(l.ids) i(id)
    cross join lateral (
      select y.* from holdfast.job y where y.part = l.part and y.id = i.id and y.token = l.token limit 1) x
    union all
    select x.* from holdfast.held_adopted(l) x where l.part >= 64
  ) j
  where l.token = any(held.tokens)
  order by l.part >= 64, j.priority desc, j.pos
$$;

-- note_starts: jobs that a queue with a rate has started.
create or replace function holdfast.note_starts(queue_row holdfast.queue, base smallint, jobs integer, at timestamptz)
returns void
language sql
as $$
  insert into holdfast.rate_use (part, queue, lane, at, starts)
  select base, (queue_row).name, '', note_starts.at, jobs
  where (queue_row).rate_limit is not null
$$;

-- pick: choose and lock the jobs of a part that a claim takes. lanes: there are jobs of lanes in the ready order;
-- pass: skip them. laned: some of the chosen jobs belong to lanes; short: the lanes gave fewer than requested. turns
-- is a fair queue's order. struck counts jobs that left the ready order because of a strike.
create or replace function holdfast.pick(
  queue_row holdfast.queue, part smallint, max_jobs integer, kinds text[], pass boolean, strikes boolean,
  at timestamptz,
  out chosen tid[], out turns uuid[], out lanes boolean, out laned boolean, out short boolean, out struck integer)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_floors bigint[];
  v_rest   integer;
  v_some   tid[];
begin
  laned := false;
  short := false;
  struck := 0;
  if not queue_row.fair and (kinds is null or not queue_row.by_kind) then
    -- Where jobs of lanes are ready nothing is locked here: a claim looks at more of them than it takes.
    with f as materialized (
      select coalesce((   -- as floors_of says, which would be a call here
        select y.floors
        from holdfast.floor y
        where y.part = pick.part and y.queue = queue_row.name
        order by y.gen desc
        limit 1), '{0,0,0,0,0,0,0,0,0,0}') as floors
    ), l as materialized (
      select not pass and exists (
        select
        from unnest((select f.floors from f)) with ordinality as p(floor, nth)
        cross join lateral (
          select from holdfast.job x
          -- spelt as in job_ready_lane: no other index can serve it
          where x.part = pick.part and x.queue || E'\n' = queue_row.name || E'\n'
            and x.priority = (10 - p.nth)::smallint and x.pos >= p.floor and x.token is null and x.lane is not null
          order by x.pos
          limit 1) x) as laned
    )
    select array_agg(c.ctid), (select l.laned from l), (select f.floors from f)
    into chosen, lanes, v_floors
    from (
      select r.ctid
      from unnest((select f.floors from f)) with ordinality as p(floor, nth)
      cross join lateral (
        select j.ctid
        from holdfast.job j
        where j.part = pick.part and j.queue = queue_row.name and j.priority = (10 - p.nth)::smallint
          and j.pos >= p.floor and j.token is null and j.lane is null and not (select l.laned from l)
          and (kinds is null or j.kind = any(kinds))
        order by j.pos
        limit max_jobs
        for update skip locked
      ) r
      limit max_jobs
    ) c;
    if lanes then
      select p.chosen, p.lanes into chosen, lanes
      from holdfast.pick_looking(part, queue_row.name, v_floors, max_jobs, kinds, false, false) p;
    end if;
  else
    v_floors := holdfast.floors_of(part, queue_row.name);
    if queue_row.fair then
      select p.chosen, p.turns, p.lanes into chosen, turns, lanes
      from holdfast.pick_fairly(part, queue_row.name, v_floors, max_jobs, kinds, pass) p;
    else
      select p.chosen, p.lanes into chosen, lanes
      from holdfast.pick_looking(part, queue_row.name, v_floors, max_jobs, kinds, queue_row.by_kind, pass) p;
    end if;
  end if;

  if lanes then
    v_rest := max_jobs - coalesce(cardinality(chosen), 0);
    v_some := holdfast.pick_lanes(queue_row, part, v_floors, v_rest, kinds, at);
    chosen := chosen || v_some;
    laned := cardinality(v_some) > 0;
    short := cardinality(v_some) < v_rest;
  end if;
  if strikes and chosen is not null then
    select p.passed, p.moved into chosen, struck from holdfast.pass_strikes(part, chosen, at) p;
    if struck > 0 then
      perform holdfast.strike_ahead(part, queue_row.name, v_floors, at);
    end if;
  end if;
end
$$;

-- end_expired_of: end jobs of a part that a claim has locked and not taken because they have expired, and more from
-- the head of the ready order, so that a claim for one job does not have to pass a million of them one by one. What
-- others follow waits for its turn if somebody is at those: the claim does not. Returns how many.
create or replace function holdfast.end_expired_of(queue text, part smallint, rows tid[], at timestamptz)
returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
  v_floors constant bigint[] := holdfast.floors_of(part, queue);
  v_linked uuid[];
  v_ids    uuid[] := array(
    select j.id
    from holdfast.job j
    where j.ctid = any(rows) and j.part + 0 = end_expired_of.part and j.token is null
      and j.expires_at <= end_expired_of.at);
begin
  if cardinality(v_ids) = 0 then
    return 0;
  end if;
  v_ids := v_ids || array(
    select j.id
    from unnest(array(
      select r.ctid
      from unnest(v_floors) with ordinality as f(floor, nth)
      cross join lateral (
        select x.ctid, x.expires_at
        from holdfast.job x
        where x.part = end_expired_of.part and x.queue = end_expired_of.queue and x.priority = (10 - f.nth)::smallint
          and x.pos >= f.floor and x.token is null and x.lane is null
        order by x.pos
        limit 1000
      ) r
      where r.expires_at <= end_expired_of.at
      limit 1000)) u(place)
    cross join lateral (
      select y.id
      from holdfast.job y
      where y.ctid = u.place and y.part + 0 = end_expired_of.part and y.token is null and y.pos is not null
        and y.expires_at <= end_expired_of.at and y.id <> all(v_ids)
      for update skip locked
    ) j);
  v_linked := array(
    select j.id from unnest(v_ids) u(id)
    join holdfast.job j on j.part = any(array[end_expired_of.part]) and j.id = u.id and j.link is not null);
  v_ids := array(select u.id from unnest(v_ids) u(id) where u.id <> all(v_linked));
  if cardinality(v_ids) > 0 then
    perform holdfast.end_expired(part, v_ids, at);
  end if;
  return cardinality(v_ids) + holdfast.end_linked_expired(v_linked, at);
end
$$;

-- end_expired: end jobs of a part as cancelled because they have expired. The caller has locked them.
create or replace function holdfast.end_expired(part smallint, ids uuid[], at timestamptz)
returns void
language sql
as $$
  select from holdfast.end_cancelled(part, ids, array_fill(null::uuid, array[cardinality(ids)]),
    array_fill('expired'::text, array[cardinality(ids)]), 'cancelled', at, 'expiry')
$$;

-- floors_of: where claims start looking in a part of a queue, priority by priority.
create or replace function holdfast.floors_of(part smallint, queue text)
returns bigint[]
language sql stable
as $$
  select coalesce((
    select f.floors
    from holdfast.floor f
    where f.part = floors_of.part and f.queue = floors_of.queue
    order by f.gen desc
    limit 1), '{0,0,0,0,0,0,0,0,0,0}')
$$;

-- note_claimed: record what a claim took, according to its receipts.
create or replace function holdfast.note_claimed(queue text, token uuid, worker text, began timestamptz)
returns void
language sql
as $$
  insert into holdfast.event (at, slot, part, job, event, state, queue, kind, attempt, worker)
  select l.claimed_at, holdfast.event_slot(l.claimed_at), l.part, j.id, 'claimed', 'leased', note_claimed.queue,
         j.kind, j.attempt, note_claimed.worker
  from holdfast.lease l
  cross join lateral unnest(l.ids) i(id)
  cross join lateral (
    select x.id, x.kind, x.attempt
    from holdfast.job x
    where x.part = l.part and x.id = i.id and x.token = note_claimed.token
    limit 1) j
  where l.token = note_claimed.token and l.claimed_at >= began
$$;

-- pick_looking: choose jobs for a worker that handles only some kinds, or if jobs of lanes are ready. In a queue with
-- by_kind each kind has its own ready order; in others, jobs of other kinds are skipped one by one. It reads more
-- than it takes, so it reads without locks, and then locks what it takes. A job of a lane counts as one place; which
-- job of the lane gets the place is decided later. Jobs that others have locked are skipped, page by page.
create or replace function holdfast.pick_looking(
  part smallint, queue text, floors bigint[], max_jobs integer, kinds text[], by_kind boolean, no_lanes boolean,
  out chosen tid[], out lanes boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_page   integer := max_jobs;
  v_filled integer := 0;
  seen     record;
  got      record;
begin
  lanes := false;
  loop
    if by_kind then
      select array_agg(c.ctid) as places, array_agg(c.lane) as lanes, array_agg(c.nth) as nths, array_agg(c.pos) as ends
      into seen
      from (
        select r.ctid, r.lane, r.pos, f.nth
        from unnest(floors) with ordinality as f(floor, nth)
        cross join lateral (
          select p.ctid, p.lane, p.pos
          from (select distinct x.kind from unnest(kinds) x(kind)) k
          cross join lateral (
            select j.ctid, j.lane, j.pos
            from holdfast.job j
            -- spelt as in job_by_kind: no other index can serve it, whatever the statistics say
            where j.part = pick_looking.part and j.queue || E'\n' || j.kind = pick_looking.queue || E'\n' || k.kind
              and j.priority = (10 - f.nth)::smallint and j.by_kind
              and j.pos >= f.floor and j.token is null and (not no_lanes or j.lane is null)
            order by j.pos
            limit v_page
          ) p
          order by p.pos
          limit v_page
        ) r
        limit v_page
      ) c;
    else
      select array_agg(c.ctid) as places, array_agg(c.lane) as lanes, array_agg(c.nth) as nths, array_agg(c.pos) as ends
      into seen
      from (
        select r.ctid, r.lane, r.pos, f.nth
        from unnest(floors) with ordinality as f(floor, nth)
        cross join lateral (
          select j.ctid, j.lane, j.pos
          from holdfast.job j
          where j.part = pick_looking.part and j.queue = pick_looking.queue and j.priority = (10 - f.nth)::smallint
            and j.pos >= f.floor and j.token is null and (kinds is null or j.kind = any(kinds))
            and (not no_lanes or j.lane is null)
          order by j.pos
          limit v_page
        ) r
        limit v_page
      ) c;
    end if;
    exit when seen.places is null;
    select array_agg(c.ctid) filter (where c.ctid is not null) as rows, count(*) as places,
           coalesce(bool_or(c.ctid is null), false) as lanes
    into got
    from (
      select x.ctid
      from unnest(seen.places, seen.lanes) u(place, lane)
      cross join lateral (
        select y.ctid
        from (
          select j.ctid
          from holdfast.job j
          where j.ctid = u.place and j.part + 0 = pick_looking.part and u.lane is null and j.token is null
            and j.pos is not null
          for update skip locked
        ) y
        union all
        select null where u.lane is not null
      ) x
      limit max_jobs - v_filled
    ) c;
    chosen := chosen || got.rows;
    lanes := lanes or got.lanes;
    v_filled := v_filled + got.places;
    exit when v_filled >= max_jobs or cardinality(seen.places) < v_page;
    floors := holdfast.floors_after(floors, seen.nths, seen.ends);
    v_page := least(v_page * 2, 2000);
  end loop;
end
$$;

-- floors_after: where to continue after a page of jobs: after the last of them at each priority. nths and places are
-- parallel: the floor that a job is above, and its position.
create or replace function holdfast.floors_after(floors bigint[], nths bigint[], places bigint[])
returns bigint[]
language sql immutable
as $$
  select array_agg(greatest(f.floor, m.last + 1) order by f.nth)
  from unnest(floors) with ordinality f(floor, nth)
  left join (select u.nth, max(u.pos) as last from unnest(nths, places) u(nth, pos) group by u.nth) m on m.nth = f.nth
$$;

-- hold_gate: wait for the gate of a limited, rated or fair queue, and hold it until the transaction ends: such claims
-- take turns. Returns the settings of the queue, read after the gate was locked.
create or replace function holdfast.hold_gate(queue_row holdfast.queue, base smallint)
returns holdfast.queue
language plpgsql
as $$
declare
  v_queue holdfast.queue;
begin
  loop   -- until it is held: an unused one may be forgotten between the two
    insert into holdfast.gate (part, queue) values (base, queue_row.name) on conflict do nothing;
    perform from holdfast.gate g where g.part = base and g.queue = queue_row.name for update;
    exit when found;
  end loop;
  select q.* into v_queue from holdfast.queue q where q.name = queue_row.name;
  return case when found then v_queue else queue_row end;
end
$$;

-- pass_gate: how many jobs a limited, rated or fair queue may start now. The caller holds the gate, so the result is
-- exact.
create or replace function holdfast.pass_gate(queue_row holdfast.queue, base smallint)
returns integer
language plpgsql
as $$
declare
  v_allowed integer := 2147483647;
  v_now     timestamptz;
begin
  if queue_row.paused_at is not null and (queue_row.paused_until is null
    or queue_row.paused_until > holdfast.clock()) then
    return 0;
  end if;
  if queue_row.lease_limit is not null then
    v_allowed := least(v_allowed, queue_row.lease_limit - (
      select count(*)
      from generate_series(0, queue_row.fanout - 1) step
      cross join lateral (
        select from holdfast.job j
        where j.part = ((base + step) % 64)::smallint and j.queue = queue_row.name and j.held
        union all
        select from holdfast.leaving g
        where g.part = ((base + step) % 64)::smallint and g.queue = queue_row.name) h));
  end if;
  if queue_row.rate_limit is not null then
    v_now := holdfast.clock();
    delete from holdfast.rate_use u
    where u.part = base and u.queue = queue_row.name and u.lane = '' and u.at <= v_now - queue_row.rate_period;
    perform holdfast.no_starts_ahead(base, queue_row.name, '{""}', v_now);
    v_allowed := least(v_allowed, queue_row.rate_limit - coalesce((
      select sum(u.starts)
      from holdfast.rate_use u
      where u.part = base and u.queue = queue_row.name and u.lane = ''), 0));
  end if;
  return greatest(v_allowed, 0);
end
$$;

-- no_starts_ahead: if the clock was set back, starts recorded in the future count as made now. Otherwise they would
-- use up the rate until that time.
create or replace function holdfast.no_starts_ahead(part smallint, queue text, lanes text[], at timestamptz)
returns void
language sql
as $$
  update holdfast.rate_use u
  set at = no_starts_ahead.at
  where u.part = no_starts_ahead.part and u.queue = no_starts_ahead.queue and u.lane = any(lanes)
    and u.at > no_starts_ahead.at
$$;

-- pick_fairly: one job per tenant in turn, in as many rounds as needed, within each priority. The gate is held, so
-- the turn advances exactly once per job.
create or replace function holdfast.pick_fairly(
  part smallint, queue text, floors bigint[], max_jobs integer, kinds text[], no_lanes boolean,
  out chosen tid[], out turns uuid[], out lanes boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_base   constant smallint := holdfast.queue_part(queue);
  v_turn   text;
  v_page   integer;
  v_seen   uuid[];     -- of this priority: taken, or locked by others, who are passed page by page
  v_picked integer := 0;
  seen     record;
  got      record;
begin
  select g.turn into v_turn from holdfast.gate g where g.part = v_base and g.queue = pick_fairly.queue;
  lanes := false;
  for nth in 1 .. 10 loop
    exit when v_picked >= max_jobs;
    v_page := max_jobs - v_picked;
    v_seen := '{}';
    loop
      -- One job of each is enough where as many tenants wait as jobs are wanted: then no further tenant is looked at.
      seen := holdfast.first_of_each(
        part, queue, (10 - nth)::smallint, floors[nth], v_turn, v_page, kinds, no_lanes, v_seen);
      if cardinality(seen.ids) < v_page then
        seen := holdfast.round_by_round(
          part, queue, (10 - nth)::smallint, floors[nth], v_turn, v_page, kinds, no_lanes, v_seen);
      end if;
      exit when seen.ids is null;
      select array_agg(c.ctid) filter (where c.ctid is not null) as rows, array_agg(c.id order by c.nth) as ids,
             count(*) as places, (array_agg(c.tenant order by c.nth desc))[1] as last,
             coalesce(bool_or(c.ctid is null), false) as lanes
      into got
      from (
        select x.ctid, u.id, u.tenant, u.nth
        from unnest(seen.places, seen.ids, seen.lanes, seen.tenants) with ordinality u(place, id, lane, tenant, nth)
        cross join lateral (
          select y.ctid
          from (
            select j.ctid
            from holdfast.job j
            where j.ctid = u.place and j.part + 0 = pick_fairly.part and u.lane is null and j.token is null
              and j.pos is not null
            for update skip locked
          ) y
          union all
          select null where u.lane is not null   -- in a lane: its place is taken
        ) x
        limit max_jobs - v_picked
      ) c;
      chosen := chosen || got.rows;
      turns := turns || got.ids;
      v_picked := v_picked + got.places;
      v_turn := coalesce(got.last, v_turn);
      lanes := lanes or got.lanes;
      exit when v_picked >= max_jobs or cardinality(seen.ids) < v_page;
      v_seen := v_seen || seen.ids;
      v_page := least(v_page * 2, 2000);
    end loop;
  end loop;
  update holdfast.gate g set turn = v_turn
  where g.part = v_base and g.queue = pick_fairly.queue and g.turn <> v_turn;
end
$$;

-- first_of_each: the first ready job of each tenant of a priority, from the tenant after the one whose turn was last,
-- and round to it. Four parallel arrays.
create or replace function holdfast.first_of_each(
  part smallint, queue text, priority smallint, floor bigint, turn text, page integer, kinds text[], no_lanes boolean,
  passed uuid[], out places tid[], out ids uuid[], out lanes text[], out tenants text[])
language plpgsql
as $$
#variable_conflict use_column
begin
  with recursive after as (
    (select 1::bigint as place, j.tenant
     from holdfast.job j
     where j.part = first_of_each.part and j.queue = first_of_each.queue and j.priority = first_of_each.priority
       and j.pos is not null and j.tenant > turn
     order by j.tenant
     limit 1)
    union all
    select r.place + 1, n.tenant
    from after r
    cross join lateral (
      select j.tenant
      from holdfast.job j
      where j.part = first_of_each.part and j.queue = first_of_each.queue and j.priority = first_of_each.priority
        and j.pos is not null and j.tenant > r.tenant
      order by j.tenant
      limit 1
    ) n
  ), before as (
    (select 4611686018427387904 as place, j.tenant
     from holdfast.job j
     where j.part = first_of_each.part and j.queue = first_of_each.queue and j.priority = first_of_each.priority
       and j.pos is not null and j.tenant <= turn
     order by j.tenant
     limit 1)
    union all
    select r.place + 1, n.tenant
    from before r
    cross join lateral (
      select j.tenant
      from holdfast.job j
      where j.part = first_of_each.part and j.queue = first_of_each.queue and j.priority = first_of_each.priority
        and j.pos is not null and j.tenant > r.tenant and j.tenant <= turn
      order by j.tenant
      limit 1
    ) n
  ), picked as (
    select p.ctid, p.id, p.lane, r.tenant, r.place
    from (select a.place, a.tenant from after a union all select b.place, b.tenant from before b) r
    cross join lateral (
      select j.ctid, j.id, j.lane
      from holdfast.job j
      where j.part = first_of_each.part and j.queue = first_of_each.queue and j.priority = first_of_each.priority
        and j.tenant = r.tenant and j.pos >= first_of_each.floor and j.token is null and j.id <> all(passed)
        and (kinds is null or j.kind = any(kinds)) and (not no_lanes or j.lane is null)
      order by j.pos
      limit 1
    ) p
    limit page
  )
  select array_agg(p.ctid order by p.place), array_agg(p.id order by p.place), array_agg(p.lane order by p.place),
         array_agg(p.tenant order by p.place)
  into places, ids, lanes, tenants
  from picked p;
end
$$;

-- round_by_round: ready jobs of the tenants of a priority, one of each per round, in as many rounds as needed.
create or replace function holdfast.round_by_round(
  part smallint, queue text, priority smallint, floor bigint, turn text, page integer, kinds text[], no_lanes boolean,
  passed uuid[], out places tid[], out ids uuid[], out lanes text[], out tenants text[])
language plpgsql
as $$
#variable_conflict use_column
begin
  with recursive ring as (
    -- tenants after the one whose turn was last, then round to it; a loose scan, one probe each
    (select 0 as lap, j.tenant
     from holdfast.job j
     where j.part = round_by_round.part and j.queue = round_by_round.queue and j.priority = round_by_round.priority
       and j.pos is not null and j.tenant > turn
     order by j.tenant
     limit 1)
    union all
    (select 1, j.tenant
     from holdfast.job j
     where j.part = round_by_round.part and j.queue = round_by_round.queue and j.priority = round_by_round.priority
       and j.pos is not null and j.tenant <= turn
     order by j.tenant
     limit 1)
    union all
    select r.lap, n.tenant
    from ring r
    cross join lateral (
      select j.tenant
      from holdfast.job j
      where j.part = round_by_round.part and j.queue = round_by_round.queue and j.priority = round_by_round.priority
        and j.pos is not null and j.tenant > r.tenant and (r.lap = 0 or j.tenant <= turn)
      order by j.tenant
      limit 1
    ) n
  ), picked as (
    select p.ctid, p.id, p.lane, r.lap, r.tenant, p.round
    from ring r
    cross join lateral (
      select j.ctid, j.id, j.lane, row_number() over (order by j.pos) as round
      from holdfast.job j
      where j.part = round_by_round.part and j.queue = round_by_round.queue and j.priority = round_by_round.priority
        and j.tenant = r.tenant and j.pos >= round_by_round.floor and j.token is null and j.id <> all(passed)
        and (kinds is null or j.kind = any(kinds)) and (not no_lanes or j.lane is null)
      order by j.pos
      limit page
    ) p
    order by p.round, r.lap, r.tenant
    limit page
  )
  select array_agg(p.ctid order by p.round, p.lap, p.tenant), array_agg(p.id order by p.round, p.lap, p.tenant),
         array_agg(p.lane order by p.round, p.lap, p.tenant), array_agg(p.tenant order by p.round, p.lap, p.tenant)
  into places, ids, lanes, tenants
  from picked p;
end
$$;

-- let_in: promote due jobs of the queue, reap expired leases and check some of its lanes, for a claim that found too
-- few jobs, so that a queue makes progress without upkeep. True if this may have helped.
create or replace function holdfast.let_in(queue text, max_jobs integer, began timestamptz)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
  v_leaving  constant bigint := (select count(*) from holdfast.leaving g where g.queue = let_in.queue);
  v_promoted constant integer := holdfast.promote(max_jobs, queue);
  v_reaped   constant bigint := (select count(*) from holdfast.reap_at(max_jobs, queue, began, near => true));
  v_helped   integer := v_promoted + v_reaped + holdfast.unstrike(max_jobs, queue);
  v_fanout   constant integer := holdfast.fanout_of(queue);
  v_looks    integer := 10;
  v_part     smallint;
  v_lane     text;
begin
  if v_leaving > 0 then
    v_helped := v_helped + v_leaving - (select count(*) from holdfast.leaving g where g.queue = let_in.queue);
  end if;
  for step in 0 .. v_fanout - 1 loop
    v_part := (holdfast.queue_part(queue) + (step + pg_backend_pid()) % v_fanout) % 64;
    v_lane := '';
    while v_looks > 0 loop
      select j.lane into v_lane
      from holdfast.job j
      where j.part = v_part and j.queue = let_in.queue and j.lane > v_lane and j.lane_seq is not null and j.blocked
      order by j.lane
      limit 1;
      exit when not found;
      v_helped := v_helped + holdfast.unblock(v_part, array[queue], array[v_lane], holdfast.clock());
      v_looks := v_looks - 1;
    end loop;
  end loop;
  return v_helped > 0;
end
$$;

create or replace function holdfast.refuse_claim(queue text, worker text, token uuid, max_jobs integer, lease interval)
returns void
language plpgsql
as $$
begin
  if token is null then
    perform holdfast.refuse('HF207', 'claim needs a token', null,
      'Create one for each call, for example token => gen_random_uuid().');
  end if;
  perform holdfast.named('queue', queue, 120);
  perform holdfast.named('worker', worker);
  if not coalesce(max_jobs between 1 and 10000, false) then
    perform holdfast.refuse('HF204', format('max_jobs must be 1 to 10000 (got %s)',
      coalesce(max_jobs::text, 'null')));
  end if;
  perform holdfast.check_length('lease', lease, '1 year');
  perform holdfast.refuse('HF209',
    format('claim was called at isolation level %s', current_setting('transaction_isolation')), null,
    'Limits and lanes need the newest rows: claim at read committed.');
end
$$;
