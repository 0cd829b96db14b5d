"""Flask with SQLAlchemy: an order and its job commit together.

python -m examples.web.flask_shop
"""

from functools import cache

from flask import Flask
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from holdfast import App, current, start_processor

queue = App(name="shop")
web = Flask(__name__)


@queue.task(key=lambda order: f"order-{order}")
def ship(order: int) -> None:
    with current().transaction() as conn:  # the work and its ack commit together, too
        conn.execute("update orders set shipped = true where id = %s", [order])


@cache
def engine() -> Engine:
    return create_engine(queue.url.replace("postgresql://", "postgresql+psycopg://"))


@web.post("/orders/<int:order>")
def place(order: int) -> dict[str, str]:
    with Session(engine()) as session, session.begin():
        session.execute(
            text("create table if not exists orders (id int primary key, shipped bool)")
        )
        session.execute(text("insert into orders values (:id, false)"), {"id": order})
        job = ship.options(conn=session).enqueue(order)
    return {"job": str(job.id)}


if __name__ == "__main__":
    with start_processor(queue):  # a worker in a thread of this process
        web.run()
