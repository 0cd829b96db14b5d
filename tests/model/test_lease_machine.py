"""The lease protocol against its model, and the proof that the model bites.

Each planted bug must be found by no more examples than an ordinary run has.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.lease_machine import LeaseMachine
from tests.protocol import PLANTED_STAYS, Protocol

STEPS = 50
SHORT = 80
# With `python -m tests.model --long`.
LONG = "MODEL_LONG" in os.environ
# Of two runs of `make test` the one on other ground, which need not look everywhere again.
AGAIN = "HOLDFAST_TEST_AGAIN" in os.environ
CALM = settings(
    deadline=None,
    derandomize=True,
    database=None,
    stateful_step_count=STEPS,
    # A failure is shown as it was found: to shrink one takes minutes.
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.proves("S0.5", "S0.14", "S0.16", "S0.21", "S0.32", "S3.30", "S4.14", "S4.21", "S4.28")
@pytest.mark.timeout(900)
def test_the_protocol_agrees_with_its_model(
    db: Protocol, capsys: pytest.CaptureFixture[str]
) -> None:
    class Machine(LeaseMachine):
        pass

    Machine.db = db

    # Runs end early by themselves at times: 480 of up to 50 steps make 20,000 with room to spare.
    examples, steps = (480, 20_000) if LONG else (30, 1_000) if AGAIN else (SHORT, 3_000)
    run_state_machine_as_test(Machine, settings=settings(CALM, max_examples=examples))

    with capsys.disabled():
        print(f"\nthe lease machine ran {Machine.steps} steps")
    assert Machine.steps >= steps


CLAIMED = """
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, lease_for interval, length interval, error text,
  followed boolean"""
CLAIM = """
  queue text, worker text, token uuid, max_jobs integer default 1, lease interval default null,
  kinds text[] default null, durable boolean default true"""

PLANTED = {
    "an ack that ignores the token": """
        alter function holdfast.ack set schema honest;
        create function holdfast.ack(
          ids uuid[], tokens uuid[], results jsonb default null, keep boolean default false,
          recent integer default 0)
        returns table (id uuid, outcome text, detail text) language sql as $$
          select a.id, a.outcome, a.detail
          from honest.ack(ack.ids, array(
            select coalesce((select j.token from holdfast.job j where j.id = u.id), u.token)
            from unnest(ack.ids, ack.tokens) u(id, token)), ack.results, ack.keep, ack.recent) a
        $$;
        """,
    "a reap that comes too early": """
        alter function holdfast.reap set schema honest;
        create function holdfast.reap(max_jobs integer default 1000, only_queue text default null)
        returns table (id uuid, queue text, kind text, worker text, outcome text)
        language plpgsql as $$
        begin
          update holdfast.lease set until = until - interval '20 seconds' where open;
          update holdfast.job set lease_until = lease_until - interval '20 seconds';
          return query select r.* from honest.reap(max_jobs, only_queue) r;
          update holdfast.job set lease_until = lease_until + interval '20 seconds';
        end
        $$;
        """,
    "a verdict that does not look at the clock": """
        create or replace function holdfast.expired_before(
          at timestamptz, out cut timestamptz, out back timestamptz)
        language sql as $$ select at + interval '1 day', 'infinity'::timestamptz $$;
        """,
    "a hand over that leaves the old token in force": """
        create function holdfast.keep_token() returns trigger language plpgsql as $$
        begin
          new.token := old.token;
          return new;
        end
        $$;
        create trigger keep_token before update of token on holdfast.job for each row
        when (new.worker = 'outside') execute function holdfast.keep_token();
        """,
    "a claim that does not count the attempt": f"""
        alter function holdfast.claim set schema honest;
        create function holdfast.claim({CLAIM}) returns table ({CLAIMED}) language plpgsql as $$
        #variable_conflict use_column
        begin
          return query select c.* from honest.claim(
            claim.queue, claim.worker, claim.token, max_jobs, claim.lease, kinds) c;
          update holdfast.job j set attempt = j.attempt - 1 where j.token = claim.token;
        end
        $$;
        """,
    "a claim that gives one more than was asked for": f"""
        alter function holdfast.claim set schema honest;
        create function holdfast.claim({CLAIM}) returns table ({CLAIMED}) language sql as $$
          select c.* from honest.claim(
            claim.queue, claim.worker, claim.token, max_jobs + 1, claim.lease, kinds) c
        $$;
        """,
    "a settle that wakes nobody": """
        create or replace function holdfast.unfollow(
          part smallint, queues text[], kinds text[], keys text[], at timestamptz)
        returns integer language sql as 'select 0';
        """,
}


@PLANTED_STAYS
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", PLANTED)
def test_the_machine_finds_a_planted_bug(db: Protocol, bug: str) -> None:
    class Machine(LeaseMachine):
        pass

    Machine.db = db
    db.connection.execute("create schema honest")
    db.connection.execute(PLANTED[bug])

    with pytest.raises(AssertionError):
        # This seed comes across all of them early; any finds them.
        run_state_machine_as_test(seed(1)(Machine), settings=settings(CALM, max_examples=SHORT))
