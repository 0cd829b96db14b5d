"""Monthly reports from a table that was there before Holdfast.

One report per row of `jobs`, made once, whoever dies in between.
"""

from datetime import date

from holdfast import App, current, once

app = App()


@app.task(queue="jobs", kind="jobs")
def render(id: int, store: str, month: date, created_at: str) -> None:
    """Draw the sales of a store, day by day, and keep the picture."""
    job = current()
    with job.transaction() as connection:
        if not once(connection, job):
            return
        days = connection.execute(
            "select amount from sale "
            "where store = %s and date_trunc('month', sold) = %s order by sold",
            [store, month],
        ).fetchall()
        connection.execute(
            "insert into report (job_id, title, chart) values (%s, %s, %s)",
            [id, f"{store}, {month:%B %Y}", sparkline([float(amount) for (amount,) in days])],
        )


def sparkline(values: list[float]) -> str:
    """One bar per value, from the lowest to the highest."""
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(values), max(values)
    step = (high - low) / (len(bars) - 1) or 1
    return "".join(bars[round((value - low) / step)] for value in values)
