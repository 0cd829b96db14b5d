"""Make the shop as it was before Holdfast; when its reports are there, show them."""

from pathlib import Path

import psycopg

from examples.report_jobs.app import app


def main() -> None:
    """Create the tables the first time, and from then on show what is in them."""
    with app, psycopg.connect(app.url, autocommit=True) as conn:
        if conn.execute("select to_regclass('jobs') is null").fetchone() == (True,):
            conn.execute(Path(__file__).with_name("schema.sql").read_text("utf-8"))
        for status, jobs in conn.execute("select status, count(*) from jobs group by 1 order by 1"):
            print(f"{jobs} jobs {status}")
        reports = "select title, chart from report where length(chart) > 1 order by job_id"
        for title, chart in conn.execute(reports):
            print(f"{title:22} {chart}")


if __name__ == "__main__":
    main()
