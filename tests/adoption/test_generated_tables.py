"""Random tables beside an ordinary queue: refused with a reason, or they work; nobody is harmed.

The seed and the DDL of a table that fails are printed. More of them, and one again:
`python -m tests.adoption --generated 3000`, `python -m tests.adoption --seed 17`.
"""

import psycopg
import pytest

from holdfast.adopt import Plan
from tests.adoption.generated import Harm, Meddle, nothing, run
from tests.adoption.generator import Table, ident, table

TABLES = 300
AT_ONCE = 25
# Ordinary ones, of which every row can be claimed and put back.
ORDINARY = next(
    seed
    for seed in range(TABLES)
    if not table(seed).refused
    and not table(seed).hostile
    and {"status text", "rows"} <= set(table(seed).traits)
    and "lane" not in table(seed).traits
)


@pytest.mark.parametrize("first", range(0, TABLES, AT_ONCE))
def test_a_generated_table_is_refused_with_a_reason_or_works_and_harms_nobody(
    database: str, first: int
) -> None:
    result = run(database, range(first, first + AT_ONCE))

    assert result.tables == AT_ONCE
    assert result.refused + result.worked + result.hostile == AT_ONCE
    assert result.worked >= 3


def test_a_seed_is_always_the_same_table_and_the_seeds_have_every_trait() -> None:
    tables = [table(seed) for seed in range(TABLES)]
    traits = " ".join(trait for one in tables for trait in one.traits)

    assert tables[7] == table(7)
    for wanted in (
        "key two", "key uuid", "key domain", "key none", "status enum", "status domain",
        "status lookup", "status none", "status number", "check on the status", "unique",
        "several columns", "partitioned", "child", "rule on update", "forced row security",
        "another owner", "generated column", "named", "infinite times", "wide", "filter",
        "trigger: raises for some", "trigger: rewrites", "trigger: skips some", "delete on success",
    ):  # fmt: skip
        assert wanted in traits


def forget_an_index(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    key = ident(plan.spec["key"][0])
    connection.execute(f"create index holdfast_forgotten on {one.relation} ({key})")


def forget_a_column(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    connection.execute(f"alter table {one.relation} add column holdfast_token uuid")


def change_a_row(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    connection.execute("set session_replication_role = replica")
    connection.execute(f"update {one.relation} set {ident(plan.spec['status'])} = 'changed'")


def write_the_neighbour(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    connection.execute(f"""
        create function {ident(one.schema)}.write_the_neighbour() returns trigger
        language plpgsql security definer as
        'begin update holdfast.job set worker = ''me'' where token is not null; return null; end';
        create trigger write_the_neighbour after update on {one.relation}
        execute function {ident(one.schema)}.write_the_neighbour()
    """)


def make_reap_raise(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    connection.execute("""
        create or replace function holdfast.rescue(max_jobs integer default 1000)
        returns integer language plpgsql as 'begin raise exception ''planted''; end'
    """)


def lose_a_count(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    connection.execute(f"drop trigger holdfast_updated on {one.relation}")


@pytest.mark.parametrize(
    ("adopted", "given_back", "said"),
    [
        (nothing, forget_an_index, r"not as it was:[^+]*\+.*holdfast_forgotten"),
        (nothing, forget_a_column, r"not as it was:[^+]*\+ .*holdfast_token"),
        (nothing, change_a_row, "giving it back changed rows"),
        (write_the_neighbour, nothing, "the neighbour was changed"),
        (make_reap_raise, nothing, "fails for everybody: planted"),
        (lose_a_count, nothing, "the counters are wrong"),
    ],
    ids=lambda planted: getattr(planted, "__name__", ""),
)
def test_planted_harm_is_caught_and_told_with_the_seed_and_the_table(
    database: str, adopted: Meddle, given_back: Meddle, said: str
) -> None:
    with pytest.raises(Harm, match=said) as caught:
        run(database, [ORDINARY], adopted=adopted, given_back=given_back)

    assert f"--seed {ORDINARY}" in str(caught.value)
    assert "create table" in str(caught.value)
